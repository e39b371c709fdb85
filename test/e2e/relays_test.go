package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// rounds is how often a gap is measured, and the median taken: five times in the
// full suite.
func rounds() int {
	if os.Getenv("EDGEMESH_E2E") == "full" {
		return 5
	}
	return 1
}

// median of values, which are at least one.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[len(s)/2]
}

// newRelayedPair makes two nodes that stay relayed, with some relays.
func newRelayedPair(t *testing.T, relays int) *pair {
	t.Helper()
	l := newLab(t)
	for i := range relays {
		relay(t, l, fmt.Sprintf("relay-%d", i+1))
	}
	p := &pair{lab: l}
	p.n1 = node(t, site(t, l, "site-1", lab.Symmetric), "edge-1", lab.NodeOptions{})
	p.n2 = node(t, site(t, l, "site-2", lab.Symmetric), "edge-2", lab.NodeOptions{})
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	return p
}

// relayInUse returns the relay that n's packets to the other node take.
func (p *pair) relayInUse(t *testing.T, n, other *lab.Node) *lab.Relay {
	t.Helper()
	st, err := n.Status(t.Context())
	ok(t, err)
	id := st.Peer(other.Name).Relay
	for _, r := range p.lab.Relays {
		if r.PeerID == id {
			return r
		}
	}
	t.Fatalf("%s uses relay %q: %+v", n.Name, id, st.Peer(other.Name))
	return nil
}

// TestRelayFailover takes away the relay in use, one of two, from under flows.
func TestRelayFailover(t *testing.T) {
	p := newRelayedPair(t, 2)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	for _, way := range []struct {
		name string
		take func(*lab.Relay) (back func() error)
	}{
		{"killed", func(r *lab.Relay) func() error {
			r.Process.Kill()
			return r.Start
		}},
		{"silently cut", func(r *lab.Relay) func() error {
			ok(t, r.Script("ip link set wan0 down"))
			return func() error { return r.Script("ip link set wan0 up", "ip route replace default via "+lab.InternetAddr) }
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			var gaps []float64
			for range rounds() {
				tcp := flow(t, p.pod1, "tcp", 8*time.Second, p.pod2.IP4())
				ping := flow(t, p.pod1, "icmp", 8*time.Second, p.pod2.IP4())
				time.Sleep(3 * time.Second)
				back := way.take(p.relayInUse(t, p.n1, p.n2))
				g, err := ping()
				if err != nil {
					t.Error(err)
				}
				gaps = append(gaps, g.GapMs)
				if g, err := tcp(); err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
					t.Errorf("TCP flow: %+v: %v", g, err)
				}
				ok(t, back())
				ready(t, p.n1, p.n2)
			}
			t.Logf("gaps of pings each 50 ms: %.0f ms", gaps)
			if m := median(gaps); m > 2000 {
				t.Errorf("median gap %.0f ms, want at most 2000", m)
			}
		})
	}
}

// TestRelaysComeAndGo changes the membership's relays under a relayed flow.
func TestRelaysComeAndGo(t *testing.T) {
	p := newRelayedPair(t, 1)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	tcp := flow(t, p.pod1, "tcp", 14*time.Second, p.pod2.IP4())
	one := p.lab.Relays[0]
	two := relay(t, p.lab, "relay-2")
	ok(t, p.lab.WriteMembership())
	ok(t, two.Start())
	ok(t, two.WaitUp(within(t, 5*time.Second)))
	if err := two.WaitReservations(within(t, 10*time.Second), 2); err != nil {
		t.Errorf("relay added: %v", err)
	}
	p.lab.Cluster.Relays = slices.DeleteFunc(p.lab.Cluster.Relays, func(a string) bool { return strings.Contains(a, one.PeerID) })
	ok(t, p.lab.WriteMembership())
	for _, n := range []*lab.Node{p.n1, p.n2} {
		err := lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
			s, err := n.Status(t.Context())
			if err == nil && (len(s.Relays) != 1 || s.Relays[0].PeerID != two.PeerID || !s.Relays[0].Reserved) {
				err = fmt.Errorf("relays %+v", s.Relays)
			}
			return err
		})
		if err != nil {
			t.Errorf("relay removed: %s: %v", n.Name, err)
		}
	}
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	if r := p.relayInUse(t, p.n1, p.n2); r != two {
		t.Errorf("%s is in use", r.Name)
	}
	g, err := tcp()
	if err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
		t.Errorf("TCP flow: %+v: %v", g, err)
	}
	t.Logf("longest gap of the TCP flow: %.0f ms", g.GapMs)
}

// TestManyRelays: of five relays a node holds reservations at three; peers find
// each other nevertheless, at once, and also when their relays die.
func TestManyRelays(t *testing.T) {
	p := newRelayedPair(t, 5)
	holds := func(n *lab.Node) (held []string) {
		s, err := n.Status(t.Context())
		ok(t, err)
		if len(s.Relays) != 5 {
			t.Errorf("%s lists %d relays", n.Name, len(s.Relays))
		}
		for _, r := range s.Relays {
			if r.Reserved {
				held = append(held, r.PeerID)
			}
		}
		return held
	}
	for _, n := range []*lab.Node{p.n1, p.n2} {
		if h := holds(n); len(h) < 2 || len(h) > 3 {
			t.Errorf("%s holds %d reservations", n.Name, len(h))
		}
	}
	start := time.Now()
	if err := p.pod1.Ping(t.Context(), p.pod2.IP4().String(), time.Second); err != nil {
		t.Errorf("first packet: %v", err)
	}
	t.Logf("first packet answered after %d ms", time.Since(start).Milliseconds())
	tcp := flow(t, p.pod1, "tcp", 8*time.Second, p.pod2.IP4())
	time.Sleep(time.Second)
	theirs := holds(p.n2)
	for _, r := range p.lab.Relays {
		if slices.Contains(theirs, r.PeerID) {
			r.Process.Kill() // all that edge-2 is reachable at
		}
	}
	if g, err := tcp(); err != nil || g.Lost > 0 || g.GapMs > 5000 {
		t.Errorf("TCP flow: %+v: %v", g, err)
	} else {
		t.Logf("all relays of a node killed: longest gap %.0f ms", g.GapMs)
	}
}

// TestBadRelays lists relays that are of no use beside one that is: each says why, in
// status and doctor, and none is in the way.
func TestBadRelays(t *testing.T) {
	l := newLab(t)
	good := relay(t, l, "relay")
	ours := slices.Clone(l.Cluster.Relays)
	refusing := relay(t, l, "refusing")
	n := node(t, site(t, l, "site-1", lab.Symmetric), "edge-1", lab.NodeOptions{})
	other := cloud(t, l, "cloud-1", lab.NodeOptions{})
	wrong := fmt.Sprintf("/ip4/%s/tcp/4501/p2p/%s", good.Addr, relayID)
	unreachable := "/ip4/5.5.77.77/tcp/4501/p2p/" + otherID
	l.Cluster.Relays = append([]string{wrong, unreachable}, l.Cluster.Relays...)
	startRelays(t, l)
	foreign := l.Cluster // the refusing relay knows other nodes only
	foreign.Nodes = foreign.Without(n.Name).Nodes
	ok(t, lab.ReplaceFile(refusing.Membership, foreign.YAML()))
	time.Sleep(2 * time.Second) // in force by then
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	err := lab.Until(within(t, 15*time.Second), 50*time.Millisecond, func() error {
		s, err := n.Status(t.Context())
		if err != nil {
			return err
		}
		for _, r := range s.Relays {
			why := map[string]string{relayID: "peer id mismatch", otherID: "connect: tcp 5.5.77.77:4501", refusing.PeerID: "connect"}[r.PeerID]
			if r.Reserved != (r.PeerID == good.PeerID) || !strings.Contains(strings.ToLower(r.Error), why) || strings.Contains(r.Error, "\n") {
				return fmt.Errorf("%+v, want %q", r, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	ok(t, n.WaitPods(within(t, 5*time.Second)))
	ok(t, other.WaitPods(within(t, 5*time.Second)))
	a, b := pod(t, n, "one"), pod(t, other, "two")
	curlPods(t, a, b, time.Second)
	curlPods(t, b, a, time.Second)
	doctor := func() (string, error) {
		out, _, err := n.AgentCommand(t.Context(), "doctor", "--runtime-dir", n.Config.RuntimeDir)
		return out, err
	}
	out, err := doctor()
	if err != nil {
		t.Errorf("doctor with one good relay: %v", err)
	}
	contains(t, out, relayID, "5.5.77.77", refusing.PeerID)
	t.Logf("doctor:\n%s", out)
	// Without the good one something is broken.
	l.Cluster.Relays = slices.DeleteFunc(l.Cluster.Relays, func(a string) bool { return slices.Contains(ours, a) })
	ok(t, lab.ReplaceFile(n.Membership, l.Cluster.YAML()))
	err = lab.Until(within(t, 15*time.Second), 200*time.Millisecond, func() error {
		if out, err := doctor(); err == nil {
			return fmt.Errorf("doctor is content: %s", out)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMemberIsRelay has no relay but a cloud node that is one.
func TestMemberIsRelay(t *testing.T) {
	l := newLab(t)
	c := memberRelay(t, l)
	p := &pair{lab: l}
	p.n1 = node(t, site(t, l, "site-1", lab.Symmetric), "edge-1", lab.NodeOptions{})
	p.n2 = node(t, site(t, l, "site-2", lab.Symmetric), "edge-2", lab.NodeOptions{})
	ok(t, l.WriteMembership())
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	ready(t, p.n1, p.n2)
	ok(t, c.WaitPods(within(t, 5*time.Second)))
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	on := pod(t, c, "cloud")
	for _, pair := range [][2]*lab.Pod{{p.pod1, p.pod2}, {p.pod1, on}, {on, p.pod2}, {p.pod2, p.pod1}} {
		start := time.Now()
		curlPods(t, pair[0], pair[1], time.Second)
		t.Logf("%s → %s after %d ms", pair[0].Name, pair[1].Name, time.Since(start).Milliseconds())
	}
	st, err := p.n1.WaitPath(within(t, 5*time.Second), p.n2, "relayed")
	ok(t, err)
	if st.Relay != c.PeerID {
		t.Errorf("relayed by %s, want the cloud node", st.Relay)
	}
	for _, n := range l.Nodes() {
		if out, _, err := n.AgentCommand(t.Context(), "doctor", "--runtime-dir", n.Config.RuntimeDir); err != nil {
			t.Errorf("%s: doctor: %v\n%s", n.Name, err, out)
		}
	}
	// The relay restarts under a flow.
	tcp := flow(t, p.pod1, "tcp", 8*time.Second, p.pod2.IP4())
	time.Sleep(time.Second)
	c.Agent.Kill()
	ok(t, c.Start())
	g, err := tcp()
	if err != nil || g.Lost > 0 || g.GapMs > 5000 {
		t.Errorf("TCP flow across the restart: %+v: %v", g, err)
	}
	t.Logf("agent with the relay restarted: longest gap %.0f ms", g.GapMs)

	// Listed, but no relay any more.
	c.Config.Relay = nil
	ok(t, c.Agent.Stop())
	ok(t, c.Start())
	err = lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error {
		s, err := p.n1.Status(t.Context())
		if err == nil && (s.Relays[0].Reserved || !strings.Contains(s.Relays[0].Error, "relay.enabled")) {
			err = fmt.Errorf("%+v", s.Relays)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	ok(t, c.WaitPods(within(t, 5*time.Second)))
	if out, _, err := c.AgentCommand(t.Context(), "doctor", "--runtime-dir", c.Config.RuntimeDir); err == nil || !strings.Contains(out, "relay: {enabled: true}") {
		t.Errorf("doctor does not tell: %v\n%s", err, out)
	}
}

// TestOnly443 lets nothing but TCP to port 443 out of two sites.
func TestOnly443(t *testing.T) {
	for _, ws := range []bool{false, true} {
		name := "tcp"
		if ws {
			name = "ws"
		}
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			r := relay(t, l, "relay")
			tail := "/tcp/443"
			if ws {
				tail += "/ws"
			}
			r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443", "/ip4/0.0.0.0/tcp/443/ws")
			l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+tail+"/p2p/"+r.PeerID)
			p := &pair{lab: l}
			var routers []*lab.Site
			for i := range 2 {
				s := site(t, l, fmt.Sprintf("site-%d", i+1), lab.EIM)
				lines := []string{"iptables -w -I FORWARD -o wan0 -j DROP", "iptables -w -I FORWARD -o wan0 -p tcp --dport 443 -j ACCEPT"}
				if ws { // only what begins like HTTP gets through
					lines = append(lines, "iptables -w -I FORWARD -o wan0 -p tcp --dport 443 -m string --algo bm --string /multistream --to 100 -j DROP")
				}
				ok(t, s.Router.Script(lines...))
				routers = append(routers, s)
			}
			p.n1, p.n2 = node(t, routers[0], "edge-1", lab.NodeOptions{}), node(t, routers[1], "edge-2", lab.NodeOptions{})
			startRelays(t, l)
			start := time.Now()
			for _, n := range l.Nodes() {
				ok(t, n.Start())
			}
			ready(t, p.n1, p.n2)
			p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
			ctx := within(t, 10*time.Second)
			err := lab.Until(ctx, 20*time.Millisecond, func() error {
				return tryCurl(ctx, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
			})
			if err != nil {
				t.Error(err)
			}
			t.Logf("agents' start to first curl: %d ms", time.Since(start).Milliseconds())
			st, err := p.n1.WaitTransport(within(t, 5*time.Second), p.n2, "relay/"+name)
			ok(t, err)
			t.Logf("%s over %s: %s", st.Path, st.Transport, st.Reason)
			var b lab.Bulk
			if err := p.pod1.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", "50000000", p.pod2.IP4().String()); err != nil || !b.Match {
				t.Errorf("50 MB: %+v %v", b, err)
			}
			t.Logf("%.0f Mbit/s with checksums", b.Mbps)
		})
	}
}

// TestIdleCost measures what a node sends to each relay while nobody talks: two
// servers, and a member that is a relay.
func TestIdleCost(t *testing.T) {
	slow(t)
	l := newLab(t)
	to := map[string]string{}
	for _, name := range []string{"relay-1", "relay-2"} {
		to[name] = relay(t, l, name).Addr
	}
	c := memberRelay(t, l)
	to[c.Name] = c.Addr.String()
	n := node(t, site(t, l, "site-1", lab.Symmetric), "edge-1", lab.NodeOptions{})
	startAll(t, l)
	for _, addr := range to {
		ok(t, n.Script("iptables -w -A OUTPUT -d "+addr))
	}
	sent := func() map[string]int {
		out, err := n.Run(context.Background(), "iptables", "-w", "-nvxL", "OUTPUT")
		ok(t, err)
		bytes := map[string]int{}
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 2 {
				if n, err := strconv.Atoi(f[1]); err == nil {
					bytes[f[len(f)-1]] = n
				}
			}
		}
		return bytes
	}
	// Peers, and circuits to them, are let go after three minutes.
	const settle, measured = 200 * time.Second, 2 * time.Minute
	time.Sleep(settle)
	before := sent()
	time.Sleep(measured)
	after := sent()
	for name, addr := range to {
		if after[addr] == 0 {
			t.Errorf("%s: nothing was ever sent", name)
		}
		perMinute := float64(after[addr]-before[addr]) / measured.Minutes()
		t.Logf("%s: %.0f bytes a minute", name, perMinute)
		most := 2000.0
		if name == c.Name { // it is a peer as well, whose paths are probed
			most = 3000
		}
		if perMinute > most {
			t.Errorf("%s: an idle node sends %.0f bytes a minute, want at most %.0f", name, perMinute, most)
		}
	}
}

// memberRelay makes a cloud node that is a relay, and lists it.
func memberRelay(t *testing.T, l *lab.Lab) *lab.Node {
	t.Helper()
	c := cloud(t, l, "cloud-1", lab.NodeOptions{})
	c.Config.Listen = []string{"/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1"}
	c.Config.Relay = map[string]any{"enabled": true}
	for _, a := range []string{"/ip4/%s/tcp/4001/p2p/%s", "/ip4/%s/udp/4001/quic-v1/p2p/%s"} {
		l.Cluster.Relays = append(l.Cluster.Relays, fmt.Sprintf(a, c.Addr, c.PeerID))
	}
	return c
}
