#!/bin/sh
# dpkg: remove, upgrade NEW-VERSION, deconfigure …; rpm: 0 (removal) or 1 (upgrade).
set -e
case "$1" in remove|0) ;; *) exit 0 ;; esac
if [ -d /run/systemd/system ]; then
  systemctl disable --now edgemesh-relay.service
fi
