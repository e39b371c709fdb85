#!/usr/bin/env bash
# All tests that CI runs, in order of how fast they fail. Needs root: the suites make network namespaces.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "make test needs root: it makes network namespaces (they are removed at the end, also on Ctrl-C)" >&2
  exit 1
fi

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

step "gofmt"
unformatted=$(gofmt -l agent build cni internal relay test tunnel)
if [ -n "$unformatted" ]; then
  printf 'not as gofmt writes it; run gofmt -w on:\n%s\n' "$unformatted" >&2
  exit 1
fi

step "vet, and for machines where int has 32 bits"
go vet ./...
GOARCH=arm GOARM=7 go vet ./agent/... ./cni/... ./relay/... ./tunnel/...

# Suites that measure time, or hold a whole cluster, have the machine to themselves.
alone='/tunnel/p2p$|/test/lab|/test/bench|/test/e2e|/test/kube|/test/manifests$'

step "unit tests, fuzz seeds, namespace tests of the packages"
mapfile -t packages < <(go list ./... | grep -Ev "$alone")
go test -timeout 20m "${packages[@]}"

step "libp2p through NATs, the lab and the benchmark's short form"
go test -p 1 -timeout 20m ./tunnel/p2p ./test/lab/... ./test/bench/...

step "race detector on the packet way"
go test -race -timeout 10m ./tunnel ./agent/mesh ./agent/file ./cni/ipam

step "Kubernetes API: building etcd and kube-apiserver (once; minutes), then the agents' side and the manifests"
test/kubeapi/build.sh etcd kube-apiserver kubectl kube-controller-manager
go test -p 1 -timeout 25m ./test/kubeapi/... ./test/manifests

step "end to end: agents, relays and plugin in network namespaces"
go test -count=1 -timeout 30m -v ./test/e2e/...

step "done"
