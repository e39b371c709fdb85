#!/bin/sh
# dpkg: configure [OLD-VERSION]; rpm: 1 (first installation) or 2 (upgrade).
set -e
case "$1" in configure) old=$2 ;; 1) old= ;; 2) old=some ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  [ -z "$old" ] || systemctl try-restart edgemesh-relay.service
fi
if [ -z "$old" ]; then
  echo "edgemesh-relay: 'edgemesh-relay id' prints the relay's peer ID; put cluster.yaml into /etc/edgemesh, then"
  echo "'edgemesh-relay install'."
fi
