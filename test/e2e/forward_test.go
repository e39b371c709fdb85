package e2e

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestForwardDrop: a rule of one node drops what it forwards between its LAN and its pods, as Docker's documented one in DOCKER-USER does.
// Nodes' own packets pass, so that only probes which travel as pods' packets see it: pods talk within 5 s by another path, without a
// flap, and natively again after it. Where no path passes, status names what is dropped.
func TestForwardDrop(t *testing.T) {
	tier.Long(t)
	beside(t)
	pair := newLANPair(t, nil)
	n1, n2, one, two := pair.n1, pair.n2, pair.pod1, pair.pod2
	curlPods(t, one, two, 10*time.Second)
	back := func() {
		t.Helper()
		for _, n := range [][2]*lab.Node{{n1, n2}, {n2, n1}} {
			p, err := n[0].WaitPath(within(t, 60*time.Second), n[1], "native")
			ok(t, err)
			if p.Proof != "forwarded" || strings.Contains(p.Reason, "on eth0") {
				t.Errorf("native is proved by %q: %s", p.Proof, p.Reason)
			}
		}
	}
	back()
	both := func(rule string) [2]string {
		del := strings.NewReplacer("-I ", "-D ").Replace(rule)
		return [2]string{"iptables " + rule + "; ip6tables " + rule, "iptables " + del + "; ip6tables " + del}
	}
	for _, c := range []struct {
		name string
		at   *lab.Node
		do   [2]string
	}{
		{"in", n2, both("-I FORWARD -i " + n2.Uplink + " -j DROP")},
		{"out", n1, both("-I FORWARD -o " + n1.Uplink + " -j DROP")},
		{"TCP", n2, both("-I FORWARD -i " + n2.Uplink + " -p tcp -j DROP")},
		{"SYN", n2, both("-I FORWARD -i " + n2.Uplink + " -p tcp --syn -j DROP")},
		{"UDP", n2, both("-I FORWARD -i " + n2.Uplink + " -p udp -j DROP")},
		{"NEW", n2, both("-I FORWARD -i " + n2.Uplink + " -m conntrack --ctstate NEW -j DROP")},
		{"REJECT", n1, both("-I FORWARD -i " + n1.Uplink + " -j REJECT")},
		{"DOCKER-USER", n2, [2]string{
			"iptables -N DOCKER-USER; iptables -I FORWARD -j DOCKER-USER; iptables -A DOCKER-USER -i " + n2.Uplink + " ! -s 203.0.113.1 -j DROP",
			"iptables -D FORWARD -j DOCKER-USER; iptables -F DOCKER-USER; iptables -X DOCKER-USER",
		}},
		{"nftables", n1, [2]string{
			"nft 'add table inet mine; add chain inet mine f { type filter hook forward priority -10; }; add rule inet mine f iifname " + n1.Uplink + " drop'",
			"nft delete table inet mine",
		}},
		{"LAN paths", n2, both("-I FORWARD ! -i edgemesh-tun -o edgemesh-br -j DROP")},
	} {
		t.Run(c.name, func(t *testing.T) {
			ok(t, c.at.Script(c.do[0]))
			start := time.Now()
			curlPods(t, one, two, 5*time.Second)
			curlPods(t, two, one, 5*time.Second)
			t.Logf("pods talk after %.1f s", time.Since(start).Seconds())
			for range 15 {
				time.Sleep(time.Second) // sleep: the path stays meanwhile
				curlPods(t, one, two, time.Second)
			}
			ok(t, c.at.Script(c.do[1]))
			curlPods(t, one, two, 5*time.Second)
			back()
			for _, n := range []*lab.Node{n1, n2} { // a path that does not last is tried again ever later
				ok(t, n.Agent.Stop())
				ok(t, n.Start())
				ok(t, n.WaitReserved(within(t, 10*time.Second)))
			}
			curlPods(t, one, two, 10*time.Second)
			back()
		})
	}
	ok(t, n2.Script("iptables -I FORWARD -s 10.0.0.0/8 -d "+two.IP4().String()+"/24 -j DROP"))
	start := time.Now()
	ok(t, lab.Until(within(t, 10*time.Second), 200*time.Millisecond, func() error {
		st, err := n1.Status(t.Context())
		if err == nil && !slices.ContainsFunc(st.Findings, func(f lab.Problem) bool { return f.Check == "lan-forward" }) {
			return errors.New("lan-forward is not named")
		}
		return err
	}))
	t.Logf("named after %.1f s", time.Since(start).Seconds())
}
