#!/usr/bin/env bash
# PID 1 of a node. node.sh starts it in the node's network namespace and in new
# mount, UTS, IPC, PID and cgroup namespaces. It gives the node its own disk, an empty
# /run, its own cgroups, and starts what a machine's init starts: the control plane
# (cloud only), containerd, kubelet, kube-proxy, and the unit of the agent if the node
# has one. Its death is a power cut: the kernel kills every process of the node.
. "$(dirname "$0")/lib.sh"
N=$1 D=$RUN/nodes/$1

# --- the machine ---
hostname "$N"
mount --make-rprivate /
mount -t sysfs sysfs /sys # of this network namespace
mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
while IFS=: read -r _ ctl _; do
  [ -n "$ctl" ] || continue # the v2 hierarchy
  mkdir -p "/sys/fs/cgroup/${ctl#name=}"
  case $ctl in name=*) o=none,$ctl ;; *) o=$ctl ;; esac
  mount -t cgroup -o "$o" cgroup "/sys/fs/cgroup/${ctl#name=}"
done </proc/self/cgroup
for d in etc opt var usr/libexec usr/local; do # the disk: copy-on-write over the host's
  mkdir -p "$D/disk/up/$d" "$D/disk/work/$d"
  mount -t overlay -o "lowerdir=/$d,upperdir=$D/disk/up/$d,workdir=$D/disk/work/$d" overlay "/$d"
done
for d in containerd kubelet etcd yurthub; do # overlayfs cannot be an upperdir: real directories here
  mkdir -p "$D/disk/$d" "/var/lib/$d"
  mount --bind "$D/disk/$d" "/var/lib/$d"
done
if [ ! -e "$D/disk/formatted" ]; then # first boot: drop what this machine's packages left
  rm -rf /etc/cni /opt/cni /var/lib/cni /etc/edgemesh /var/lib/edgemesh /etc/kubernetes
  mkdir -p /opt/cni/bin /etc/cni/net.d /etc/kubernetes/manifests
  cp "$CNIBIN"/* /opt/cni/bin/ # as the package kubernetes-cni does
  cp "$PKI/node-$N.conf" /etc/kubernetes/kubelet.conf
  tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
  echo "$N" >/etc/hostname
  printf '127.0.0.1 localhost\n%s %s\n' "$(node_ip "$N")" "$N" >/etc/hosts
  echo 'options ndots:1' >/etc/resolv.conf
  if is_edge "$N" kubeedge; then
    mkdir -p /etc/kubeedge/{config,manifests,ca,certs} /var/lib/kubeedge
    install -m 600 "$D/edgecore.yaml" /etc/kubeedge/config/
  fi
  if is_edge "$N" openyurt; then # where YurtHub looks for kubelet's certificate
    mkdir -p /etc/kubernetes/pki /etc/kubernetes/cache "$D/disk/hubcache" /var/lib/kubelet/pki
    cp "$PKI/ca.crt" /etc/kubernetes/pki/
    cat "$PKI/node-$N.crt" "$PKI/node-$N.key" >/var/lib/kubelet/pki/kubelet-client-current.pem
    sed "s|server: [^,}]*|server: http://127.0.0.1:10261|; s|, certificate-authority-data: [^}]*||; s|user: {.*}}|user: {}}|" \
      "$PKI/node-$N.conf" >/etc/kubernetes/yurthub.conf
  fi
  touch "$D/disk/formatted"
fi
! is_edge "$N" openyurt || mount --bind "$D/disk/hubcache" /etc/kubernetes/cache
mount -t tmpfs -o mode=755 run /run # volatile: empty after a power cut
mount -t tmpfs shm /dev/shm
mkdir -p /run/svc /run/lock
cat /proc/sys/kernel/random/uuid >/run/boot_id # kubelet notices reboots by it
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
mount --make-rshared / # for mountPropagation in pods

# --- configuration of its services ---
kubeconf=/etc/kubernetes/kubelet.conf dns=$DNS_IP labels=e2e.test/site=$(node_site "$N") gates=
if is_edge "$N" openyurt; then # YurtHub sends no initial events: reflectors would wait forever
  kubeconf=/etc/kubernetes/yurthub.conf dns=$EDGE_DNS_IP labels+=,openyurt.io/is-edge-worker=true gates='featureGates: {WatchListClient: false}'
fi
cat >/run/containerd.toml <<T
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$IMG/pause:1"
  restrict_oom_score_adj = true # without CAP_SYS_RESOURCE runc dies of a lower one
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/run/certs.d"
T
mkdir -p "/run/certs.d/$REGISTRY" # without TLS
printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" >"/run/certs.d/$REGISTRY/hosts.toml"
cat >/run/kubelet.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false # kubelet >= 1.35 refuses cgroup v1 without this
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$PKI/ca.crt"}}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: ["${dns//,/\",\"}"]
resolvConf: /etc/resolv.conf
staticPodPath: /etc/kubernetes/manifests
failSwapOn: false
# All nodes share one disk and one memory: no eviction, no image collection.
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 5s
volumePluginDir: /var/lib/kubelet/volumeplugins
logging: {verbosity: 2}
$gates
Y
proxy_config() { # the mode is read at each start of the service
  cat <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: "$PKI/kube-proxy.conf"}
hostnameOverride: $N
mode: $(cat "$RUN/proxy-mode")
clusterCIDR: $CLUSTER_CIDR
# nf_conntrack_max and its kin are read-only outside of the first network namespace.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
}

# --- its services ---
export PATH="$BIN:$EDGEBIN:/usr/local/bin:$PATH"
supervise() { # NAME command…: restarted forever; /run/svc/NAME.down stops it
  local n=$1
  shift
  while :; do
    if [ -e "/run/svc/$n.down" ]; then
      sleep 0.2
      continue
    fi
    "$@" >>"$D/log/$n.log" 2>&1 &
    echo $! >"/run/svc/$n.pid"
    wait $! || true
    rm -f "/run/svc/$n.pid"
    sleep 1
  done
}
proxy() { proxy_config >/run/kube-proxy.yaml; exec kube-proxy --config /run/kube-proxy.yaml; }
controllers() { # $RUN/kcm-flags is read at each start of the service
  # shellcheck disable=SC2046
  exec kube-controller-manager --kubeconfig "$PKI/kcm.conf" --leader-elect=false \
    --use-service-account-credentials --root-ca-file "$PKI/ca.crt" --service-account-private-key-file "$PKI/sa.key" \
    --cluster-signing-cert-file "$PKI/ca.crt" --cluster-signing-key-file "$PKI/ca.key" \
    --service-cluster-ip-range $SERVICE_CIDR --profiling=false $(cat "$RUN/kcm-flags")
}
kubeedge_cloud() { # begins when kubeedge.sh has prepared the API
  while [ ! -e "$RUN/cloudcore.yaml" ]; do sleep 0.2; done
  exec cloudcore --config "$RUN/cloudcore.yaml"
}
hub() { # ends with its device gone, which is a dummy: YurtHub's own to make, where the kernel has them; it takes what has the name
  ip link add yurthub-dummy0 type bridge 2>/dev/null && ip addr add 169.254.2.1/32 dev yurthub-dummy0 && ip link set yurthub-dummy0 up
  exec yurthub --v=2 --server-addr="https://$CLOUD_IP:$API_PORT" --node-name="$N" --bootstrap-mode=kubeletcertificate
}
# What OpenYurt's yurt-manager does for YurtHub's certificates.
approve() {
  export KUBECONFIG=$PKI/admin.conf
  while sleep 0.5; do
    # shellcheck disable=SC2046
    set -- $(kubectl get csr -o go-template='{{range .items}}{{if not .status.conditions}}{{.metadata.name}} {{end}}{{end}}')
    [ $# = 0 ] || kubectl certificate approve "$@"
  done
}
# What systemd does with the unit of `edgemesh-agent install`. It sees the machine's boot ID, as containers do: on a host they
# see the same, and what one noted of this boot counts for the other.
unit() {
  local u=/etc/systemd/system/edgemesh-agent.service cmd
  while [ ! -e $u ]; do sleep 0.2; done
  cmd=$(sed -n 's/^ExecStart=//p' $u)
  exec unshare -m --propagation slave sh -c 'umount /proc/sys/kernel/random/boot_id && exec "$@"' unit $cmd
}
# What systemd does with kubelet's unit and its drop-ins, those of `edgemesh-agent install --node-ip` among them.
kubelet_unit() {
  local files=(/etc/systemd/system/kubelet.service) cmd
  for f in /etc/systemd/system/kubelet.service.d/*.conf; do [ ! -e "$f" ] || files+=("$f"); done
  sed -n 's/^ExecStartPre=-//p' "${files[@]}" | while read -r cmd; do $cmd; done # "-": a failure does not count
  cmd=$(sed -n 's/^ExecStart=//p' "${files[@]}" | tail -1)
  exec $cmd
}
set +e
if [ "$N" = cloud ]; then
  supervise etcd etcd --data-dir /var/lib/etcd --listen-client-urls "http://127.0.0.1:2379,http://$CLOUD_IP:2379" \
    --advertise-client-urls http://127.0.0.1:2379 --unsafe-no-fsync --log-level warn &
  supervise kube-apiserver kube-apiserver \
    --etcd-servers http://127.0.0.1:2379 --advertise-address $API_ENDPOINT --secure-port $API_PORT \
    --service-cluster-ip-range $SERVICE_CIDR --allow-privileged=true \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --client-ca-file "$PKI/ca.crt" --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" \
    --service-account-issuer https://kubernetes.default.svc.cluster.local \
    --service-account-key-file "$PKI/sa.pub" --service-account-signing-key-file "$PKI/sa.key" \
    --kubelet-client-certificate "$PKI/apiserver-kubelet-client.crt" --kubelet-client-key "$PKI/apiserver-kubelet-client.key" \
    --kubelet-preferred-address-types InternalIP --profiling=false \
    --requestheader-client-ca-file "$PKI/ca.crt" --requestheader-allowed-names front-proxy-client \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file "$PKI/front-proxy.crt" --proxy-client-key-file "$PKI/front-proxy.key" &
  wait_for 60 curl -skf "https://127.0.0.1:$API_PORT/readyz"
  supervise kube-controller-manager controllers &
  supervise kube-scheduler kube-scheduler --kubeconfig "$PKI/scheduler.conf" --leader-elect=false --profiling=false &
  case $FLAVOUR in
  kubeedge) supervise cloudcore kubeedge_cloud & ;;
  openyurt) supervise approve approve & ;;
  esac
  touch /run/svc/.control-plane
fi
supervise edgemesh-agent unit &
supervise containerd containerd --config /run/containerd.toml --log-level warn &
wait_for 30 ctr version
for i in "$IMAGES"/*.tar; do # instead of a registry
  m=/var/lib/containerd/.imported.$(sha256sum <"$i" | cut -c1-16)
  [ -e "$m" ] || { ctr -n k8s.io images import "$i" >>"$D/log/import.log" 2>&1 && touch "$m"; }
done
if is_edge "$N" kubeedge; then
  ulimit -n 1000000
  if [ "$REQUIRE_AUTH" = true ]; then # edgecore makes a dummy device for 169.254.30.10; not every kernel has that type
    ip link add edge-dummy0 type dummy 2>/dev/null || ip link add edge-dummy0 type bridge
    ip link set edge-dummy0 up
  fi
  supervise edgecore edgecore --config /etc/kubeedge/config/edgecore.yaml &
  touch /run/svc/.booted
  while :; do
    wait
    sleep 1
  done
fi
if is_edge "$N" openyurt; then
  supervise yurthub hub &
fi
cat >/etc/systemd/system/kubelet.service <<U
[Service]
ExecStart=$(command -v kubelet) --config /run/kubelet.yaml --kubeconfig $kubeconf --cert-dir /var/lib/kubelet/pki --node-ip $(node_ip "$N") --node-labels $labels
U
supervise kubelet kubelet_unit &
if ! is_edge "$N" openyurt; then supervise kube-proxy proxy; fi & # there: manifests/edge-services
touch /run/svc/.booted
while :; do # PID 1 reaps orphans, container shims among them
  wait
  sleep 1
done
