#!/usr/bin/env bash
# Installs the Debian packages that the demo and make test need, with the argument all those of make test-all, and others that the
# arguments name, unless their commands or files exist: build/deps.sh [all] [COMMAND:PACKAGE or FILE:PACKAGE …]. It lists them before, starts no service, and
# notes what it installed, for `make clean`.
set -euo pipefail

# command or file → package
needs=(iptables:iptables nft:nftables ip:iproute2 ping:iputils-ping sysctl:procps tcpdump:tcpdump curl:curl conntrack:conntrack)
for a in "$@"; do
  case $a in
    all) # proxies, routers and NAT64 of the end-to-end tests; containers; the race detector; images from signed Debian packages
      needs+=(ipset:ipset miniupnpd:miniupnpd-nftables tinyproxy:tinyproxy-bin tayga:tayga iperf3:iperf3 containerd:containerd
        runc:runc gcc:gcc /usr/include/stdlib.h:libc6-dev /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring mmdebstrap:mmdebstrap) ;;
    *:*) needs+=("$a") ;;
    *) echo "build/deps.sh: $a is neither all nor COMMAND:PACKAGE" >&2; exit 2 ;;
  esac
done

missing=()
look() {
  local n
  missing=()
  for n in "${needs[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "${n%%:*}" >/dev/null || [ -f "${n%%:*}" ] || missing+=("${n##*:}")
  done
}

look
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ]; then
  echo "missing packages, and not root: run  sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
if ! command -v apt-get >/dev/null; then
  echo "no apt-get here: install what these Debian packages have, then run this again: ${missing[*]}" >&2
  exit 1
fi

exec 9>"${TMPDIR:-/tmp}/edgemesh-deps.lock"
if ! flock -n 9; then # of two runs at the same time, the second finds everything installed
  echo "another run is installing packages; waiting for it"
  flock 9
fi
look
[ ${#missing[@]} -gt 0 ] || exit 0
echo "installing from Debian: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# Asked before a package starts a service; one that a killed run left is ours as well.
policy=/usr/sbin/policy-rc.d ours='# of edgemesh, while it installs packages'
if [ -e $policy ] && ! grep -qxF "$ours" $policy; then policy=; fi
trap 'rm -f "$log" $policy' EXIT
trap 'exit 130' INT TERM HUP
[ -z "$policy" ] || { printf '#!/bin/sh\n%s\nexit 101\n' "$ours" >$policy && chmod 755 $policy; }
# If the mirror is unreachable, the lists may still be recent: only the installation must succeed.
apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
{ dpkg --configure -a || true; "${apt[@]}" update || true; } >"$log" 2>&1 # the first: an installation was interrupted
note=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh
mkdir -p "$note"
printf '%s\n' "${missing[@]}" >>"$note/installed"
# progress says every 5 s how far apt is, which prints into the log.
progress() {
  while sleep 5; do
    awk -v s=$SECONDS '/ newly installed/ {of = $3; got = set = 0} /^Get:/ {got++} /^Setting up/ {set++}
      END {if (of) printf "packages: %d downloaded, %d of %d installed (%d s)\n", got, set, of, s}' "$log"
  done
}
progress 9>&- &
trap 'kill %% 2>/dev/null; rm -f "$log" $policy' EXIT
if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
  tail -n 20 "$log" >&2
  if grep -q 'No space left\|not enough free space' "$log"; then
    echo "no space left for the packages: free some, and run this again" >&2
  else
    echo "apt-get could not install: ${missing[*]}. Check the network and apt's proxy; without a network install them beforehand, then apt is not called" >&2
  fi
  exit 1
fi
