#!/bin/bash
# A Debian system of its own in this network namespace: host.sh NAME ROOT.tar-UNPACKED DIRECTORY. It is process 1 of its own
# process namespace, so all it starts ends with it. Called by the test.
set -euo pipefail
name=$1 base=$2 dir=$3
hostname "$name"
mount -t tmpfs tmpfs "$dir"
mkdir "$dir"/{up,work,root}
mount -t overlay overlay -o "lowerdir=$base,upperdir=$dir/up,workdir=$dir/work" "$dir/root"
cd "$dir/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p run/systemd/system run/lock
echo "127.0.0.1 localhost $name" >etc/hosts
# Where systemd does not run, this does what a package's scripts and the tutorial ask of it, with the unit's own commands.
cat >usr/bin/systemctl <<'SH'
#!/bin/bash
set -eu
[ "$1" != --quiet ] || shift
verb=$1 unit=${!#} file=/usr/lib/systemd/system/${!#}
unit=${unit%.service} file=/usr/lib/systemd/system/$unit.service pid=/run/$unit.pid
running() { [ -e $pid ] && kill -0 "$(<$pid)" 2>/dev/null; }
stop() {
  running || return 0
  kill "$(<$pid)"
  for _ in {1..400}; do
    running || return 0
    sleep 0.05
  done
  echo "$unit does not end" >&2
  exit 1
}
start() {
  [ -e "$file" ] || { echo "restarted" >>"/run/$unit.log"; exit; } # of another program, such as kubelet
  while read -r command; do ${command#[+-]}; done < <(sed -n 's/^ExecStartPre=//p' $file)
  if grep -q ^StateDirectory= $file; then mkdir -p -m 0700 "/var/lib/$(sed -n 's/^StateDirectory=//p' $file)"; fi
  setsid $(sed -n 's/^ExecStart=//p' $file) </dev/null >>/var/log/$unit.log 2>&1 &
  echo $! >$pid
}
case $verb in
  daemon-reload) ;;
  enable) touch "/run/$unit.enabled"; running || start ;;
  disable) rm -f "/run/$unit.enabled"; stop ;;
  is-enabled) [ -e "/run/$unit.enabled" ] ;;
  is-active) running ;;
  start) running || start ;;
  restart) stop; start ;;
  try-restart) if running; then stop; start; fi ;;
  *) echo "systemctl $*: not known here" >&2; exit 1 ;;
esac
SH
chmod +x usr/bin/systemctl
touch run/ready
exec chroot . bash -c 'while :; do sleep 3600 & wait $!; done' # which reaps what its programs leave
