#!/usr/bin/env bash
# OpenYurt: what its charts put into the API for YurtHub.
. "$(dirname "$0")/lib.sh"
k apply -f "$EDGEBIN/crds" -f "$EDGEBIN/yurt-hub.yaml" >/dev/null
k wait --for=condition=Established crd --all --timeout=30s >/dev/null
