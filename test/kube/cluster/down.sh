#!/usr/bin/env bash
# Ends the cluster and removes every trace of it but its logs, which go to LOGS.
. "$(dirname "$0")/lib.sh"
set +e
[ -d "$RUN" ] || exit 0
export GOING_DOWN=1
exec 8>"$RUN/.down" # seen by up.sh, see interrupted
flock 8             # Close and the watcher may both be here
[ -d "$RUN" ] || exit 0
exec 9>"$RUN/.up"
flock -w 60 9
status=0
for n in $ALL_NODES; do
  [ ! -d "$RUN/nodes/$n" ] || "$SCRIPTS/node.sh" cut "$n" || status=1
done
for p in apiport relay; do # ours, if their command line has this run's directory
  pid=$(cat "$RUN/$p.pid" 2>/dev/null) || continue
  ! grep -qF "$RUN" "/proc/$pid/cmdline" 2>/dev/null || kill "$pid"
done
for n in $(ip netns list | awk '{print $1}' | grep "^$TAG-"); do
  for pid in $(ip netns pids "$n"); do kill -9 "$pid"; done
  ip netns del "$n" || status=1
done
for h in /sys/fs/cgroup/*/; do
  [ ! -d "$h$TAG" ] || find "$h$TAG" -depth -type d -exec rmdir {} + || status=1
done
[ ! -e "$RUN/sysctl.saved" ] || sysctl -qp "$RUN/sysctl.saved"
if [ -n "${LOGS:-}" ]; then
  for n in "$RUN"/nodes/*/; do
    name=$(basename "$n")
    mkdir -p "$LOGS/$name"
    cp -r "$n/log/." "$LOGS/$name/" 2>/dev/null
    [ ! -d "$n/disk/up/var/log/pods" ] || cp -rL "$n/disk/up/var/log/pods" "$LOGS/$name/" 2>/dev/null
  done
  cp "$RUN"/*.log "$LOGS/" 2>/dev/null
fi
rm -rf "$RUN" || status=1
exit $status
