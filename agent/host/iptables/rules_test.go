package iptables

import (
	"maps"
	"testing"
)

func TestJumpPosition(t *testing.T) {
	mss := chain{table: "filter", name: chainMSS, hook: "FORWARD", anywhere: true}
	guard := chain{table: "filter", name: chainForward, hook: "FORWARD"}
	accept := chain{table: "filter", name: chainAccept, hook: "FORWARD", last: true}
	others := map[key][]string{
		{"filter", "ufw-reject-forward"}: {"-j REJECT --reject-with icmp-port-unreachable"},
		{"filter", "ufw-after-forward"}:  nil,
		{"filter", "returns"}:            {"-j RETURN", "-j DROP"},
		{"filter", "loop"}:               {"-j loop"},
	}
	for _, c := range []struct {
		name string
		of   chain
		hook []string
		want int
	}{
		{"guard, empty", guard, nil, 0},
		{"guard, behind others", guard, []string{"-j DOCKER-USER", "-j EDGEMESH-FORWARD"}, 0},
		{"anywhere, not there", mss, []string{"-j DOCKER-USER"}, 1},
		{"anywhere, there", mss, []string{"-j DOCKER-USER", "-j EDGEMESH-MSS", "-j cali-FORWARD"}, 1},
		{"accept, empty", accept, nil, 0},
		{"accept, at the end", accept, []string{"-j EDGEMESH-FORWARD", "-j EDGEMESH-ACCEPT"}, 1},
		{"accept, network policy came after it", accept, []string{"-j EDGEMESH-ACCEPT", "-s 10.0.0.1 -d 10.0.0.2 -j DROP"}, 2},
		{"accept, before a catch-all", accept, []string{"-j KUBE-FORWARD", "-j EDGEMESH-ACCEPT", "-j REJECT"}, 1},
		{"accept, before a catch-all with a comment", accept, []string{"-m comment --comment \"last words\" -j DROP"}, 0},
		{"accept, before a chain that is one", accept, []string{"-j ufw-after-forward", "-j ufw-reject-forward"}, 1},
		{"accept, conditional verdicts are none", accept, []string{"-i eth0 -j REJECT", "-j cali-FORWARD"}, 2},
		{"accept, chains that return", accept, []string{"-j returns", "-j loop"}, 2},
	} {
		rs := ruleset{chains: maps.Clone(others)}
		rs.chains[key{"filter", "FORWARD"}] = c.hook
		if have := jumpPosition(rs, c.of); have != c.want {
			t.Errorf("%s: %d, want %d", c.name, have, c.want)
		}
	}
}
