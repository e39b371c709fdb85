#!/usr/bin/env bash
# Downloads the modules and compiles the packages that the arguments name, patterns of go list, and shows how far it is: n of m.
# `build/compile.sh -test ./...` also compiles what their tests import. Nothing is linked or written but Go's caches, so that
# what follows finds everything compiled; an interrupted run continues where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go} # make exports it

fail() { echo "$*" >&2; exit 1; }
command -v "$go" >/dev/null || fail "no Go here: install version 1.21 or later (Debian and Ubuntu: apt-get install golang; or go.dev/dl), or, if it is there, run sudo env PATH=\"\$PATH\" make …, and run this again"

# shown prints a line of progress: over the last one on a terminal, else each 10 s and at the end (of m).
last=-10
shown() { # WHAT N M
  if [ -t 1 ]; then
    printf '\r%s: %d of %d ' "$@"
    [ "$2" -lt "$3" ] || echo
  elif [ "$2" -ge "$3" ] || [ $((SECONDS - last)) -ge 10 ]; then
    last=$SECONDS
    printf '%s: %d of %d (%d s)\n' "$@" "$SECONDS"
  fi
}

log=$(mktemp)
job=
end() { # also when interrupted: go ends, and its caches keep what is complete
  [ -z "$job" ] || kill "$job" 2>/dev/null || true
  rm -f "$log" "$log.list"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

# why says in one line what went wrong.
why() { # WHAT HINT
  if grep -q 'no space left on device' "$log"; then
    fail "no space left: free 3 GB for Go's caches ($("$go" env GOCACHE), $("$go" env GOMODCACHE)) and ${TMPDIR:-/tmp}, and run this again; it continues where it was"
  fi
  tail -n 20 "$log" >&2
  fail "$1: $2"
}

room() { # MB: refuses early what would end with half a build
  local d free need=$1
  for d in "$("$go" env GOCACHE)" "$("$go" env GOMODCACHE)" "${TMPDIR:-/tmp}"; do
    while [ ! -d "$d" ]; do d=$(dirname "$d"); done
    free=$(df -Pm "$d" | awk 'END {print $4}')
    [ "$free" -ge "$need" ] || fail "$d has $free MB free, and this needs $need: free some, or set GOCACHE, GOMODCACHE or TMPDIR to another disk, and run this again"
  done
}

# Modules: those of go.mod whose archives are not in the cache.
archives() {
  awk -v d="$("$go" env GOMODCACHE)/cache/download/" '
    $1 == "require" && $2 == "(" {in_list = 1; next}
    $1 == ")" {in_list = 0}
    in_list && $2 ~ /^v/ {
      path = $1; out = ""
      while (match(path, /[A-Z]/)) { out = out substr(path, 1, RSTART - 1) "!" tolower(substr(path, RSTART, 1)); path = substr(path, RSTART + 1) }
      print d out path "/@v/" $2 ".zip"
    }' go.mod
}
missing=()
for a in $(archives); do [ -f "$a" ] || missing+=("$a"); done
if [ ${#missing[@]} -gt 0 ]; then
  room $((200 + 8 * ${#missing[@]}))
  GOWORK=off "$go" mod download >"$log" 2>&1 &
  job=$!
  while kill -0 "$job" 2>/dev/null; do
    n=0
    for a in "${missing[@]}"; do [ ! -f "$a" ] || n=$((n + 1)); done
    [ "$n" -ge ${#missing[@]} ] || shown "downloading modules" "$n" ${#missing[@]}
    sleep 0.5
  done
  wait "$job" || why "modules could not be downloaded" "check the network, HTTPS_PROXY and GOPROXY ($("$go" env GOPROXY)), then run this again; it continues where it was"
  job=
  shown "downloading modules" ${#missing[@]} ${#missing[@]}
fi

# Packages: those that are not in the cache, without programs, which would be linked. The standard library's come along.
form='{{if and .Stale (ne .Name "main") (not .ForTest)}}{{if .Standard}}-{{else}}{{.ImportPath}}{{end}}{{end}}'
"$go" list -deps -f "$form" "$@" >"$log.list" 2>"$log" || { rm -f "$log.list"; why "go list $*" "fix what it says above"; }
mapfile -t packages < <(grep -v '^-$' "$log.list")
m=$(wc -l <"$log.list")
rm -f "$log.list"
[ ${#packages[@]} -gt 0 ] || exit 0
room $((200 + 2 * m))
"$go" build -v "${packages[@]}" >"$log" 2>&1 &
job=$!
while kill -0 "$job" 2>/dev/null; do
  n=$(wc -l <"$log")
  [ "$n" -ge "$m" ] || shown "compiling packages" "$n" "$m"
  sleep 0.5
done
wait "$job" || why "packages do not compile" "fix what the compiler says above"
job=
shown "compiling packages" "$m" "$m"
