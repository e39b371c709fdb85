#!/usr/bin/env bash
# The programs that test/bench compares with, each from a module of its own with exact versions, into bin/
# (or the directory that is the argument).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../bin}
mkdir -p "$bin"
bin=$(cd "$bin" && pwd)
export CGO_ENABLED=0 GOWORK=off
echo "build bin/wireguard-go bin/nebula bin/nebula-cert"
(cd "$here/wireguard" && go build -o "$bin/wireguard-go" golang.zx2c4.com/wireguard)
(cd "$here/nebula" && go build -o "$bin/" github.com/slackhq/nebula/cmd/nebula github.com/slackhq/nebula/cmd/nebula-cert)
