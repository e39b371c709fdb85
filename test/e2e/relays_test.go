package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

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

// forwarded waits until the relay forwards what either node sends the other beside their circuit, or the circuit is found faster, as on
// a busy machine.
func (p *pair) forwarded(t *testing.T) {
	t.Helper()
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error { return isForwarded(t, n[0], n[1]) }))
	}
}

func isForwarded(t *testing.T, from, to *lab.Node) error {
	st, err := from.Status(t.Context())
	x := st.Peer(to.Name)
	switch {
	case err != nil:
		return err
	case x.Path != "relayed":
		return fmt.Errorf("%s: the path is %s", from.Name, x.Path)
	case strings.HasSuffix(x.Datagrams, "take longer"):
		t.Logf("NOT SHOWN: %s: %s", from.Name, x.Datagrams)
	case x.Datagrams != "forwarded":
		return fmt.Errorf("%s: datagrams %s", from.Name, x.Datagrams)
	}
	return nil
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

// TestRelayFailover takes away the relay in use, one of two, from under flows, of which it forwards those that are not TCP beside the circuit.
func TestRelayFailover(t *testing.T) {
	beside(t)
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
			return func() error {
				return r.Script("ip link set wan0 up",
					"ip route replace default via "+lab.InternetAddr)
			}
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			var gaps []float64
			for remeasure(gaps, worstCut) {
				tcp := flow(t, p.pod1, "tcp", 8*time.Second, p.pod2.IP4())
				end := lasting(t, p.pod1.NS, "icmp", p.pod2.IP4())
				time.Sleep(3 * time.Second) // sleep: of the session on that path
				p.forwarded(t)
				back := way.take(p.relayInUse(t, p.n1, p.n2))
				time.Sleep(5 * time.Second) // sleep: the relay is cut off
				p.forwarded(t)
				g, err := end()
				if err != nil {
					t.Error(err)
				}
				t.Logf("longest gap %.0f ms, of which %.0f count", g.GapMs, g.FairMs)
				gaps = append(gaps, g.FairMs)
				if g, err := tcp(); err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
					t.Errorf("TCP flow: %+v: %v", g, err)
				}
				ok(t, back())
				ready(t, p.n1, p.n2)
			}
			held(t, gaps, worstCut)
		})
	}
}

// TestForwardingRelaysRestart restarts two relays one after the other, as an upgrade does, each while it forwards flows beside a circuit.
// Ping shows the relay that is left.
func TestForwardingRelaysRestart(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newRelayedPair(t, 2)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	var gaps []float64
	for remeasure(gaps, worstCut) {
		tcp := flow(t, p.pod1, "tcp", 12*time.Second, p.pod2.IP4())
		end := lasting(t, p.pod1.NS, "icmp", p.pod2.IP4())
		time.Sleep(2 * time.Second) // sleep: of the session on that path
		p.forwarded(t)
		for range p.lab.Relays {
			r := p.relayInUse(t, p.n1, p.n2)
			ok(t, r.Process.Stop())
			ok(t, r.Start())
			ok(t, r.WaitUp(within(t, 5*time.Second)))
			ok(t, r.WaitReservations(within(t, 20*time.Second), 2))
			p.forwarded(t)
			left := p.relayInUse(t, p.n1, p.n2)
			if ping, err := p.n1.AgentPing(t.Context(), p.n2.Name, 1); err != nil || left == r || ping.Path != "relayed" || ping.Relay != left.PeerID {
				t.Errorf("%s was restarted, %s is in use: ping %+v, %v", r.Name, left.Name, ping, err)
			}
		}
		g, err := end()
		if err != nil {
			t.Error(err)
		}
		t.Logf("longest gap %.0f ms, of which %.0f count", g.GapMs, g.FairMs)
		gaps = append(gaps, g.FairMs)
		if g, err := tcp(); err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
			t.Errorf("TCP flow: %+v: %v", g, err)
		}
	}
	held(t, gaps, worstCut)
}

// TestRelaysComeAndGo changes the membership's relays under a relayed flow.
func TestRelaysComeAndGo(t *testing.T) {
	tier.All(t)
	beside(t)
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
	p.lab.Cluster.Relays = slices.DeleteFunc(p.lab.Cluster.Relays,
		func(a string) bool { return strings.Contains(a, one.PeerID) })
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
// each other nevertheless, immediately, and also when their relays die.
func TestManyRelays(t *testing.T) {
	tier.All(t)
	beside(t)
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
		// A relay that gives way to a nearer one, as they seem to a busy machine, is kept
		// for its circuits for a minute more.
		ok(t, lab.Until(within(t, 2*time.Minute), 200*time.Millisecond, func() error {
			if h := holds(n); len(h) < 2 || len(h) > 3 {
				return fmt.Errorf("%s holds %d reservations", n.Name, len(h))
			}
			return nil
		}))
	}
	start := time.Now()
	if err := ping(t, p.pod1, p.pod2.IP4(), time.Second); err != nil {
		t.Errorf("first packet: %v", err)
	}
	t.Logf("first packet answered after %d ms", time.Since(start).Milliseconds())
	tcp := flow(t, p.pod1, "tcp", 8*time.Second, p.pod2.IP4())
	theirs := holds(p.n2)
	for _, r := range p.lab.Relays {
		if slices.Contains(theirs, r.PeerID) {
			r.Process.Kill() // all that edge-2 is reachable at
		}
	}
	if g, err := tcp(); err != nil || g.Lost > 0 || g.FairMs > worstMoved {
		t.Errorf("TCP flow: %+v: %v", g, err)
	} else {
		t.Logf("all relays of a node killed: longest gap %.0f ms", g.GapMs)
	}
}

// TestAllRelaysRestart restarts all relays of two nodes that have never met, at the same time. The full suite has them also lose power:
// no connection is closed then, and nodes find it out when they keep one alive.
func TestAllRelaysRestart(t *testing.T) {
	beside(t)
	p := newRelayedPair(t, 2)
	most := 62 * time.Second // of relays that lost power: one keep-alive interval, and a dial
	back := func(how string) {
		start := time.Now()
		for _, r := range p.lab.Relays {
			ok(t, r.Start())
		}
		ok(t, lab.Until(within(t, most+10*time.Second), 50*time.Millisecond, func() error {
			return tryCurl(t.Context(), p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
		}))
		if took := time.Since(start); took > most {
			t.Errorf("%s: the peer is reached after %v, want at most %v", how, took, most)
		} else {
			t.Logf("%s: the peer is reached after %v", how, took)
		}
	}
	if tier.IsLong() {
		for _, r := range p.lab.Relays {
			ok(t, r.Script("ip link set wan0 down"))
			r.Process.Kill()
		}
		time.Sleep(time.Second) // sleep: what the kernel still had to send is lost
		for _, r := range p.lab.Relays {
			ok(t, r.Script("ip link set wan0 up", "ip route replace default via "+lab.InternetAddr))
		}
		back("relays without power")
		time.Sleep(2 * time.Minute) // sleep: until the pair is idle
	}
	for _, r := range p.lab.Relays {
		r.Process.Kill()
	}
	back("relays killed")
}

// TestBadRelays lists relays that are of no use beside one that is: each says why, in
// status and doctor, and none is in the way.
func TestBadRelays(t *testing.T) {
	tier.All(t)
	beside(t)
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
	time.Sleep(2 * time.Second) // sleep: in force by then
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	err := lab.Until(within(t, 15*time.Second), 50*time.Millisecond, func() error {
		s, err := n.Status(t.Context())
		if err != nil {
			return err
		}
		for _, r := range s.Relays {
			why := map[string]string{
				relayID:         "peer id mismatch",
				otherID:         "connect: tcp 5.5.77.77:4501",
				refusing.PeerID: "connect",
			}[r.PeerID]
			if r.Reserved != (r.PeerID == good.PeerID) || !strings.Contains(strings.ToLower(r.Error), why) ||
				strings.Contains(r.Error, "\n") {
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
