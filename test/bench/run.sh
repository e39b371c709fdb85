#!/usr/bin/env bash
# Builds what test/bench compares with, and runs it. Arguments go to the bench program: -h lists them.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(id -u)" != 0 ]; then
  echo "make bench needs root: it makes network namespaces (removed at the end). Try: sudo make bench" >&2
  exit 1
fi
test/bench/build.sh
CGO_ENABLED=0 go build -o bin/bench ./test/bench
exec bin/bench "$@"
