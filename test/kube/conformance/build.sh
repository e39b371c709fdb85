#!/usr/bin/env bash
# Builds Kubernetes' own test suite from its modules, once, into a cache (3 minutes on two cores), and the images that it asks for into a
# directory:
#
#   test/kube/conformance/build.sh DIRECTORY      suite-KIND.tar: one layer, an entrypoint each
#
# Prints the directory with e2e.test, ginkgo and the list of Conformance's specs. EDGEMESH_SUITE_CACHE overrides it.
# EDGEMESH_K8S_VERSION chooses another version, as for test/kubeapi/build.sh.
set -euo pipefail
out=$(realpath "${1:?directory}")
cd "$(dirname "$0")/../../.."
binaries=test/kube/conformance/binaries
default=$(sed -n 's/.*k8s.io\/kubernetes \(v[0-9.]*\)$/\1/p' $binaries/go.mod)
version=${EDGEMESH_K8S_VERSION:-$default}
cache=${EDGEMESH_SUITE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh/suite-$version}
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

mod=readonly tags=grpcnotrace
stamp="$version $(cat test/kube/conformance/build.sh $binaries/go.sum | sha256sum)"
if [ "$(cat "$cache/.built" 2>/dev/null)" != "$stamp" ]; then
  start=$SECONDS
  suite=k8s.io/kubernetes/test
  if [ "$version" != "$default" ]; then # in the module graph of that version's programs
    programs=$(test/kubeapi/build.sh kubectl)
    binaries=$cache/modules mod=mod tags+=,providerless # as there
    mkdir -p "$binaries"
    cp "$programs"/modules/{go.mod,go.sum,doc.go} "$binaries"
    (
      cd "$binaries"
      sample=k8s.io/sample-apiserver minor=${version#v1.} # its types alone are used; not every patch version of it is served
      export GOWORK=off GOFLAGS=-mod=mod
      go mod download "$sample@v0.$minor" || go mod edit -replace "$sample=$sample@v0.${minor%.*}.0"
    ) >&2
  fi
  (
    cd "$binaries"
    export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=$mod" GOWORK=off
    go build -o "$cache/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
    go build -ldflags '-s -w' -o "$cache/agnhost" $suite/images/agnhost
    go build -ldflags '-s -w' -o "$cache/regression" $suite/images/regression-issue-74839
    nice -n 10 go test -c -vet=off -tags $tags -ldflags '-s -w' -o "$cache/e2e.test" $suite/e2e
    source=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)
    install -m 644 "$source"/test/images/agnhost/porter/localhost.{crt,key} "$source/test/conformance/testdata/conformance.yaml" "$cache/"
  ) >&2
  echo "$stamp" >"$cache/.built"
  echo "built the suite in $((SECONDS - start)) s" >&2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
CGO_ENABLED=0 go build -o "$scratch/mkimage" ./test/kube/cmd/mkimage
CGO_ENABLED=0 go build -ldflags '-s -w' -o "$scratch/pause" ./test/kube/cmd/pause
echo 'hosts: files dns' >"$scratch/nsswitch.conf"
echo 'tries = 1' >"$scratch/wgetrc"
printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/:/sbin/nologin >"$scratch/passwd"
files=("$cache/agnhost:/agnhost" "$(build/tool.sh coredns):/coredns" "$cache/localhost.crt:/localhost.crt" "$cache/localhost.key:/localhost.key"
  "$cache/regression:/regression-issue-74839" "$scratch/pause:/pause" "$scratch/passwd:/etc/passwd" "$scratch/nsswitch.conf:/etc/nsswitch.conf"
  "$scratch/wgetrc:/etc/wgetrc" "$scratch/passwd:/uploads/.keep")
# Debian's programs. Its static busybox prefers its own applets in its shell, and its wget with -T crashes: dash and GNU wget.
programs=(bash:bash curl:curl dig:dig nslookup:nslookup host:host ss:ss ip:ip iperf:iperf iperf3:iperf3 getent:getent tar:tar conntrack:conntrack wget:wget
  dash:sh nc.openbsd:nc)
busybox=$(command -v busybox)
for a in $("$busybox" --list); do
  case " ${programs[*]##*:} busybox " in *" $a "*) ;; *) files+=("->busybox:/bin/$a") ;; esac
done
libraries=()
for p in busybox:busybox "${programs[@]}"; do
  file=$(readlink -f "$(PATH=$PATH:/usr/sbin:/sbin command -v "${p%%:*}")")
  files+=("$file:/bin/${p##*:}")
  mapfile -t -O ${#libraries[@]} libraries < <(ldd "$file" 2>/dev/null | grep -oP '\s\K/\S+')
done
for l in $(printf '%s\n' "${libraries[@]}" | sort -u); do files+=("$l:$l"); done

image() { # KIND ENTRYPOINT COMMAND
  "$scratch/mkimage" -out "$out/suite-$1.tar" -name "e2e.test/suite-$1:1" -entrypoint "$2" -cmd "$3" "${files[@]}"
}
image agnhost /agnhost pause
image shell "" sh
image web /agnhost test-webserver
image pause /pause ""
image regression /regression-issue-74839 ""
echo "$cache"
