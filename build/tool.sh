#!/usr/bin/env bash
# Builds a tool from its Go module, or takes it from its Debian package, once, into a cache, and prints its path:
# build/tool.sh helm. Versions of modules are fixed here; Go checks them against its checksum
# database. EDGEMESH_TOOLS is the cache (default: edgemesh/tools in the user's).
set -euo pipefail

flags='-s -w' cgo=0 also=
case ${1:-} in
  helm)
    package=helm.sh/helm/v3/cmd/helm version=v3.19.0
    # As its own Makefile does: the Kubernetes version it assumes without a cluster.
    for p in lint/rules chartutil; do
      flags+=" -X helm.sh/helm/v3/pkg/$p.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$p.k8sVersionMinor=34"
    done ;;
  kubeconform)
    package=github.com/yannh/kubeconform/cmd/kubeconform version=v0.7.0 ;;
  # The check of CI's workflow.
  actionlint)  package=github.com/rhysd/actionlint/cmd/actionlint version=v1.7.12 ;;
  # A registry, and what puts images into it.
  registry)    package=github.com/distribution/distribution/v3/cmd/registry version=v3.0.0 ;;
  crane)       package=github.com/google/go-containerregistry/cmd/crane version=v0.20.6 ;;
  # What packs a release, and lists what its programs consist of.
  nfpm)            package=github.com/goreleaser/nfpm/v2/cmd/nfpm version=v2.45.2 ;;
  cyclonedx-gomod) package=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod version=v1.10.0 ;;
  coredns)     package=github.com/coredns/coredns version=v1.12.4 ;;
  flannel)     package=github.com/flannel-io/flannel version=v0.26.7 cgo=1 ;;
  # Flannel's CNI plugin, from the repository it was in before it got its own.
  flannel-cni) package=github.com/containernetworking/plugins/plugins/meta/flannel version=v0.9.1 ;;
  # What k3s has in place of etcd; built without cgo it has SQLite in Go.
  kine)        package=github.com/k3s-io/kine version=v0.17.5 ;;
  metrics-server) package=sigs.k8s.io/metrics-server/cmd/metrics-server version=v0.7.2 ;;
  # Konnectivity, of the version whose client Kubernetes 1.35 has. Its module replaces that client by a directory of it.
  proxy-server) package=sigs.k8s.io/apiserver-network-proxy/cmd/server version=v0.34.0 also=sigs.k8s.io/apiserver-network-proxy/konnectivity-client ;;
  proxy-agent)  package=sigs.k8s.io/apiserver-network-proxy/cmd/agent version=v0.34.0 also=sigs.k8s.io/apiserver-network-proxy/konnectivity-client ;;
  # Debian's: their module takes ten minutes to build, and installing the package would start a server.
  prometheus|promtool) package=prometheus version=debian ;;
  *) echo "usage: build/tool.sh helm|kubeconform|actionlint|registry|crane|nfpm|cyclonedx-gomod|coredns|flannel|flannel-cni|kine|metrics-server|proxy-server|proxy-agent|prometheus|promtool" >&2; exit 2 ;;
esac

dir=${EDGEMESH_TOOLS:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh/tools}/$1-$version
if [ ! -x "$dir/$1" ]; then
  echo "building $1 $version (once)" >&2
  mkdir -p "$dir"
  # Outside any module, so that ours does not determine the tool's dependencies.
  # Under a temporary name first: of two builds at the same time neither sees half a program.
  tmp=$(mktemp -d "$dir/build.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  if [ "$version" = debian ]; then
    (cd "$tmp" && { apt-get -q download "$package" || { apt-get -q update && apt-get -q download "$package"; }; } && dpkg -x "$package"_*.deb . && cp "usr/bin/$1" .) >&2
  elif [ -z "$also" ]; then
    (cd / && GOBIN=$tmp GOFLAGS='' CGO_ENABLED=$cgo nice go install -trimpath -gcflags=all=-dwarf=false -ldflags "$flags" "$package@$version") >&2
  else # `go install` refuses modules that replace others
    mkdir "$tmp/module"
    (cd "$tmp/module" && export GOFLAGS='' && go mod init tool && go get "${package%/cmd/*}@$version" "$also@$version" "$package@$version" &&
      CGO_ENABLED=$cgo nice go build -trimpath -gcflags=all=-dwarf=false -ldflags "$flags" -o "$tmp/${package##*/}" "$package") >&2
  fi
  tool=$1; [ "$version" = debian ] || tool=${package##*/}
  mv "$tmp/$tool" "$dir/$1"
fi
echo "$dir/$1"
