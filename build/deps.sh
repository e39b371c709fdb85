#!/usr/bin/env bash
# Installs what the demo and the tests call, by Debian package name, if it is not there yet.
# Arguments name more of it, as COMMAND:PACKAGE or FILE:PACKAGE.
set -euo pipefail

# command or file → package
needs=(iptables:iptables nft:nftables ip:iproute2 ping:iputils-ping conntrack:conntrack
       tcpdump:tcpdump iperf3:iperf3 curl:curl jq:jq sysctl:procps ethtool:ethtool miniupnpd:miniupnpd-nftables
       # Images are made from signed Debian packages.
       /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring "$@")

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
  echo "these packages are missing and this is not root: run  sudo apt-get install ${missing[*]}" >&2
  exit 1
fi

exec 9>"${TMPDIR:-/tmp}/edgemesh-deps.lock"
flock 9   # two runs that begin at once: the second finds everything there
look
[ ${#missing[@]} -gt 0 ] || exit 0
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The lists may be of today although the mirror is away: what installs is what counts.
apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
{ "${apt[@]}" update || true; } >"$log" 2>&1
if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "apt-get could not install: ${missing[*]}" >&2
  echo "Without a network, install them beforehand; the tests then ask apt for nothing." >&2
  exit 1
fi
