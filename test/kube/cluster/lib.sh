# shellcheck shell=bash disable=SC2034
# Names, topology and helpers of the cluster in network namespaces. Sourced by the
# other scripts; the caller's environment says which cluster:
#
#   RUN   directory with everything of one cluster: disks, logs, certificates. On a real
#         file system (not overlayfs), outside of the directories that nodes overlay
#         (/etc, /opt, /var, /usr/libexec, /usr/local, /run).
#   BIN   directory of the Kubernetes programs
#   FLAVOUR   kubeedge: edges run edgecore, and the cloud node cloudcore; openyurt: edges run YurtHub beside kubelet;
#             flannel: all nodes are on the WAN, for Flannel crosses no NAT, and its images are there
#   FAMILIES  ipv4; or ipv4,ipv6 or ipv6,ipv4: pods and Services have both, the first of a Service is the first one (kept in RUN/families)
#   REQUIRE_AUTH   true: KubeEdge's requireAuthorization, on both sides
#   EDGEBIN   directory of the flavour's programs
#
# The cluster's name is RUN's last part; namespaces are called NAME-…, cgroups NAME.
set -euo pipefail
SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${RUN:?}" "${FAMILIES:=$(cat "$RUN/families" 2>/dev/null || echo ipv4)}" "${BIN:=}" "${FLAVOUR:=}" "${EDGEBIN:=}" "${REQUIRE_AUTH:=false}"
TAG=${RUN##*/} PKI=$RUN/pki IMAGES=$RUN/images CNIBIN=$RUN/cnibin
IMG=e2e.test # a registry that never resolves: images are imported

# WAN: public addresses as far as libp2p is concerned. Every site has the same LAN.
WAN_NET=5.5.5 CLOUD_IP=5.5.5.10 RELAY_IP=5.5.5.20 API_PORT=6443 LAN_NET=192.168.1
families() { # IPV4 IPV6: what the cluster has of them, in its order
  case $FAMILIES in ipv4) echo "$1" ;; ipv4,ipv6) echo "$1,$2" ;; ipv6,ipv4) echo "$2,$1" ;; *) return 1 ;; esac
}
CLUSTER_CIDR=$(families 10.244.0.0/16 fd00:244::/56) || { echo "FAMILIES=$FAMILIES: neither ipv4 nor ipv4,ipv6 nor ipv6,ipv4" >&2; exit 2; }
SERVICE_CIDR=$(families 10.96.0.0/12 fd00:96::/112) API_SVC_IP=$(families 10.96.0.1 fd00:96::1)
DNS_IP=$(families 10.96.0.10 fd00:96::a) EDGE_DNS_IP=10.96.0.11
# The Service of the API server has an endpoint of the first family: IPv6 is in the pod network alone, where the cloud node, as the
# first to register, has the first block.
API_ENDPOINT=$CLOUD_IP
[ "$FAMILIES" != ipv6,ipv4 ] || API_ENDPOINT=fd00:244::1
REGISTRY=$RELAY_IP:5000 # of TestRelease, in the relay's namespace
SITES="a:101 b:102"                                 # site : last octet of its router's WAN address
ALL_NODES="cloud cloud-2 edge-a1 edge-a2 edge-b1 edge-b2"   # all that can be; cloud-2 and edge-a2 join later
FIRST_NODES="cloud edge-a1 edge-b1 edge-b2"
node_site() { case $1 in cloud*|relay) echo wan ;; edge-a*) echo a ;; edge-b*) echo b ;; *) return 1 ;; esac; }
node_segment() { if [ "$FLAVOUR" = flannel ]; then echo wan; else node_site "$1"; fi; }
node_ip() {
  case $(node_segment "$1"):$1 in
    *:cloud) echo $CLOUD_IP ;; *:cloud-2) echo $WAN_NET.11 ;; *:relay) echo $RELAY_IP ;;
    wan:edge-a*) echo "$WAN_NET.3${1#edge-a}" ;; wan:edge-b*) echo "$WAN_NET.4${1#edge-b}" ;;
    *1) echo $LAN_NET.10 ;; *2) echo $LAN_NET.11 ;;
  esac
}
is_edge() { case $1 in edge-*) [ "$FLAVOUR" = "$2" ] ;; *) return 1 ;; esac; } # NODE FLAVOUR
node_gw() { case $(node_segment "$1") in wan) echo $WAN_NET.1 ;; *) echo $LAN_NET.1 ;; esac; }

log() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { log "ERROR: $*"; exit 1; }
NS() { local n=$1; shift; ip netns exec "$TAG-$n" "$@"; }
node_pid() { cat "$RUN/nodes/$1/init.pid"; }
# on NODE command…: in all namespaces of the node
on() { local n=$1; shift; nsenter -t "$(node_pid "$n")" -m -u -i -n -p -C -- env PATH="$BIN:$EDGEBIN:/usr/local/bin:$PATH" "$@"; }
k() { "$BIN/kubectl" --kubeconfig "$RUN/kubeconfig" "$@"; }
# The cluster is being removed: whoever is still bringing it up gives up.
interrupted() { [ -e "$RUN/.down" ] && [ -z "${GOING_DOWN:-}" ]; }
wait_for() { # SECONDS command…
  local e; e=$(($(date +%s) + $1)); shift
  until "$@" >/dev/null 2>&1; do
    ! interrupted && [ "$(date +%s)" -lt "$e" ] || return 1
    sleep 0.2
  done
}
