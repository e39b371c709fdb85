#!/usr/bin/env bash
# The networks.
#   net.sh up                   the WAN and one NAT router per site
#   net.sh plug|unplug NODE     a node's namespace, wired to its segment
#   net.sh wan-down|wan-up SITE the uplink of a site's router: errors come immediately
#   net.sh drop|undrop SITE     its router silently drops what it should forward
. "$(dirname "$0")/lib.sh"

# wire NODE-NS NODE-IF SEGMENT-NS PORT ADDR/LEN: a veth made inside the namespaces. The
# MAC is derived from the names: neighbours have it cached over a reboot.
wire() {
  local mac
  mac=02:$(md5sum <<<"$1 $2" | sed 's/\(..\)\(..\)\(..\)\(..\)\(..\).*/\1:\2:\3:\4:\5/')
  ip -n "$TAG-$3" link add "$4" type veth peer name "$2" address "$mac" netns "$TAG-$1"
  ip -n "$TAG-$3" link set "$4" master br0 up
  ip -n "$TAG-$1" addr add "$5" dev "$2"
  ip -n "$TAG-$1" link set "$2" up
}
newns() {
  ip netns add "$TAG-$1"
  ip -n "$TAG-$1" link set lo up
  NS "$1" sysctl -qw net.ipv4.ip_forward="$2"
}
segment() { case $(node_segment "$1") in wan) echo wan ;; *) echo "r$(node_site "$1")" ;; esac; }
br() {
  ip -n "$TAG-$1" link add br0 type bridge
  ip -n "$TAG-$1" addr add "$2" dev br0
  ip -n "$TAG-$1" link set br0 up
}

case ${1:?} in
up)
  newns wan 0
  br wan "$WAN_NET.1/24"
  for s in $SITES; do
    n=r${s%%:*}
    newns "$n" 1
    br "$n" "$LAN_NET.1/24"
    wire "$n" wan0 wan "$n" "$WAN_NET.${s##*:}/24"
    ip -n "$TAG-$n" route add default via "$WAN_NET.1"
    NS "$n" iptables -t nat -A POSTROUTING -o wan0 -j MASQUERADE
    NS "$n" iptables -P FORWARD DROP
    NS "$n" iptables -A FORWARD -i br0 -j ACCEPT
    NS "$n" iptables -A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
  done
  ;;
plug)
  n=${2:?node}
  newns "$n" 0
  wire "$n" eth0 "$(segment "$n")" "$n" "$(node_ip "$n")/24"
  ip -n "$TAG-$n" route add default via "$(node_gw "$n")"
  ;;
unplug) # the port first: a deleted namespace goes away later, and its veth with it
  n=${2:?node}
  [ -e "/run/netns/$TAG-$n" ] || exit 0
  ip -n "$TAG-$(segment "$n")" link del "$n" || true
  ip netns del "$TAG-$n"
  ;;
wan-down) ip -n "$TAG-wan" link set "r${2:?site}" down ;;
wan-up) ip -n "$TAG-wan" link set "r${2:?site}" up ;;
drop) NS "r${2:?site}" iptables -I FORWARD -j DROP ;;
undrop) NS "r${2:?site}" iptables -D FORWARD -j DROP ;;
*) die usage ;;
esac
