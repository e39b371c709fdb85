#!/usr/bin/env bash
# One node.
#   node.sh start|cut|reboot NODE               its power; cut and reboot lose everything but the disk
#   node.sh exec NODE COMMAND…                   in all its namespaces
#   node.sh stop-service|start-service|restart-service NODE SERVICE
. "$(dirname "$0")/lib.sh"
op=${1:?} N=${2:?}
shift 2
D=$RUN/nodes/$N

# Left-over kubepods make the next kubelet wait for a minute.
no_cgroups() {
  local h
  for h in /sys/fs/cgroup/*/; do
    [ ! -d "$h$TAG/$N" ] || find "$h$TAG/$N" -depth -type d -exec rmdir {} +
  done
}
# Puts this shell into the node's own cgroup in every hierarchy.
cgroups() {
  local m t g f
  while read -r _ m t _; do
    case $t in cgroup | cgroup2) ;; *) continue ;; esac
    case $m in /sys/fs/cgroup/*) ;; *) continue ;; esac
    for g in "$m/$TAG" "$m/$TAG/$N"; do
      mkdir -p "$g"
      for f in cpuset.cpus cpuset.mems; do
        [ ! -e "$g/$f" ] || [ -n "$(cat "$g/$f")" ] || cat "$(dirname "$g")/$f" >"$g/$f"
      done
    done
    echo $BASHPID >"$g/cgroup.procs"
  done </proc/mounts
}
alive() { [ -e "$D/init.pid" ] && kill -0 "$(node_pid "$N")" 2>/dev/null; }
start() {
  ! interrupted || die "interrupted"
  if alive; then die "$N is running"; fi
  mkdir -p "$D/log" "$D/disk"
  "$SCRIPTS/net.sh" plug "$N"
  (
    cgroups
    exec setsid nsenter --net="/run/netns/$TAG-$N" unshare -m -u -i -p -C -f --kill-child --mount-proc \
      "$SCRIPTS/node-init.sh" "$N" </dev/null >>"$D/log/init.log" 2>&1
  ) &
  local u=$! c=
  disown
  # The child of unshare that is PID 1 in its namespace is the node.
  until [ -n "$c" ] && awk '/^NSpid:/{exit !(NF > 2 && $NF == 1)}' "/proc/$c/status" 2>/dev/null; do
    kill -0 $u 2>/dev/null || die "$N: see $D/log/init.log"
    sleep 0.05
    c=$(tr -d ' ' <"/proc/$u/task/$u/children" 2>/dev/null) || true
  done
  echo "$c" >"$D/init.pid"
}
cut_power() {
  if alive; then
    local p
    p=$(node_pid "$N")
    kill -9 "$p"
    wait_for 30 bash -c "! kill -0 $p" || die "$N did not die"
  fi
  rm -f "$D/init.pid"
  wait_for 30 no_cgroups || die "cgroups of $N are busy"
  "$SCRIPTS/net.sh" unplug "$N"
}
case $op in
start) start ;;
cut) cut_power ;;
reboot) cut_power; start ;;
exec) on "$N" "$@" ;;
stop-service) on "$N" sh -c "touch /run/svc/$1.down; kill \$(cat /run/svc/$1.pid)" ;;
start-service) on "$N" rm -f "/run/svc/$1.down" ;;
restart-service) on "$N" sh -c "kill \$(cat /run/svc/$1.pid)" ;;
*) die "unknown $op" ;;
esac
