#!/usr/bin/env bash
# Builds a tool from its Go module, once, into a cache, and prints its path:
# build/tool.sh helm. Versions are fixed here; Go checks them against its checksum
# database. EDGEMESH_TOOLS is the cache (default: edgemesh/tools in the user's).
set -euo pipefail

flags='-s -w' cgo=0
case ${1:-} in
  helm)
    package=helm.sh/helm/v3/cmd/helm version=v3.19.0
    # As its own Makefile does: the Kubernetes it assumes where there is no cluster.
    for p in lint/rules chartutil; do
      flags+=" -X helm.sh/helm/v3/pkg/$p.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$p.k8sVersionMinor=34"
    done ;;
  kubeconform)
    package=github.com/yannh/kubeconform/cmd/kubeconform version=v0.7.0 ;;
  coredns)     package=github.com/coredns/coredns version=v1.12.4 ;;
  flannel)     package=github.com/flannel-io/flannel version=v0.26.7 cgo=1 ;;
  # Flannel's CNI plugin from where it was before it got a repository of its own.
  flannel-cni) package=github.com/containernetworking/plugins/plugins/meta/flannel version=v0.9.1 ;;
  *) echo "usage: build/tool.sh helm|kubeconform|coredns|flannel|flannel-cni" >&2; exit 2 ;;
esac

dir=${EDGEMESH_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/edgemesh/tools}/$1-$version
if [ ! -x "$dir/$1" ]; then
  echo "building $1 $version (once)" >&2
  mkdir -p "$dir"
  # Outside of any module, so that ours does not decide about the tool's dependencies.
  # A new name first: two builds at once must not see half a program.
  tmp=$(mktemp -d "$dir/build.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  (cd / && GOBIN=$tmp GOFLAGS='' CGO_ENABLED=$cgo nice go install -trimpath -ldflags "$flags" "$package@$version") >&2
  mv "$tmp/${package##*/}" "$dir/$1"
fi
echo "$dir/$1"
