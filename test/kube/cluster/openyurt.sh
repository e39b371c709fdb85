#!/usr/bin/env bash
# OpenYurt: what its charts put into the API for YurtHub.
. "$(dirname "$0")/lib.sh"
k apply -f "$EDGEBIN/crds" -f "$EDGEBIN/yurt-hub.yaml" >/dev/null
wait_for 30 k wait --for=condition=Established crd --all --timeout=30s || die "a CRD is not established"
