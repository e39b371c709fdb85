package e2e

import (
	"strings"

	"edgemesh/test/lab"
)

// What other programs have on a host by default, as literal rules: the programs need not be installed.

// kubeProxy is what kube-proxy 1.31 has in mode iptables: one Service, whose endpoint is a pod.
const kubeProxy = `
for t in iptables ip6tables; do
	for c in KUBE-EXTERNAL-SERVICES KUBE-FIREWALL KUBE-FORWARD KUBE-NODEPORTS KUBE-PROXY-FIREWALL KUBE-SERVICES; do $t -N $c; done
	$t -A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
	$t -A FORWARD -j KUBE-FORWARD
	$t -A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
	$t -A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
	$t -A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
	$t -A INPUT -j KUBE-NODEPORTS
	$t -A INPUT -j KUBE-FIREWALL
	$t -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
	$t -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
	$t -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	for c in KUBE-MARK-MASQ KUBE-POSTROUTING KUBE-NODEPORTS KUBE-SERVICES KUBE-SVC-A KUBE-SEP-A; do $t -t nat -N $c; done
	$t -t nat -A PREROUTING -j KUBE-SERVICES
	$t -t nat -A OUTPUT -j KUBE-SERVICES
	$t -t nat -A POSTROUTING -j KUBE-POSTROUTING
	$t -t nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
	$t -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
	$t -t nat -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x4000
	$t -t nat -A KUBE-POSTROUTING -j MASQUERADE --random-fully
done
iptables -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
iptables -t nat -A KUBE-SERVICES -d 10.96.0.10 -p udp --dport 53 -j KUBE-SVC-A
iptables -t nat -A KUBE-SVC-A ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
iptables -t nat -A KUBE-SVC-A -j KUBE-SEP-A
iptables -t nat -A KUBE-SEP-A -s 10.244.1.9 -j KUBE-MARK-MASQ
iptables -t nat -A KUBE-SEP-A -p udp -j DNAT --to-destination 10.244.1.9:53
iptables -t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`

// kubeProxyNFT is what kube-proxy 1.31 has in mode nftables.
const kubeProxyNFT = `
for f in ip ip6; do nft -f - <<END
table $f kube-proxy {
	chain firewall-check { }
	chain service-endpoints-check { fib daddr type local return; }
	chain cluster-ips-check { }
	chain services { }
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
	chain filter-input { type filter hook input priority -110; ct state new jump service-endpoints-check; }
	chain filter-forward { type filter hook forward priority -110; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
	chain filter-output { type filter hook output priority -110; ct state new jump service-endpoints-check; }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain masquerading { meta mark & 0x4000 == 0 return; meta mark set meta mark ^ 0x4000; masquerade fully-random; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
END
done`

// tailscale is what tailscaled 1.70 has: interface, rules and chains.
const tailscale = `
ip link add tailscale0 type bridge
ip addr add 100.101.102.103/32 dev tailscale0
ip link set tailscale0 up
for t in iptables ip6tables; do
	$t -N ts-input
	$t -N ts-forward
	$t -I INPUT -j ts-input
	$t -I FORWARD -j ts-forward
	$t -t nat -N ts-postrouting
	$t -t nat -I POSTROUTING -j ts-postrouting
	$t -A ts-input -i tailscale0 -j ACCEPT
	$t -A ts-input -p udp --dport 41641 -j ACCEPT
	$t -A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000
	$t -A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT
	$t -A ts-forward -o tailscale0 -j ACCEPT
	$t -t nat -A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE
done
iptables -I ts-forward 3 -s 100.64.0.0/10 -o tailscale0 -j DROP
iptables -I ts-input 2 -s 100.115.92.0/23 ! -i tailscale0 -j RETURN
iptables -I ts-input 3 -s 100.64.0.0/10 ! -i tailscale0 -j DROP
for v in -4 -6; do
	ip $v rule add pref 5210 fwmark 0x80000/0xff0000 lookup main
	ip $v rule add pref 5230 fwmark 0x80000/0xff0000 lookup default
	ip $v rule add pref 5250 fwmark 0x80000/0xff0000 type unreachable
	ip $v rule add pref 5270 lookup 52
done`

// netbird is what NetBird 0.29 has.
const netbird = `
ip link add wt0 type bridge
ip addr add 100.90.1.2/16 dev wt0
ip link set wt0 up
nft -f - <<END
table ip netbird {
	chain rules { ct state established,related accept; }
	chain acl-input { type filter hook input priority filter; iifname wt0 jump rules; iifname wt0 drop; }
	chain acl-forward { type filter hook forward priority filter; meta mark 0x0001bd10 accept; iifname wt0 jump rules; iifname wt0 drop; }
	chain mangle-prerouting { type filter hook prerouting priority mangle; iifname wt0 ct state new meta mark set 0x0001bd10; }
	chain nat { type nat hook postrouting priority srcnat - 1; oifname wt0 ip saddr != 100.90.0.0/16 masquerade; }
}
END
ip rule add pref 105 lookup main suppress_prefixlength 0
ip rule add pref 110 not fwmark 0x1bd00 lookup 7120`

// ufwRules is what ufw 0.36 makes of deny incoming, deny routed, with the agent's ports and bridge allowed.
const ufwRules = `
for t in iptables ip6tables; do
	u=ufw; [ $t = iptables ] || u=ufw6
	for c in before-logging-input before-logging-forward before-input before-forward after-input after-forward reject-input reject-forward \
		track-input track-forward logging-deny skip-to-policy-input user-input user-forward; do $t -N $u-$c; done
	for c in input forward; do
		C=$(echo $c | tr a-z A-Z)
		for x in before-logging before after reject track; do $t -A $C -j $u-$x-$c; done
		$t -P $C DROP
		$t -A $u-before-$c -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	done
	$t -A $u-before-input -i lo -j ACCEPT
	$t -A $u-before-input -m conntrack --ctstate INVALID -j $u-logging-deny
	$t -A $u-before-input -m conntrack --ctstate INVALID -j DROP
	$t -A $u-before-input -j $u-user-input
	$t -A $u-before-forward -j $u-user-forward
	$t -A $u-logging-deny -m conntrack --ctstate INVALID -m limit --limit 3/min --limit-burst 10 -j RETURN
	$t -A $u-skip-to-policy-input -j DROP
	$t -A $u-after-input -p udp --dport 137 -j $u-skip-to-policy-input
	$t -A $u-user-input -p tcp --dport 4001 -j ACCEPT
	$t -A $u-user-input -p udp --dport 4001 -j ACCEPT
	$t -A $u-user-input -p udp -m multiport --dports 5210:5211 -j ACCEPT
	$t -A $u-user-input -i edgemesh-br -j ACCEPT
done
for x in destination-unreachable time-exceeded parameter-problem echo-request; do
	iptables -I ufw-before-input -p icmp --icmp-type $x -j ACCEPT
	iptables -I ufw-before-forward -p icmp --icmp-type $x -j ACCEPT
done
for x in destination-unreachable packet-too-big echo-request echo-reply router-solicitation router-advertisement neighbor-solicitation neighbor-advertisement; do
	ip6tables -I ufw6-before-input -p icmpv6 --icmpv6-type $x -j ACCEPT
done`

// firewalldRules is what firewalld 2.1 makes of its defaults (zone public, IPv6_rpfilter=strict) and the pod ranges in zone trusted.
const firewalldRules = `
nft -f - <<END
table inet firewalld {
	chain mangle_PREROUTING {
		type filter hook prerouting priority mangle + 10; policy accept;
		icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
		meta nfproto ipv6 fib saddr . mark . iif oif missing drop
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002::/24, 2002:a00::/24, 2002:7f00::/24, 2002:a9fe::/32, 2002:ac10::/28, 2002:c0a8::/32, 2002:e000::/19 } reject with icmpv6 addr-unreachable
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT_ZONES {
		ip saddr RANGE4 accept
		ip6 saddr RANGE6 accept
		meta l4proto { icmp, ipv6-icmp } accept
		tcp dport 22 ct state { new, untracked } accept
		udp dport { 5210, 5211 } ct state { new, untracked } accept
	}
	chain filter_FORWARD_ZONES {
		ip saddr RANGE4 accept
		ip6 saddr RANGE6 accept
		meta l4proto { icmp, ipv6-icmp } accept
	}
}
END`

// literalWorlds are hosts with these.
func literalWorlds() []world {
	rules := strings.NewReplacer("RANGE4", lab.DefaultRange4, "RANGE6", lab.DefaultRange6).Replace(firewalldRules)
	return []world{
		{name: "kube-proxy", prepare: script(append(docker, kubeProxy)...), path: "native", proxied: true},
		{name: "kube-proxy-nft", prepare: script(kubeProxyNFT), path: "native", proxied: true},
		{name: "tailscale", prepare: script(tailscale), path: "native"},
		{name: "netbird", prepare: script(netbird), path: "native"},
		{name: "ufw-rules", prepare: script(ufwRules), path: "native"},
		{name: "firewalld-rules", prepare: script(rules), path: "native"},
		{name: "firewalld-rules-vxlan", prepare: script(rules), lan: map[string]any{"native": false}, path: "vxlan"},
	}
}
