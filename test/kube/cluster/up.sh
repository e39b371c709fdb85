#!/usr/bin/env bash
# Brings the cluster up until every node is registered. Nodes stay NotReady: they have
# no pod network yet. LOCAL_PORT is the API server's on this machine's 127.0.0.1.
. "$(dirname "$0")/lib.sh"
[ -d /sys/fs/cgroup/memory ] || die "needs a machine with cgroup v1 hierarchies: nodes get a tree of their own in each"
exec 9>"$RUN/.up"
flock 9 # down.sh waits for it; nodes and servers must not inherit it
start=$(date +%s.%N)
echo "$FAMILIES" >"$RUN/families"
lap() {
  ! interrupted || die "interrupted"
  log "+$(echo "$(date +%s.%N) $start" | awk '{printf "%.1f", $1 - $2}') s: $*"
}

# kubelet sets these machine-wide; down.sh puts them back.
for s in vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys \
  kernel.keys.root_maxbytes fs.inotify.max_user_instances fs.inotify.max_user_watches; do
  echo "$s=$(sysctl -n $s)"
done >"$RUN/sysctl.saved"
sysctl -qw fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=524288 # all nodes are one user

"$SCRIPTS/net.sh" up
"$SCRIPTS/net.sh" plug relay
"$SCRIPTS/pki.sh"
echo "${PROXY_MODE:-iptables}" >"$RUN/proxy-mode"
masks="--node-cidr-mask-size 24"
[ "$FAMILIES" = ipv4 ] || masks="--node-cidr-mask-size-ipv4 24 --node-cidr-mask-size-ipv6 64"
echo "--allocate-node-cidrs --cluster-cidr $CLUSTER_CIDR $masks" >"$RUN/kcm-flags"
setsid "$RUN/apiport" -namespace "$TAG-cloud" -listen "127.0.0.1:${LOCAL_PORT:?}" </dev/null >"$RUN/apiport.log" 2>&1 9>&- &
echo $! >"$RUN/apiport.pid"
disown
lap "networks and certificates"
"$SCRIPTS/node.sh" start cloud 9>&-
wait_for 90 on cloud test -e /run/svc/.control-plane || die "control plane not ready: $RUN/nodes/cloud/log"
lap "control plane ready"
first_block() { [ "$(k get node cloud -o 'jsonpath={.spec.podCIDR}')" = fd00:244::/64 ]; }
[ "$FAMILIES" != ipv6,ipv4 ] || wait_for 90 first_block || die "the cloud node has not the first block, where the API server's Service ends"
[ ! -e "$SCRIPTS/$FLAVOUR.sh" ] || "$SCRIPTS/$FLAVOUR.sh"
for n in $FIRST_NODES; do [ "$n" = cloud ] || "$SCRIPTS/node.sh" start "$n" 9>&-; done
for n in $FIRST_NODES; do wait_for 90 k get node "$n" || die "$n did not register: $RUN/nodes/$n/log"; done
k label node cloud node-role.kubernetes.io/control-plane= >/dev/null # as kubeadm does
lap "all nodes registered"
