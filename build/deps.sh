#!/usr/bin/env bash
# Installs the Debian packages that the demo and the tests need, unless their commands or files exist.
# Arguments name more of them, as COMMAND:PACKAGE or FILE:PACKAGE.
set -euo pipefail

# command or file → package
needs=(iptables:iptables nft:nftables ip:iproute2 ping:iputils-ping conntrack:conntrack
       tcpdump:tcpdump iperf3:iperf3 curl:curl jq:jq sysctl:procps ethtool:ethtool miniupnpd:miniupnpd-nftables tinyproxy:tinyproxy-bin tayga:tayga
       # Images are made from signed Debian packages.
       /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring mmdebstrap:mmdebstrap "$@")

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

exec 9>"${TMPDIR:-/tmp}/edgemesh-deps.lock"
flock 9   # of two runs at the same time, the second finds everything installed
look
[ ${#missing[@]} -gt 0 ] || exit 0
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# If the mirror is unreachable, the lists may still be recent: only the installation must succeed.
apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
{ "${apt[@]}" update || true; } >"$log" 2>&1
if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "apt-get could not install: ${missing[*]}" >&2
  echo "On a machine without network access install them beforehand; then apt is not called." >&2
  exit 1
fi
