#!/usr/bin/env bash
# Everything the cluster runs, built once into caches, and put together in a directory:
#
#   test/kube/build.sh DIRECTORY      images/*.tar, later/*.tar, cnibin/*, admin/*, apiport, podtool
#
# FLAVOUR is that of the cluster. Prints the directory with the Kubernetes programs. Needs bin/ to be built.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?directory}
mkdir -p "$out/images" "$out/later" "$out/cnibin" "$out/build" "$out/admin"
bin=$(test/kubeapi/build.sh all)
coredns=$(build/tool.sh coredns)
ln -sf "$(build/tool.sh helm)" "$out/admin/helm" # first-steps.sh wants it before Kubernetes 1.31

export CGO_ENABLED=0 GOFLAGS="-trimpath"
go build -ldflags '-s -w' -o "$out/apiport" ./test/kube/cmd/apiport
go build -ldflags '-s -w' -o "$out/build/mkimage" ./test/kube/cmd/mkimage
go build -ldflags '-s -w' -o "$out/build/pause" ./test/kube/cmd/pause
go build -ldflags '-s -w' -o "$out/build/podtool" ./test/cmd/podtool
# What the package kubernetes-cni puts on every node. Debian's are linked dynamically.
for p in main/loopback meta/portmap; do
  go build -ldflags '-s -w' -o "$out/cnibin/${p##*/}" "github.com/containernetworking/plugins/plugins/$p"
done

image() { # NAME PROGRAM FILE:/PATH…
  "$out/build/mkimage" -out "$out/images/$1.tar" -name "e2e.test/$1:1" -entrypoint "/$1" "$2:/$1" "${@:3}"
}
tar=() # what `kubectl cp` needs in a container
for f in $(readlink -f "$(command -v tar)") $(ldd "$(command -v tar)" | grep -oP '\s\K/\S+' | sort -u); do tar+=("$f:$f"); done
image pause "$out/build/pause"
image podtool "$out/build/podtool" "${tar[@]}"
image coredns "$coredns"
if [ -n "${FLAVOUR:-}" ]; then # kube-proxy is a pod on edges, with Debian's iptables
  iptables=$(readlink -f "$(command -v iptables-nft)")
  files=("$bin/kube-proxy:/usr/local/bin/kube-proxy")
  for n in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do files+=("$iptables:/usr/sbin/$n"); done
  for f in $(ldd "$iptables" /usr/lib/*/xtables/*.so | grep -oP '\s\K/\S+' | sort -u) /usr/lib/*/xtables/*.so; do files+=("$f:$f"); done
  if [ "$FLAVOUR" = flannel ]; then # as in its own images: the daemon beside iptables, and what copies its files to the node
    flanneld=$(build/tool.sh flannel) plugin=$(build/tool.sh flannel-cni) copy=("$(command -v cp):/usr/bin/cp")
    libraries() { ldd "$1" | grep -oP '\s\K/\S+' | sed 's/.*/&:&/'; }
    mapfile -t -O 1 copy < <(libraries "$(command -v cp)")
    mapfile -t needs < <(printf '%s\n' "${files[@]:1}" "${copy[@]}" $(libraries "$flanneld") | sort -u)
    "$out/build/mkimage" -out "$out/images/flannel.tar" -name e2e.test/flannel:1 "$flanneld:/opt/bin/flanneld" "${needs[@]}"
    "$out/build/mkimage" -out "$out/images/flannel-cni.tar" -name e2e.test/flannel-cni:1 "$plugin:/flannel" "${copy[@]}"
    (cd test/cni/testdata/plugins && GOWORK=off go build -ldflags '-s -w' -o "$out/cnibin/" \
      github.com/containernetworking/plugins/plugins/{main/bridge,ipam/host-local})
    version=$(basename "$(dirname "$flanneld")")
    source=$(cd / && go mod download -json "github.com/flannel-io/flannel@${version#flannel-}" | sed -n 's/^\t"Dir": "\(.*\)",/\1/p')
    sed -E 's#image: ghcr.io/flannel-io/flannel(-cni-plugin)?:.*#image: e2e.test/flannel\1:1#; s#e2e.test/flannel-cni-plugin#e2e.test/flannel-cni#' \
      "$source/Documentation/kube-flannel.yml" >"$out/kube-flannel.yml"
  fi
  "$out/build/mkimage" -out "$out/images/kube-proxy.tar" -name e2e.test/kube-proxy:1 -entrypoint kube-proxy "${files[@]}"
fi

# The images under test, exactly as `make images` makes them.
if [ -z "${EDGEMESH_E2E_IMAGES:-}" ]; then
  make -s images ARCHES=amd64 >&2
  EDGEMESH_E2E_IMAGES=dist/images
fi
cp "$EDGEMESH_E2E_IMAGES/edgemesh-agent-linux-amd64.tar" "$out/images/edgemesh-agent.tar"
# What an operator brings in while the cluster runs: a relay, and another version.
cp "$EDGEMESH_E2E_IMAGES/edgemesh-relay-linux-amd64.tar" "$out/later/edgemesh-relay.tar"
OUT=$out/build/next TAG=next VERSION=e2e-next ARCHES=amd64 build/images/images.sh >&2
mv "$out/build/next/edgemesh-agent-linux-amd64.tar" "$out/later/edgemesh-agent-next.tar"
if [ -z "${FLAVOUR:-}" ]; then # no other cluster uses them: metrics-server, and konnectivity for API servers without an agent
  "$out/build/mkimage" -out "$out/later/metrics-server.tar" -name e2e.test/metrics-server:1 -entrypoint /metrics-server \
    "$(build/tool.sh metrics-server):/metrics-server"
  for p in proxy-server proxy-agent; do cp "$(build/tool.sh $p)" "$out/build/"; done
fi
echo "$bin"
