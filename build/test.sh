#!/usr/bin/env bash
# Runs the tests of one tier; package test/tier says what each has.
#
#   build/test.sh test   gofmt; unit, fuzz-seed and namespace tests, vet beside them; the demo; end to end: what nothing faster catches
#   build/test.sh rest   what tier all has beyond it: the other end-to-end tests, the API, manifests, images, releases, the bench's short
#                        form, the race detector, 32 bits, staticcheck. Builds Kubernetes' programs once, into a cache
#
# Needs root: the suites make network namespaces. Tests that were skipped are listed at the end, by tier and with the reason, also
# when the run fails; then those that failed.
#
# A failed test of a suite that uses network namespaces is tried once more at the end, alone. If it passes then, the run
# passes and lists it as FLAKY: a fault to be found, in the test or in what it tests. If test passes, and the working tree has no changes,
# ${XDG_CACHE_HOME:-~/.cache}/edgemesh/tested-test gets the commit; if rest does after it, edgemesh/tested.
#
# A run cleans up after itself, even if make or this script is killed: every step and every test ends with
# its parent, a lab's watcher removes its namespaces, and temporary files are in one directory, which the
# next run removes if this one could not. Simultaneous runs have a directory each.
set -euo pipefail
cd "$(dirname "$0")/.."

tier=${1:-}
case $tier in test | rest) ;; *) echo "usage: build/test.sh test|rest" >&2; exit 2 ;; esac
if [ "$(id -u)" != 0 ]; then
  echo "make test needs root: it makes network namespaces (they are removed at the end, also on Ctrl-C)" >&2
  exit 1
fi

base=${TMPDIR:-/tmp}
groups=() # process groups of what runs

# sweep removes what a run left in its directory.
sweep() {
  local d c
  [ ! -x bin/podtool ] || TMPDIR=$1 bin/podtool lab reap >/dev/null || true
  awk -v d="$1/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
  for d in "$1"/emcd*/; do # containerd's, each with cgroups of the same name
    for c in /sys/fs/cgroup/{,*/}"$(basename "$d")"; do
      [ ! -d "$c" ] || find "$c" -depth -type d -exec rmdir {} + || true
    done
  done
  rm -rf --one-file-system "$1"
}

# A run holds its directory's lock as long as any of its processes lives.
exec 8>"$base/emtest.lock"
flock 8
for d in "$base"/emtest.*/; do
  d=${d%/}
  [ -d "$d" ] || continue
  (if flock -n 9; then sweep "$d" || true; fi) 9>"$d/lock"
done
TMPDIR=$(mktemp -d "$base/emtest.XXXXXX")
export TMPDIR
chmod 755 "$TMPDIR" # some programs run as another user
exec 9>"$TMPDIR/lock"
flock 9
exec 8>&-

stop() {
  local g
  for g in "${groups[@]}"; do kill -TERM -- "-$g" 2>/dev/null || true; done
  for _ in {1..50}; do # the watchers of labs
    [ ${#groups[@]} -gt 0 ] || break
    compgen -G "$TMPDIR/em*/owner" >/dev/null || break
    sleep 0.2
  done
  summary
  sweep "$TMPDIR"
}
# summary lists what was skipped, also when the run failed or was stopped.
summary() {
  [ ! -x "$TMPDIR/testlog" ] || "$TMPDIR/testlog" summary -results "$TMPDIR/results" || true
}
trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

# begin starts a command in a session of its own; finish waits for all of them.
begin() {
  setsid setpriv --pdeathsig KILL "$@" &
  groups+=($!)
}
finish() {
  local g failed=
  for g in "${groups[@]}"; do wait "$g" || failed=1; done
  groups=()
  [ -z "$failed" ]
}

# gotest [-v] FLAG… -- PACKAGE… runs tests and keeps their results (test/testlog); -v shows everything they print.
# Suites whose tests make network namespaces, and that of the real API server: what fails there is tried once more.
namespaces=$(grep -rlE 'nstest"|edgemesh/test/lab|vishvananda/netns|CLONE_NEWNET|podtool|"netns"' --include='*_test.go' agent cni internal/cni relay tunnel test | xargs -n1 dirname | sort -u |
  paste -sd'|')
export namespaces="^edgemesh/($namespaces|test/kubeapi)$"
gotest() {
  local show=()
  [ "$1" != -v ] || { show=(-v); shift; }
  setpriv --pdeathsig KILL "$TMPDIR/testlog" run "${show[@]}" -results "$TMPDIR/results" -retry "$namespaces" -- \
    setpriv --pdeathsig KILL go test -json -vet=off -toolexec 'nice -n 10' -exec "setpriv --pdeathsig TERM" "$@"
}
skipped() { # REASON PACKAGE TEST: what go test does not report itself
  printf '{"Kind":"skipped","Text":"%s","Package":"edgemesh/%s","Test":"%s"}\n' "$@" >>"$TMPDIR/results"
}

# What goes beside the unit tests has a lower priority than they, compiling the lowest. Where the kernel shares
# processors among sessions first, nice counts only within one, and the session's own priority is set.
priority() { renice -n "$1" -p $$ >/dev/null; { echo "$1" >/proc/self/autogroup; } 2>/dev/null || true; }
checks() { # where int has 32 bits: types, and the analyzer that depends on its size; not optimized, which takes long
  GOARCH=arm GOARM=7 go vet -gcflags='all=-N -l' -shift ./agent/... ./cni/... ./internal/{cni,keyfile,proxy}/... ./relay/... ./tunnel/...
}
small() { # unit tests with int of 32 bits: the packet's way, what is on disk, the kernel's structures
  local p packages=(./tunnel ./tunnel/{acks,epoch,inet,virtio,tun} ./tunnel/p2p/{carrier/sealed,carrier/socket,base/ladder,relay/relays/choice} ./internal/membership/{mesh,snapshot} ./agent/capture
    ./agent/host/{nft,rtnetlink,plan} ./internal/{cni/antispoof,cni/calls,cni/conf,rawio,memory,durable,endpoint,drain,processors})
  GOARCH=386 go build -o "$TMPDIR/testlog386" ./test/testlog
  local status=0
  "$TMPDIR/testlog386" summary -results /dev/null >/dev/null 2>&1 || status=$?
  if [ "$status" != 126 ]; then # "cannot execute"
    GOARCH=386 gotest -- "${packages[@]}"
    return
  fi
  echo "NOT TESTED: this kernel runs no programs of 32 bits (ia32_emulation): their tests' types are checked alone" >&2
  GOARCH=386 go vet "${packages[@]}"
  for p in "${packages[@]}"; do
    skipped 'NOT TESTED with int of 32 bits: this kernel runs no such programs' "${p#./}" all
  done
}
race() { # on the packet way
  local t long=(internal/cni/ipam/TestModel internal/cni/ipam/TestPowerCutEverywhere internal/cni/ipam/TestPowerCutAfterTwoKills internal/membership/file/TestLoadManyNodes)
  # go test does not say what -skip leaves out.
  for t in "${long[@]}"; do
    skipped 'with the race detector only: computes long, in one goroutine' "${t%/*}" "${t##*/}"
  done
  CGO_ENABLED=1 gotest -race -skip "^($(IFS='|'; echo "${long[*]##*/}"))\$" -timeout 15m -- ./tunnel ./internal/membership/mesh ./internal/membership/file ./internal/cni/ipam
}
# What make test-all compares with, and what judges: each is built once into a cache, by its version.
programs() {
  echo "building, once: etcd, kube-apiserver, kubectl and kube-controller-manager (4 to 20 minutes), helm, kubeconform, wireguard-go, Nebula"
  test/kubeapi/build.sh etcd kube-apiserver kubectl kube-controller-manager
  test/bench/build.sh
  build/tool.sh helm
  build/tool.sh kubeconform
}
lint() { # staticcheck alone: all of golangci-lint (make lint) takes eight times as long to build
  make --no-print-directory staticcheck
}
vet() { go vet "$@"; }
export namespaces
export -f gotest skipped priority checks small race lint programs vet
shell=(setpriv --pdeathsig KILL bash -euo pipefail -c)

export EDGEMESH_NOBUILD=1 # make has just built bin/

# commit prints what is in the working tree; nothing if that has changes, or git fails.
commit() { [ -n "$(git status --porcelain 2>&1)" ] || git rev-parse HEAD; }
tested=$(commit)
(cd test/testlog && go build -o "$TMPDIR/testlog" .)
tiers=$TMPDIR/tiers
go build -o "$tiers" ./test/cmd/tiers

# Suites that need the whole machine run one at a time.
alone='/test/lab|/test/demo|/test/e2e'
those() { sed 's#^\.#edgemesh#'; } # import paths of the directories that are its input
others='^edgemesh/(build|test/bench|test/kube|test/sim)(/|$)' # modules that make test does not compile
own() { go list -find work | grep -Ev "$others"; }

suite_test() {
  step "gofmt"
  local unformatted packages long t names
  unformatted=$(gofmt -l agent build cni internal relay test tunnel)
  if [ -n "$unformatted" ]; then
    printf 'not formatted; run gofmt -w on:\n%s\n' "$unformatted" >&2
    exit 1
  fi
  for t in all long; do
    while read -r p; do skipped "$("$tiers" reason $t)" "${p#./}" '*'; done < <("$tiers" packages $t)
  done

  step "compiling what the tests import"
  mapfile -t packages < <(own | grep -vxFf <({ "$tiers" packages all; "$tiers" packages long; } | those))
  build/compile.sh -test "${packages[@]}"

  step "unit tests, fuzz seeds, namespace tests of the packages, libp2p through NATs; vet beside them"
  # The longest first, four at a time: these mostly wait.
  long=(edgemesh/tunnel/p2p edgemesh/cni edgemesh/agent/host edgemesh/relay edgemesh/tunnel/p2p/carrier/socket edgemesh/agent/netcheck)
  mapfile -t t < <(printf '%s\n' "${packages[@]}" | grep -Ev "$alone" | grep -vxFf <(printf '%s\n' "${long[@]}"))
  # What runs beside each other inside a package mostly waits.
  begin "${shell[@]}" 'gotest "$@"' bash -p 4 -parallel 4 -timeout 20m -- "${long[@]}" "${t[@]}"
  begin "${shell[@]}" 'priority 10; vet "$@"' bash "${packages[@]}"
  finish

  step "the lab and the demo"
  begin "${shell[@]}" 'gotest "$@"' bash -p 1 -timeout 20m -- ./test/lab/... ./test/demo
  finish

  step "end to end: agents, relays and plugin in network namespaces"
  begin "${shell[@]}" 'gotest "$@"' bash -v -count=1 -parallel 4 -timeout 40m -- ./test/e2e/...
  finish
}

suite_rest() {
  export EDGEMESH_TIER=all
  local packages names dirs
  step "Kubernetes' programs; the race detector, vet and unit tests for 32 bits (arm, 386), staticcheck, vet of the other modules"
  # Two at a time: the programs alone do not fill two processors to their end.
  begin "${shell[@]}" 'programs'
  mapfile -t packages < <(go list -find work | grep -vxFf <(own); "$tiers" packages all | those | grep -Ev "$others")
  begin "${shell[@]}" 'failed=0; for c in race small checks lint; do "$c" || failed=1; done; vet "$@" || failed=1; exit $failed' bash "${packages[@]}"
  finish

  step "the Kubernetes API and the manifests; images, releases, the simulation, the benchmark's short form"
  mapfile -t packages < <("$tiers" packages all | grep -v '^./test/bench' | those) # these mostly wait
  begin "${shell[@]}" 'gotest "$@"' bash -p 3 -parallel 6 -timeout 25m -- "${packages[@]}"
  mapfile -t packages < <("$tiers" packages all | grep '^./test/bench' | those)
  begin "${shell[@]}" 'gotest "$@"' bash -p 1 -timeout 20m -- "${packages[@]}"
  finish

  step "the end-to-end tests and those of packages that make test leaves out"
  names=$("$tiers" tests all | awk '$1 != "./test/e2e" {print $2}' | paste -sd'|')
  mapfile -t dirs < <("$tiers" tests all | awk '$1 != "./test/e2e" {print $1}' | sort -u)
  begin "${shell[@]}" 'gotest "$@"' bash -run "^($names)\$" -p 1 -timeout 20m -- "${dirs[@]}"
  finish
  names=$("$tiers" tests all | awk '$1 == "./test/e2e" {print $2}' | paste -sd'|')
  begin "${shell[@]}" 'gotest "$@"' bash -v -count=1 -run "^($names)\$" -parallel 4 -timeout 40m -- ./test/e2e
  finish
}

"suite_$tier"

step "failed tests of suites with network namespaces, once more and alone"
begin "$TMPDIR/testlog" retry -results "$TMPDIR/results"
finish

if [ -n "$tested" ] && [ "$(commit)" = "$tested" ]; then
  cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh
  mkdir -p "$cache"
  if [ "$tier" = test ]; then
    echo "$tested" >"$cache/tested-test"
  elif [ "$(cat "$cache/tested-test" 2>/dev/null)" = "$tested" ]; then
    echo "$tested" >"$cache/tested"
  fi
fi

step "done"
