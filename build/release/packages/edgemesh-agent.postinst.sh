#!/bin/sh
# dpkg: configure [OLD-VERSION]; rpm: 1 (first installation) or 2 (upgrade).
set -e
case "$1" in configure) old=$2 ;; 1) old= ;; 2) old=some ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  for other in systemd-networkd NetworkManager; do # the package has a file for each that keeps it off the agent's interfaces
    ! systemctl --quiet is-active $other.service 2>/dev/null || systemctl reload $other.service || true
  done
  # Pods, routes and rules stay while the agent restarts.
  [ -z "$old" ] || systemctl try-restart edgemesh-agent.service
fi
if [ -e /etc/dhcpcd.conf ] && ! grep -q '^denyinterfaces.*vethem' /etc/dhcpcd.conf; then
  echo "edgemesh-agent: dhcpcd would configure pods' interfaces: begin /etc/dhcpcd.conf with the line 'denyinterfaces edgemesh-* vethem*'"
fi
if [ -z "$old" ]; then
  echo "edgemesh-agent: run 'edgemesh-agent init', list relays and nodes in /etc/edgemesh/cluster.yaml, then"
  echo "'systemctl enable --now edgemesh-agent'."
fi
