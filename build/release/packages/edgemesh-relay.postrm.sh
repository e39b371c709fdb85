#!/bin/sh
# dpkg: remove, purge, upgrade …; rpm: 0 or 1. rpm has no purge: the key stays.
set -e
if [ "$1" = purge ]; then
  rm -rf /var/lib/edgemesh-relay /var/lib/private/edgemesh-relay
  rmdir /etc/edgemesh 2>/dev/null || true # cluster.yaml is the administrator's
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
