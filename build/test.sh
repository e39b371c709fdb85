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
unformatted=$(gofmt -l agent build cni relay test tunnel)
if [ -n "$unformatted" ]; then
  printf 'not as gofmt writes it; run gofmt -w on:\n%s\n' "$unformatted" >&2
  exit 1
fi

step "vet"
go vet ./...

step "unit tests, fuzz seeds, namespace tests of the packages"
mapfile -t packages < <(go list ./... | grep -v /test/e2e)
go test -timeout 20m "${packages[@]}"

step "race detector on the packet way"
go test -race -timeout 10m ./tunnel ./agent/mesh ./agent/file ./cni/ipam

step "end to end: agents, relays and plugin in network namespaces"
go test -count=1 -timeout 30m -v ./test/e2e/...

step "done"
