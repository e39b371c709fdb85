#!/bin/sh
# dpkg: configure [OLD-VERSION]; rpm: 1 (first installation) or 2 (upgrade).
set -e
case "$1" in configure) old=$2 ;; 1) old= ;; 2) old=some ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # Pods, routes and rules stay while the agent restarts.
  [ -z "$old" ] || systemctl try-restart edgemesh-agent.service
fi
if [ -z "$old" ]; then
  echo "edgemesh-agent: run 'edgemesh-agent init', list relays and nodes in /etc/edgemesh/cluster.yaml, then"
  echo "'systemctl enable --now edgemesh-agent'."
fi
