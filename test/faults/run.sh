#!/usr/bin/env bash
# Puts each fault of this directory into a copy of the tree, one at a time, and says which test catches it.
#
#   test/faults/run.sh own|unit|test|all [NN …]     make faults TIER=unit ONLY='05 17'
#
# own: the tests of the fault's package. unit: then those of the packages that depend on it, the nearest first. test: then the demo and the
# end-to-end tests of make test. all: then those of make test-all, and the Kubernetes API's. A fault counts as caught if a test fails
# twice. Two packages' tests take minutes with builds: 40 faults take an hour with unit, several with all. Prints a line for each fault,
# and how many were caught; exits with 1 if one was missed.
#
# A fault is a file NN-name.patch: a sentence that says what is wrong, a line "package: DIRECTORY", an empty line, and the patch.
set -euo pipefail
cd "$(dirname "$0")/../.."
tier=${1:-unit}
case $tier in own | unit | test | all) shift || true ;; *) echo "usage: test/faults/run.sh own|unit|test|all [NN …]" >&2; exit 2 ;; esac
patches=()
for p in test/faults/*.patch; do
  n=$(basename "$p"); n=${n%%-*}
  if [ $# -eq 0 ] || [[ " $* " == *" $n "* ]]; then patches+=("$PWD/$p"); fi
done
[ ${#patches[@]} -gt 0 ] || { echo "no fault has one of the numbers $*" >&2; exit 2; }

tmp=$(mktemp -d)
tree=$tmp/tree
end() {
  git worktree remove --force "$tree" 2>/dev/null || true
  rm -rf "$tmp"
}
trap end EXIT
trap 'exit 130' INT TERM
git worktree add --quiet --detach "$tree" HEAD
cd "$tree"
export EDGEMESH_NOBUILD=1

# fails reports whether a go test with these arguments fails, and fails again with the same tests alone; by has what failed.
by=
fails() { # PACKAGE [FLAG…]
  local names
  if go test -vet=off -count=1 -timeout 20m "${@:2}" "$1" >"$tmp/out" 2>&1; then return 1; fi
  names=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\) .*/\1/p' "$tmp/out" | sort -u | paste -sd'|')
  by="$1 ${names:-panics}"
  ! go test -vet=off -count=1 -timeout 20m ${names:+-run "^($names)\$"} "$1" >"$tmp/out" 2>&1
}

# near lists the packages of make test that depend on package $1, those in its directory and its parents' first.
near() {
  go list -f '{{.ImportPath}} {{.Deps}} {{.TestImports}} {{.XTestImports}}' ./agent/... ./cni/... ./relay/... ./tunnel/... ./internal/... |
    awk -v p="$1" '{gsub(/[][]/, " ")} $1 != p && index($0 " ", " " p " ") {
      n = split(p, a, "/"); m = split($1, b, "/"); for (i = 1; i <= n && a[i] == b[i]; i++); print n + m - 2 * i, $1}' | sort -n | cut -d' ' -f2
}

caught() { # PACKAGE
  local p
  ! fails "$1" || return 0
  [ $tier != own ] || return 1
  for p in $(near "$1"); do ! fails "$p" || return 0; done
  [ $tier != unit ] || return 1
  make -s tools >/dev/null
  for p in edgemesh/test/demo edgemesh/test/e2e; do ! fails "$p" -parallel 4 || return 0; done
  [ $tier != test ] || return 1
  export EDGEMESH_TIER=all
  for p in edgemesh/test/e2e edgemesh/test/kubeapi edgemesh/test/manifests edgemesh/cni edgemesh/agent/cri; do
    if fails "$p" -parallel 4; then unset EDGEMESH_TIER; return 0; fi
  done
  unset EDGEMESH_TIER
  return 1
}

n=0
missed=()
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch) start=$SECONDS
  package=$(sed -n 's/^package: //p' "$patch" | head -1)
  git reset --quiet --hard && git clean -fdq -e bin
  if ! git apply "$patch" || ! go build ./agent/... ./cni/... ./relay/... ./tunnel/...; then
    echo "$name no longer applies or compiles: make the same fault in today's code, or remove it" >&2
    missed+=("$name")
    continue
  fi
  if caught "edgemesh/$package"; then
    n=$((n + 1))
    echo "$name: caught by $by ($((SECONDS - start)) s)"
  else
    missed+=("$name")
    echo "$name: MISSED ($((SECONDS - start)) s): $(head -1 "$patch")"
  fi
done
echo "tier $tier: $n of ${#patches[@]} caught"
[ ${#missed[@]} -eq 0 ]
