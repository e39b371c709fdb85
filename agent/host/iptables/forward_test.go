package iptables

import (
	"net/netip"
	"strings"
	"testing"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/verdict"
)

// TestForwarded: what FORWARD drops of packets between pods, before our accept.
func TestForwarded(t *testing.T) {
	const accept = "-A FORWARD -j EDGEMESH-ACCEPT\n"
	f := plan.Family{Wanted: true, Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Blocks: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	for _, c := range []struct {
		name, rules string
		drops, sure bool
	}{
		{"nothing", accept, false, false},
		{"the range", "-A FORWARD -d 10.244.0.0/16 -j DROP\n" + accept, true, true},
		{"the range, rejected", "-A FORWARD -s 10.0.0.0/8 -m comment --comment \"not this, -j ACCEPT\" -j REJECT --reject-with icmp-port-unreachable\n" + accept, true, true},
		{"a peer's block", "-A FORWARD -d 10.244.2.0/24 -j DROP\n" + accept, true, true},
		{"a peer's pod", "-A FORWARD -d 10.244.2.7/32 -j DROP\n" + accept, false, false},
		{"our TUN", "-A FORWARD -o edgemesh-tun -j DROP\n" + accept, true, true},
		{"all but the bridge", "-A FORWARD ! -i edgemesh-br -j DROP\n" + accept, true, true},
		{"another interface", "-A FORWARD -i eth0 -j DROP\n-A FORWARD -o docker0 -j DROP\n" + accept, false, false},
		{"after our accept", accept + "-A FORWARD -d 10.244.0.0/16 -j DROP\n", false, false},
		{"after their accept", "-A FORWARD -d 10.0.0.0/8 -j ACCEPT\n-A FORWARD -s 10.244.0.0/16 -j ACCEPT\n-A FORWARD -d 10.244.0.0/16 -j DROP\n" + accept, false, false},
		{"new connections", "-A FORWARD -d 10.244.0.0/16 -m conntrack --ctstate NEW -j DROP\n" + accept, true, true},
		{"invalid ones", "-A FORWARD -m conntrack --ctstate INVALID -j DROP\n-A FORWARD -m conntrack ! --ctstate NEW -j DROP\n" + accept, false, false},
		{"UDP", "-A FORWARD -d 10.244.0.0/16 -p udp -j DROP\n" + accept, true, false},
		{"a port", "-A FORWARD -d 10.244.0.0/16 -p tcp -m tcp --dport 22 -j DROP\n" + accept, false, false},
		{"a set", "-A FORWARD -m set --match-set bad src -j DROP\n" + accept, false, false},
		{"policy's marks", "-A FORWARD -m mark ! --mark 0x10000/0x10000 -j REJECT\n" + accept, false, false},
		{"kube-proxy", "-A FORWARD -j KUBE-FORWARD\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n" +
			"-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT\n-A FORWARD -d 10.244.0.0/16 -j DROP\n" + accept, true, true},
		{"another chain", ":USER - [0:0]\n-A FORWARD -j USER\n-A USER -i lo -j RETURN\n-A USER -d 10.244.0.0/16 -j DROP\n" + accept, true, true},
		{"a chain that returns", ":USER - [0:0]\n-A FORWARD -j USER\n-A USER -s 10.0.0.0/8 -j RETURN\n-A USER -j DROP\n" + accept, false, false},
		{"a chain that is gone to", ":USER - [0:0]\n-A FORWARD -d 10.244.0.0/16 -g USER\n-A USER -j MARK --set-xmark 0x1/0x1\n-A USER -j DROP\n" + accept, true, true},
		{"a loop", ":USER - [0:0]\n-A FORWARD -j USER\n-A USER -j USER\n" + accept, false, false},
		{"the policy, without our accept", "", true, true},
	} {
		rs := parseSave("*filter\n:FORWARD DROP [0:0]\n" + c.rules + "COMMIT\n")
		chains, named := rs.translated(key{"filter", "FORWARD"})
		cut := chains.Worst("FORWARD", verdict.Between(f, named))
		if drops := cut.Detail != ""; drops != c.drops || cut.Sure != c.sure || drops && !strings.Contains(cut.By, "FORWARD") && !strings.Contains(cut.By, "USER") {
			t.Errorf("%s: %+v, want drops %v, sure %v", c.name, cut, c.drops, c.sure)
		}
	}
}
