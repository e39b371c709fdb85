#!/usr/bin/env bash
# Builds the conformance suite of ClusterNetworkPolicies from its module, once, into the cache of Kubernetes' own (CACHE), and the image that
# it asks for into a directory:
#
#   test/kube/conformance/clusterpolicies/build.sh CACHE DIRECTORY      suite-patient.tar
#
# Prints the suite's program and the file of the CustomResourceDefinition.
set -euo pipefail
cache=$(realpath "${1:?cache}")
out=$(realpath "${2:?directory}")
cd "$(dirname "$0")"
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false" GOWORK=off
go mod download sigs.k8s.io/network-policy-api
read -r version dir < <(go list -m -f '{{.Version}} {{.Dir}}' sigs.k8s.io/network-policy-api)
suite=$cache/clusterpolicies-$version.test
if [ ! -x "$suite" ]; then
  nice -n 10 go test -c -vet=off -ldflags '-s -w' -o "$suite.new" sigs.k8s.io/network-policy-api/conformance >&2
  mv "$suite.new" "$suite"
fi

# Its pods are ready only if each of their servers runs, those of SCTP as well: without the kernel's module this one waits.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf '#!/bin/sh\n/bin/sh "$@" || exec sleep 1000000\n' >"$scratch/bash"
chmod 755 "$scratch/bash"
busybox=$(command -v busybox)
files=("$cache/agnhost:/agnhost" "$scratch/bash:/bin/bash" "$busybox:/bin/busybox" '->busybox:/bin/sh' '->busybox:/bin/sleep')
for l in $(ldd "$busybox" | grep -oP '\s\K/\S+'); do files+=("$l:$l"); done
(cd ../../../.. && GOWORK= go run ./test/kube/cmd/mkimage -out "$out/suite-patient.tar" -name e2e.test/suite-patient:1 -entrypoint /agnhost -cmd pause "${files[@]}")
echo "$suite $dir/config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml"
