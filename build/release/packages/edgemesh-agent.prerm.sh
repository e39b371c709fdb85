#!/bin/sh
# dpkg: remove, upgrade NEW-VERSION, deconfigure …; rpm: 0 (removal) or 1 (upgrade).
set -e
case "$1" in remove|0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
  systemctl disable --now edgemesh-agent.service
fi
# Interfaces, routes, rules and the CNI configuration go with the program; the node's key stays.
/usr/bin/edgemesh-agent cleanup || {
  echo "edgemesh-agent: the host is not clean (see above), so the package stays: stop the agent, then remove it again" >&2
  exit 1
}
