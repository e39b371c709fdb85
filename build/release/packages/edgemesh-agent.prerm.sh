#!/bin/sh
# dpkg: remove, upgrade NEW-VERSION, deconfigure …; rpm: 0 (removal) or 1 (upgrade).
set -e
case "$1" in remove|0) ;; *) exit 0 ;; esac
record=/var/lib/edgemesh/install.json # what `edgemesh-agent install` did
if [ -e $record ] && ! grep -q '"form": "daemonset"' $record; then
  echo "edgemesh-agent: this host also has a unit or a static pod of 'edgemesh-agent install': run 'edgemesh-agent uninstall'" >&2
  echo "first, then remove the package again" >&2
  exit 1
fi
# Interfaces, routes, rules and the CNI configuration go with the program; the node's key stays. A running agent keeps
# cleanup from beginning, and a configuration that cannot be read is found before the agent is stopped.
said=$(/usr/bin/edgemesh-agent cleanup 2>&1) && code=0 || code=$?
if [ "$code" = 2 ]; then
  echo "$said" >&2
  echo "edgemesh-agent: nothing was changed, and the package stays: fix this, then remove it again" >&2
  exit 1
fi
# In the daemonset form kubelet reports an address that disappears with the bridge.
[ ! -e $record ] || /usr/bin/edgemesh-agent uninstall
again=
if [ -d /run/systemd/system ]; then
  if systemctl --quiet is-enabled edgemesh-agent.service 2>/dev/null; then again=enable; fi
  if systemctl --quiet is-active edgemesh-agent.service 2>/dev/null; then again="$again start"; fi
  systemctl disable --now edgemesh-agent.service
fi
if [ "$code" != 0 ] && ! /usr/bin/edgemesh-agent cleanup; then
  # The package stays, and so does what its agent did.
  for verb in $again; do systemctl "$verb" edgemesh-agent.service || true; done
  echo "edgemesh-agent: the host could not be cleaned, so the package stays${again:+, and its agent runs as before}. Fix what the" >&2
  echo "error above says (an agent in a pod, or one that was started by hand, may still run here), then remove it again" >&2
  exit 1
fi
