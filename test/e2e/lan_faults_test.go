package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// block has the LAN's bridge drop what matches an nft expression; undo lets it
// pass again.
func (p *lanPair) block(t *testing.T, match ...string) (undo func()) {
	t.Helper()
	lines := []string{
		"nft add table bridge fault",
		"nft add chain bridge fault forward '{ type filter hook forward priority 0; }'",
	}
	for _, m := range match {
		lines = append(lines, "nft add rule bridge fault forward "+m+" drop")
	}
	ok(t, p.site.Router.Script(lines...))
	return func() { ok(t, p.site.Router.Script("nft delete table bridge fault")) }
}

// says waits until a node gives the reasons for its path to a peer.
func says(t *testing.T, n, peer *lab.Node, path string, reasons ...string) {
	t.Helper()
	err := lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
		st, err := n.Status(t.Context())
		if err != nil {
			return err
		}
		p := st.Peer(peer.Name)
		for _, r := range reasons {
			if p.Path != path || !strings.Contains(p.Reason, r) {
				return fmt.Errorf("%s → %s: path %s, want %s; reason %q, want %q", n.Name, peer.Name, p.Path, path,
					p.Reason, r)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// isolate keeps the two nodes' ports apart; each still reaches the router.
func (p *lanPair) isolate(t *testing.T, on string) {
	t.Helper()
	for _, n := range []*lab.Node{p.n1, p.n2} {
		ok(t, p.site.Router.Script("bridge link set dev "+port(t, n)+" isolated "+on))
	}
}

// native brings the pair to a native path.
func (p *lanPair) native(t *testing.T) {
	t.Helper()
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "native")
}

// TestLANBreaks cuts the LAN between two nodes under flows: they continue through the
// relay, and come back.
func TestLANBreaks(t *testing.T) {
	beside(t)
	p := newLANPair(t, nil)
	p.native(t)
	time.Sleep(500 * time.Millisecond) // sleep: both sides are there
	tcp := flow(t, p.pod1, "tcp", 12*time.Second, p.pod2.IP4())
	back := flow(t, p.pod2, "tcp", 12*time.Second, p.pod1.IP6())
	ping := flow(t, p.pod1, "icmp", 12*time.Second, p.pod2.IP4())
	p.isolate(t, "on")
	start := time.Now()
	p.both(t, 5*time.Second, "relayed", "direct", "punched")
	t.Logf("left on both sides %d ms after the LAN broke", time.Since(start).Milliseconds())
	time.Sleep(2 * time.Second) // sleep: of traffic on that path
	p.isolate(t, "off")
	start = time.Now()
	p.both(t, 30*time.Second, "native")
	t.Logf("native again %d ms after the LAN was restored", time.Since(start).Milliseconds())
	for name, wait := range map[string]func() (lab.Gaps, error){"there": tcp, "back": back} {
		g, err := wait()
		if err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
			t.Errorf("TCP flow %s: %+v: %v", name, g, err)
		}
		t.Logf("TCP flow %s: longest gap %.0f ms", name, g.GapMs)
	}
	g, err := ping()
	ok(t, err)
	t.Logf("ping: longest gap %.0f ms, %d of %d lost, %d doubled", g.GapMs, g.Lost, g.Sent, g.Doubled)
	if g.FairMs > worstCut {
		t.Errorf("a gap of %.0f ms when the LAN broke, of which %.0f count", g.GapMs, g.FairMs)
	}
}

// TestFlowAcrossPaths runs a transfer with a checksum while its path becomes, one
// after the other, native, vxlan, the tunnel's, vxlan and native again.
func TestFlowAcrossPaths(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newLANPair(t, nil)
	type result struct {
		b   lab.Bulk
		err error
	}
	results := make(chan result, 2)
	ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
	defer stop()
	for _, pods := range [][2]*lab.Pod{{p.pod1, p.pod2}, {p.pod2, p.pod1}} {
		go func() {
			var r result
			r.err = pods[0].Tool(ctx, &r.b, "bulk", "--mbps", "40", "--duration", "25s", pods[1].IP4().String())
			results <- r
		}()
	}
	p.both(t, 15*time.Second, "native")
	time.Sleep(time.Second) // sleep: of traffic on that path
	foreign := p.block(t, "ip saddr 10.244.0.0/16", "ip daddr 10.244.0.0/16")
	p.both(t, 10*time.Second, "vxlan")
	time.Sleep(time.Second) // sleep: of traffic on that path
	foreign()
	all := p.block(t, "ip saddr 10.244.0.0/16", "udp dport 5210")
	p.both(t, 10*time.Second, "direct")
	time.Sleep(time.Second) // sleep: of traffic on that path
	all()
	p.both(t, 30*time.Second, "native")
	for range 2 {
		if r := <-results; r.err != nil || !r.b.Match {
			t.Errorf("%+v: %v", r.b, r.err)
		} else {
			t.Logf("%d MB intact, longest stall %.0f ms", r.b.Bytes>>20, r.b.StallMs)
		}
	}
}

// TestNotNative goes through what must keep a pair from a native path, and what is
// said about it.
func TestNotNative(t *testing.T) {
	tier.Long(t)
	p := newLANPair(t, nil)
	for _, c := range []struct {
		name   string
		match  []string
		path   string
		reason string // of node 1
	}{
		{"one-way filter", []string{
			"ip saddr 10.244.1.0/24", "udp dport 5210 ip saddr " + p.n1.Addr.String(),
		}, "direct", "no answer"},
		{"filter of foreign addresses", []string{"ip saddr 10.244.0.0/16"}, "vxlan", "no answer"},
		{"MTU hole", []string{
			"ip saddr 10.244.0.0/16 meta length gt 1400",
			"udp dport 5210 meta length gt 1400",
		}, "direct", "small ones pass"},
	} {
		undo := p.block(t, c.match...)
		curlPods(t, p.pod1, p.pod2, 5*time.Second)
		ctx := within(t, 15*time.Second)
		for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
			st, err := n[0].WaitPath(ctx, n[1], c.path)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			t.Logf("%s: %s → %s: %s; %s", c.name, n[0].Name, n[1].Name, st.Path, st.Reason)
		}
		says(t, p.n1, p.n2, c.path, c.reason)
		if c.name == "MTU hole" {
			first(t, p.n1, "mtu", "warning")
		}
		curlPods(t, p.pod2, p.pod1, 5*time.Second)
		undo()
		p.both(t, 30*time.Second, "native")
	}
}

// TestEncryptionAlways keeps everything in the tunnel, also when it is decided while
// a native path is in use.
func TestEncryptionAlways(t *testing.T) {
	beside(t)
	p := newLANPair(t, nil)
	p.native(t)
	p.lab.Cluster.Encryption = "always"
	ok(t, p.lab.WriteMembership())
	ctx := within(t, 5*time.Second)
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		_, err := n[0].WaitPath(ctx, n[1], "direct", "idle", "none")
		ok(t, err)
	}
	n := p.onWire(t, p.n1, "net 10.244.0.0/16 or udp port 5210", 0, func() {
		curlPods(t, p.pod1, p.pod2, 5*time.Second)
		curlPods(t, p.pod2, p.pod1, 5*time.Second)
		p.both(t, 5*time.Second, "direct")
		time.Sleep(2 * time.Second) // sleep: nothing is on the LAN meanwhile
	})
	if n > 0 {
		t.Errorf("%d packets of pods or of VXLAN on the LAN", n)
	}
	says(t, p.n1, p.n2, "direct", "encryption: always")
	p.lab.Cluster.Encryption = "auto"
	ok(t, p.lab.WriteMembership())
	p.both(t, 20*time.Second, "native")
}

// TestLANOptOut: one of two nodes does not take part.
func TestLANOptOut(t *testing.T) {
	beside(t)
	p := newLANPair(t, func(p *lanPair) { p.n2.Config.LAN = map[string]any{"native": false} })
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "vxlan")
	says(t, p.n1, p.n2, "vxlan", "the peer says: lan.native is false")
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	ok(t, p.n1.Agent.Stop())
	p.n1.Config.LAN = map[string]any{"vxlan": false}
	ok(t, p.n1.Start())
	ready(t, p.n1)
	curlPods(t, p.pod1, p.pod2, 5*time.Second)
	p.both(t, 15*time.Second, "direct")
	says(t, p.n2, p.n1, "direct", "native: lan.native is false", "vxlan: the peer says: lan.vxlan is false")
}

// ownSubnet gives a node that has not started its own LAN of 192.168.2.0/24, behind the site's router.
func ownSubnet(t *testing.T, n *lab.Node) {
	t.Helper()
	at := port(t, n)
	ok(t, n.Site.Router.Script("ip link set "+at+" nomaster", "sysctl -qw net.ipv6.conf."+at+".disable_ipv6=0", "ip addr add 192.168.2.1/24 dev "+at))
	ok(t, n.Script("ip addr flush dev eth0", "ip addr add 192.168.2.11/24 dev eth0", "ip route add default via 192.168.2.1"))
}

// TestRoutedSites: two LANs of one campus, which the membership trusts, with a router between them: VXLAN.
func TestRoutedSites(t *testing.T) {
	beside(t)
	p := newLANPair(t, func(p *lanPair) { ownSubnet(t, p.n2) })
	// Nobody trusts the router yet: it would read, and could forge, what VXLAN carries.
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	ok(t, lab.Until(within(t, 15*time.Second), 50*time.Millisecond, func() error {
		st, err := p.n1.Status(t.Context())
		if err != nil {
			return err
		}
		if x := st.Peer(p.n2.Name); x.Path == "vxlan" || !strings.Contains(x.Reason, "not on one link, and no entry of the membership's lan.trusted has both") {
			return fmt.Errorf("path %s, reason %q", x.Path, x.Reason)
		}
		return nil
	}))
	p.lab.Cluster.LAN = &lab.Trust{Trusted: []string{"192.168.0.0/16"}}
	ok(t, p.lab.WriteMembership())
	start := time.Now()
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "vxlan")
	t.Logf("vxlan on both sides %d ms after the first packet", time.Since(start).Milliseconds())
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	for _, addrs := range pairs(p.pod1, p.pod2) {
		var b lab.Bulk
		if err := p.pod1.Tool(within(t, 30*time.Second), &b, "bulk", "--bytes", "50000000",
			addrs[1].String()); err != nil ||
			!b.Match {
			t.Errorf("bulk to %s: %+v: %v", addrs[1], b, err)
		}
		if err := p.pod1.Ping(t.Context(), addrs[1].String(), 2*time.Second, "-s", "3000"); err != nil {
			t.Errorf("3000 bytes to %s: %v", addrs[1], err)
		}
	}
	leaks, err := p.lab.Leaks(t.Context())
	ok(t, err)
	if len(leaks) > 0 {
		t.Errorf("the router has seen packets of pods: %v", leaks)
	}
	// A hop that would have to cut packets up: that is no path for full-size ones.
	flowing := flow(t, p.pod1, "tcp", 5*time.Second, p.pod2.IP4())
	ok(t, p.site.Router.Script("ip link set "+port(t, p.n2)+" mtu 1400"))
	p.both(t, 15*time.Second, "direct", "punched", "relayed")
	g, err := flowing()
	if err != nil || g.Lost > 0 || g.Doubled > 0 {
		t.Errorf("TCP flow when the hop became narrow: %+v: %v", g, err)
	}
}

// TestStrangerWithTheNeighboursAddress: in another site a stranger has the address
// that the peer announces. Neither is ever taken for the other.
func TestStrangerWithTheNeighboursAddress(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	a, b := site(t, l, "site-a", lab.EIM), site(t, l, "site-b", lab.EIM)
	a1, a2 := node(t, a, "a-1", lab.NodeOptions{}), node(t, a, "a-2", lab.NodeOptions{})
	b1, b2 := node(t, b, "b-1", lab.NodeOptions{}), node(t, b, "b-2", lab.NodeOptions{})
	startAll(t, l)
	pods := map[*lab.Node]*lab.Pod{}
	for _, n := range []*lab.Node{a1, a2, b1, b2} {
		pods[n] = pod(t, n, "pod-"+n.Name)
	}
	far := [][2]*lab.Node{{a1, b2}, {b2, a1}, {a2, b1}, {b1, a2}, {a1, b1}, {b1, a1}}
	near := [][2]*lab.Node{{a1, a2}, {a2, a1}, {b1, b2}, {b2, b1}}
	for _, pair := range append(far, near...) {
		curlPods(t, pods[pair[0]], pods[pair[1]], 5*time.Second)
	}
	ctx := within(t, 15*time.Second)
	for _, pair := range near {
		_, err := pair[0].WaitPath(ctx, pair[1], "native")
		ok(t, err)
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) { // sleep: the paths stay meanwhile
		for _, pair := range far {
			st, err := pair[0].Status(t.Context())
			ok(t, err)
			if p := st.Peer(pair[1].Name).Path; p == "native" || p == "vxlan" {
				t.Fatalf("%s → %s, of another site: %s", pair[0].Name, pair[1].Name, p)
			}
		}
	}
	says(t, a1, b2, "punched", "no answer")
	for _, pair := range append(far, near...) {
		curlPods(t, pods[pair[0]], pods[pair[1]], 5*time.Second)
	}
	leaks, err := l.Leaks(t.Context())
	ok(t, err)
	if len(leaks) > 0 {
		t.Errorf("packets with addresses of pods have left the sites: %v", leaks)
	}
}
