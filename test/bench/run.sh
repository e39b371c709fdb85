#!/usr/bin/env bash
# Throughput and cost of one flow beside plain veth, VXLAN and wireguard-go, then
# allocations per operation on the packet's way. Arguments go to the bench program;
# with -link it measures over a slow, long and lossy link instead, with -packets the
# rate of datagrams, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ "$(id -u)" != 0 ]; then
  echo "make bench needs root: it makes network namespaces (removed at the end). Try: sudo make bench" >&2
  exit 1
fi
export CGO_ENABLED=0
echo "build bin/wireguard-go"
(cd test/bench/wireguard && go build -o ../../../bin/wireguard-go golang.zx2c4.com/wireguard)
go build -o bin/bench ./test/bench
bin/bench "$@"
case " $* " in *" -link "* | *" -packets "*) exit ;; esac

echo
echo "Packet's way in our own code, per operation:"
go test -run '^$' -bench . -benchmem -benchtime "${BENCHTIME:-200ms}" ./tunnel/... |
  awk '/^pkg:/ { sub("edgemesh/", "", $2); pkg = $2 }
       /^Benchmark/ {
         ns = mb = b = allocs = "-"
         for (i = 3; i <= NF; i++) {
           if ($i == "ns/op") ns = $(i - 1)
           if ($i == "MB/s") mb = $(i - 1)
           if ($i == "B/op") b = $(i - 1)
           if ($i == "allocs/op") allocs = $(i - 1)
         }
         name = $1; sub("^Benchmark", "", name); sub("-[0-9]+$", "", name)
         printf "%-12s  %-34s %10s ns  %9s MB/s  %5s B  %3s allocs\n", pkg, name, ns, mb, b, allocs
       }
       /^(FAIL|---)/ { print; bad = 1 }
       END { exit bad }'
