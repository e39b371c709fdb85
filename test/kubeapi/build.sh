#!/usr/bin/env bash
# Builds real Kubernetes programs from their Go modules, once, into a cache.
#
#   test/kubeapi/build.sh [PROGRAM...]     default: etcd kube-apiserver kubectl
#   test/kubeapi/build.sh all              also what nodes need: kube-controller-manager,
#                                          kube-scheduler, kubelet, kube-proxy
#
# Prints the directory the programs are in. EDGEMESH_K8S_CACHE overrides it. A second
# run finds everything built; several at the same time wait for each other.
#
# EDGEMESH_K8S_VERSION=v1.28.15 builds those of another version, in the module graph that its own go.mod and go.sum pin;
# etcd and kubectl stay those of the default.
set -euo pipefail
cd "$(dirname "$0")/binaries"

default=v1.35.4   # = go.mod's k8s.io/kubernetes
version=${EDGEMESH_K8S_VERSION:-$default}
[[ $version =~ ^v1\.[0-9]+\.[0-9]+$ ]] || { echo "EDGEMESH_K8S_VERSION (KUBERNETES of make): '$version' is not one version, like $default" >&2; exit 2; }
cache=${EDGEMESH_K8S_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh/k8s-$version}
programs=("$@")
[ $# -gt 0 ] || programs=(etcd kube-apiserver kubectl)
[ "${programs[*]}" != all ] || programs=(etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy)

mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

stamp="$version $(sha256sum < go.sum)"
mod=readonly
if [ "$version" != $default ]; then
  same=$(env -u EDGEMESH_K8S_VERSION -u EDGEMESH_K8S_CACHE ../build.sh etcd kubectl)
  ln -sf "$same/etcd" "$same/kubectl" "$cache/"
  others=()
  for p in "${programs[@]}"; do
    case $p in etcd | kubectl) ;; *) others+=("$p") ;; esac
  done
  programs=("${others[@]}")
  source=$(GOWORK=off GOFLAGS=-mod=mod go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  stamp="$version $(sha256sum < "$source/go.sum")" mod=mod
  mkdir -p "$cache/modules"
  cd "$cache/modules"
  sed -E "s#^module .*#module edgemesh/test/kubeapi/binaries#; s#=> ./staging/src/(k8s.io/[a-z0-9-]+)#=> \1 v0.${version#v1.}#" "$source/go.mod" > go.mod
  install -m 644 "$source/go.sum" go.sum
  GOWORK=off go mod edit -require="k8s.io/kubernetes@$version"
  printf 'package binaries\n' > doc.go
fi

# Without these the API server says v0.0.0-master, and kubelet and kubectl refuse it
# or warn of skew. Both packages are read.
minor=${version#v1.}
flags="-s -w"
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  flags+=" -X $p.gitVersion=$version -X $p.gitMajor=1 -X $p.gitMinor=${minor%%.*}"
  flags+=" -X $p.gitTreeState=clean -X $p.gitCommit=module -X $p.buildDate=1970-01-01T00:00:00Z"
done

for p in "${programs[@]}"; do
  [ ! -x "$cache/$p" ] || [ "$(cat "$cache/.$p.built" 2>/dev/null)" != "$stamp" ] || continue
  case $p in
    etcd) import=go.etcd.io/etcd/server/v3 tags=() ld="-s -w" ;;  # the version Kubernetes' own module graph has
    *)    import=k8s.io/kubernetes/cmd/$p tags=(-tags "notest,grpcnotrace,providerless") ld=$flags ;; # before 1.31 clouds were in, by modules that have no checksum
  esac
  start=$SECONDS
  CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=$mod -gcflags=all=-dwarf=false" GOWORK=off nice -n 10 \
    go build "${tags[@]}" -ldflags "$ld" -o "$cache/.$p.new" "$import" >&2
  mv "$cache/.$p.new" "$cache/$p"
  echo "$stamp" > "$cache/.$p.built"
  echo "built $p in $((SECONDS - start)) s" >&2
done
echo "$cache"
