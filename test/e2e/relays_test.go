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

// TestIdleCost measures what a node sends to each relay while nobody talks.
func TestIdleCost(t *testing.T) {
	slow(t)
	p := newRelayedPair(t, 2)
	const settle, measured = 10 * time.Second, 2 * time.Minute
	for _, r := range p.lab.Relays {
		ok(t, p.n1.Script("iptables -w -A OUTPUT -d "+r.Addr))
	}
	sent := func() (bytes []int) {
		out, err := p.n1.Run(context.Background(), "iptables", "-w", "-nvxL", "OUTPUT")
		ok(t, err)
		for _, r := range p.lab.Relays {
			for line := range strings.Lines(out) {
				if f := strings.Fields(line); len(f) > 2 && f[len(f)-1] == r.Addr {
					n, err := strconv.Atoi(f[1])
					ok(t, err)
					bytes = append(bytes, n)
				}
			}
		}
		if len(bytes) != len(p.lab.Relays) {
			t.Fatalf("counters: %s", out)
		}
		return bytes
	}
	time.Sleep(settle)
	before := sent()
	time.Sleep(measured)
	for i, after := range sent() {
		perMinute := float64(after-before[i]) / measured.Minutes()
		t.Logf("%s: %.0f bytes a minute", p.lab.Relays[i].Name, perMinute)
		if perMinute > 2000 {
			t.Errorf("%s: an idle node sends %.0f bytes a minute, want at most 2000", p.lab.Relays[i].Name, perMinute)
		}
	}
}
