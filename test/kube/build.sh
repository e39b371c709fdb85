#!/usr/bin/env bash
# Everything the cluster runs, built once into caches, and put together in a directory:
#
#   test/kube/build.sh DIRECTORY      images/*.tar, later/*.tar, cnibin/*, oob, podtool
#
# Prints the directory with the Kubernetes programs. Needs bin/ to be built.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?directory}
mkdir -p "$out/images" "$out/later" "$out/cnibin" "$out/build"
bin=$(test/kubeapi/build.sh all)
coredns=$(build/tool.sh coredns)

export CGO_ENABLED=0 GOFLAGS="-trimpath"
go build -ldflags '-s -w' -o "$out/oob" ./test/kube/cmd/oob
go build -ldflags '-s -w' -o "$out/build/mkimage" ./test/kube/cmd/mkimage
go build -ldflags '-s -w' -o "$out/build/pause" ./test/kube/cmd/pause
go build -ldflags '-s -w' -o "$out/build/podtool" ./test/cmd/podtool
# What the package kubernetes-cni puts on every node. Debian's are linked dynamically.
for p in main/loopback meta/portmap; do
  go build -ldflags '-s -w' -o "$out/cnibin/${p##*/}" "github.com/containernetworking/plugins/plugins/$p"
done

image() { # NAME PROGRAM
  "$out/build/mkimage" -out "$out/images/$1.tar" -name "e2e.test/$1:1" -entrypoint "/$1" "$2:/$1"
}
image pause "$out/build/pause"
image podtool "$out/build/podtool"
image coredns "$coredns"

# The images under test, exactly as `make images` makes them.
if [ -z "${EDGEMESH_E2E_IMAGES:-}" ]; then
  make -s images ARCHES=amd64 >&2
  EDGEMESH_E2E_IMAGES=dist/images
fi
cp "$EDGEMESH_E2E_IMAGES/edgemesh-agent-linux-amd64.tar" "$out/images/edgemesh-agent.tar"
# What an operator brings in while the cluster runs: a relay, and another version.
cp "$EDGEMESH_E2E_IMAGES/edgemesh-relay-linux-amd64.tar" "$out/later/edgemesh-relay.tar"
go run ./build/images --out "$out/build/next" --tag next --version e2e-next --arch amd64 >&2
mv "$out/build/next/edgemesh-agent-linux-amd64.tar" "$out/later/edgemesh-agent-next.tar"
echo "$bin"
