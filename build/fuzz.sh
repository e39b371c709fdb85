#!/usr/bin/env bash
# Runs every fuzz target of the modules of go.work for the given time each: build/fuzz.sh 20s
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:?time per target, e.g. 20s}

grep -rlE '^func Fuzz' --include='*_test.go' . | sort | while read -r file; do
  grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | awk '{print $2}' | while read -r target; do
    echo "== $target in $(dirname "$file")"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$(dirname "$file")"
  done
done
