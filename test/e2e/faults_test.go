package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// wrong is what doctor says first, unless all is well.
func wrong(t *testing.T, n *lab.Node) (f finding, found bool) {
	t.Helper()
	_, all := doctorOf(t, n)
	for _, f := range all {
		if f.Severity != "ok" {
			return f, true
		}
	}
	return finding{}, false
}

// first waits until doctor on n names this check first, with a remedy.
func first(t *testing.T, n *lab.Node, check, severity string) {
	t.Helper()
	var said finding
	err := lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
		var found bool
		if said, found = wrong(t, n); !found || said.Check != check || said.Severity != severity || said.Remedy == "" {
			return fmt.Errorf("doctor says first: %+v, want %s, %s", said, check, severity)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	t.Logf("doctor: %s: %s → %s", said.Check, said.Detail, said.Remedy)
}

// TestFaults breaks one thing after the other. Each time doctor names it first, with what to do; once that is done, doctor is
// content and pods reach each other. What the agent repairs itself may be well again before doctor looks. Not here: the
// proxy (TestOnlyProxy) and an MTU hole (TestNotNative); clock and kubelet's address (agent/diagnose, agent/nodeip).
func TestFaults(t *testing.T) {
	slow(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	p := &pair{lab: l}
	p.n1 = node(t, site(t, l, "site-1", lab.EIM), "edge-1", lab.NodeOptions{})
	p.n2 = node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	full := cloud(t, l, "full", lab.NodeOptions{PodCIDRs: []string{"10.244.90.0/30"}}) // one address
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	key := filepath.Join(p.n1.Config.StateDir, "identity.key")
	good, err := os.ReadFile(key)
	ok(t, err)
	other, err := os.ReadFile(filepath.Join(p.n2.Config.StateDir, "identity.key"))
	ok(t, err)
	at := p.pod1.IP4().As4()
	inside := netip.AddrFrom4([4]byte{at[0], at[1], 200, 1})
	script := func(ns *lab.NS, lines ...string) func() error { return func() error { return ns.Script(lines...) } }
	for _, c := range []struct {
		name            string
		node            *lab.Node
		check, severity string
		repaired        bool // by the agent itself
		harm, undo      func() error
	}{
		{"the relay is off", p.n1, "relays", "broken", false, func() error { r.Process.Kill(); return nil }, r.Start},
		{"the relay's UDP port is closed", p.n1, "udp", "warning", false,
			script(r.NS, "iptables -w -I INPUT -p udp -j DROP"), script(r.NS, "iptables -w -D INPUT -p udp -j DROP")},
		{"forwarded packets are dropped", p.n1, "nftables", "warning", false,
			script(p.n1.NS, "nft add table inet other", "nft 'add chain inet other closed { type filter hook forward priority 10; policy drop; }'"),
			script(p.n1.NS, "nft delete table inet other")},
		{"strict rp_filter", p.n1, "tun", "broken", true, script(p.n1.NS, "sysctl -qw net.ipv4.conf.edgemesh-tun.rp_filter=1"), nil},
		{"forwarding is off", p.n1, "forwarding", "broken", true, script(p.n1.NS, "sysctl -qw net.ipv4.ip_forward=0"), nil},
		{"a route is gone", p.n1, "routes", "broken", true, script(p.n1.NS, "ip route flush table 5210 dev edgemesh-tun"), nil},
		{"the TUN is down", p.n1, "tun", "broken", true, script(p.n1.NS, "ip link set edgemesh-tun down"), nil},
		{"docker has a pod range", p.n1, "addresses", "broken", false,
			script(p.n1.NS, "ip link add docker0 type bridge", "ip addr add "+inside.String()+"/24 dev docker0", "ip link set docker0 up"),
			script(p.n1.NS, "ip link del docker0")},
		{"no addresses are left", full, "pool", "broken", false, func() error { return fill(t, full) }, nil},
		{"the membership is broken", p.n1, "membership", "warning", false,
			func() error { return lab.ReplaceFile(p.n1.Membership, "podCIDRs: [") }, l.WriteMembership},
		{"the key is another one", p.n1, "key", "broken", false,
			func() error { return os.WriteFile(key, other, 0o600) }, func() error { return os.WriteFile(key, good, 0o600) }},
		{"another rule takes the pod range", p.n1, "way", "broken", false,
			script(p.n1.NS, "ip route add default dev lo table 99", "ip rule add pref 100 to 10.244.0.0/16 lookup 99"),
			script(p.n1.NS, "ip rule del pref 100", "ip route flush table 99")},
	} {
		t.Run(c.name, func(t *testing.T) {
			if f, found := wrong(t, c.node); found {
				t.Fatalf("before: %+v", f)
			}
			ok(t, c.harm())
			switch f, found := wrong(t, c.node); {
			case !c.repaired:
				first(t, c.node, c.check, c.severity)
			case found && (f.Check != c.check || f.Severity != c.severity || f.Remedy == ""):
				t.Errorf("doctor says first: %+v, want %s, %s", f, c.check, c.severity)
			}
			if c.undo != nil {
				ok(t, c.undo())
			} else if !c.repaired {
				return
			}
			ok(t, lab.Until(within(t, 40*time.Second), 200*time.Millisecond, func() error {
				if f, found := wrong(t, c.node); found {
					return fmt.Errorf("after the remedy: %+v", f)
				}
				return nil
			}))
			curlPods(t, p.pod1, p.pod2, 10*time.Second)
		})
	}
}

// fill makes a pod on a node that has one address.
func fill(t *testing.T, n *lab.Node) error {
	pod(t, n, "last")
	return nil
}
