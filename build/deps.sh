#!/usr/bin/env bash
# Installs what the demo and the tests call, by Debian package name, if it is not there yet.
# Arguments name more of it, as COMMAND:PACKAGE.
set -euo pipefail

# command → package
needs=(iptables:iptables nft:nftables ip:iproute2 ping:iputils-ping conntrack:conntrack
       tcpdump:tcpdump iperf3:iperf3 curl:curl jq:jq sysctl:procps ethtool:ethtool miniupnpd:miniupnpd-nftables "$@")

missing=()
for n in "${needs[@]}"; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${n%%:*}" >/dev/null || missing+=("${n##*:}")
done
# Images are made from signed Debian packages.
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
[ ${#missing[@]} -gt 0 ] || exit 0

echo "installing: ${missing[*]}"
if [ "$(id -u)" != 0 ]; then
  echo "these packages are missing and this is not root: run  sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "apt-get could not install: ${missing[*]}" >&2
  exit 1
fi
