package gate

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/x/rate"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/admission/pool"
	"edgemesh/tunnel/p2p/who/refusals"
)

// newGate is a gate without a policy, where nobody is a member.
func newGate(handshakes int) *Gate {
	return New(&network.NullResourceManager{}, Config{Handshakes: handshakes, IsMember: func(peer.ID) bool { return false },
		Refused: func(string, peer.ID, string) {}})
}

// left fails unless g remembers no connection.
func left(t *testing.T, g *Gate) {
	t.Helper()
	if n := g.table.handshakes.Len(); n != 0 || len(g.table.peers)+len(g.table.circuits)+len(g.table.pending) != 0 {
		t.Errorf("left behind: %d handshakes, %d circuits, %d peers, %d that wait", n, len(g.table.circuits), len(g.table.peers), len(g.table.pending))
	}
}

// One relay's circuits leave the slots of others alone.
func TestCircuitsOfOneRelay(t *testing.T) {
	g := newGate(64)
	open := func(relay string) (network.ConnManagementScope, error) {
		return g.OpenConnection(network.DirInbound, false, ma.StringCast("/ip4/5.5.5.5/tcp/4470/p2p/"+relay+"/p2p-circuit"))
	}
	const one, other = "12D3KooWGRUaYYqUqDcDuWPSRJUJ2ZxpjBnWwvDBXyjGX5CWyNL8", "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"
	var held []network.ConnManagementScope
	for s, err := open(one); err == nil; s, err = open(one) {
		held = append(held, s)
	}
	if len(held) != 64/circuitPart {
		t.Errorf("one relay has %d handshakes under way, want %d", len(held), 64/circuitPart)
	}
	if s, err := open(other); err != nil {
		t.Error("another relay:", err)
	} else {
		held = append(held, s)
	}
	direct, err := g.OpenConnection(network.DirInbound, true, ma.StringCast("/ip4/5.5.5.5/tcp/1"))
	if err != nil {
		t.Fatal("a direct connection from the relay's address:", err)
	}
	held = append(held, direct)
	_ = held[0].SetPeer("member")
	if s, err := open(one); err != nil {
		t.Error("after one of its handshakes:", err)
	} else {
		held = append(held, s)
	}
	for _, s := range held {
		s.Done()
		s.Done() // QUIC calls it twice
	}
	left(t, g)
}

func busy(g *Gate) bool { return g.VerifySourceAddress(nil) }

// QUIC has addresses verified as soon as an eighth of the slots are taken.
func TestVerifySourceAddress(t *testing.T) {
	g := newGate(64)
	var last network.ConnManagementScope
	for i := range 64/verifyPart + 1 {
		if busy(g) {
			t.Errorf("%d handshakes make a gate of 64 busy", i)
		}
		var err error
		if last, err = g.OpenConnection(network.DirInbound, true, ma.StringCast(fmt.Sprintf("/ip4/5.5.5.%d/tcp/1", i))); err != nil {
			t.Fatal(err)
		}
	}
	if !busy(g) {
		t.Error("a busy gate does not ask for the source address's proof")
	}
	if last.Done(); busy(g) {
		t.Error("it still is, after one has ended")
	}
}

// What the resource manager refuses is counted with its reason, the peer and the address; what it allows is not.
func TestResourceRefusals(t *testing.T) {
	limits := rcmgr.PartialLimitConfig{
		System: rcmgr.ResourceLimits{Conns: 3},
		PeerDefault: rcmgr.ResourceLimits{
			Conns: 2, Streams: 2, Memory: 1 << 20,
		},
	}.Build(rcmgr.InfiniteLimits)
	rm, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits), rcmgr.WithMetricsDisabled())
	if err != nil {
		t.Fatal(err)
	}
	defer rm.Close()
	var got []string
	want := func(list ...string) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(list) {
			t.Errorf("refused %q, want %q", got, list)
		}
		got = nil
	}
	g := New(rm, Config{Handshakes: 100, IsMember: func(peer.ID) bool { return true },
		Refused: func(reason string, p peer.ID, from string) { got = append(got, reason+" "+string(p)+" "+from) }})
	from := ma.StringCast("/ip4/5.5.5.5/tcp/7")
	open := func() network.ConnManagementScope {
		t.Helper()
		c, err := g.OpenConnection(network.DirInbound, false, from)
		if err != nil {
			return nil
		}
		return c
	}
	a, b, c := open(), open(), open()
	for _, x := range []network.ConnManagementScope{a, b} {
		if err := x.SetPeer("member"); err != nil {
			t.Fatal(err)
		}
	}
	span, err := a.PeerScope().BeginSpan()
	if err != nil {
		t.Fatal(err)
	}
	if err := span.ReserveMemory(1<<19, network.ReservationPriorityAlways); err != nil {
		t.Fatal(err)
	}
	want()
	if open() != nil {
		t.Error("a fourth connection")
	}
	want(refusals.Connections + "  /ip4/5.5.5.5/tcp/7")
	if c.SetPeer("member") == nil {
		t.Error("a third connection of one peer")
	}
	want(refusals.PeerConns + " member /ip4/5.5.5.5/tcp/7")
	for i := range 3 {
		if _, err := g.OpenStream("member", network.DirInbound); (err == nil) != (i < 2) {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	want(refusals.PeerStreams + " member /ip4/5.5.5.5/tcp/7")
	if span.ReserveMemory(1<<20, network.ReservationPriorityAlways) == nil || span.ReserveMemory(1<<20, network.ReservationPriorityLow) == nil {
		t.Error("2 MiB for one peer")
	}
	want(refusals.Memory + " member /ip4/5.5.5.5/tcp/7") // a window that stays small is no refusal
	for _, x := range []network.ConnManagementScope{a, b, c} {
		x.Done()
	}
	left(t, g)
}

// A flood takes no slots of circuits, which come from a relay; a stranger's own connection is refused then.
func TestCircuitsDuringAFlood(t *testing.T) {
	rm, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(rcmgr.InfiniteLimits), rcmgr.WithMetricsDisabled(),
		rcmgr.WithLimitPerSubnet([]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: 1 << 20}}, nil), rcmgr.WithConnRateLimiters(&rate.Limiter{}))
	if err != nil {
		t.Fatal(err)
	}
	defer rm.Close()
	var reasons []string
	g := New(rm, Config{Handshakes: 64, IsMember: func(peer.ID) bool { return false },
		Refused: func(reason string, _ peer.ID, from string) { reasons = append(reasons, reason+" "+from) }})
	for i := range 100 {
		for {
			if _, err := g.OpenConnection(network.DirInbound, false, ma.StringCast(fmt.Sprintf("/ip4/5.0.1.%d/tcp/1", i))); err != nil {
				break
			}
		}
	}
	if want := refusals.Address + " 5.0.1.0"; reasons[0] != want {
		t.Errorf("the first is refused for %q, want %q", reasons[0], want)
	}
	relay := ma.StringCast("/ip4/5.0.0.2/tcp/4501")
	if _, err := g.OpenConnection(network.DirInbound, false, relay); err == nil {
		t.Error("the control: a slot is left for a stranger")
	}
	if got, want := reasons[len(reasons)-1], refusals.Handshakes+" 5.0.0.2"; got != want {
		t.Errorf("refused for %q, want %q", got, want)
	}
	circuit := relay.Encapsulate(ma.StringCast("/p2p/12D3KooWMWsmWt1mKg4r79VRFm9KrEfwgqJ4YHJ3LJVUYfCbB48m/p2p-circuit"))
	for range 64 / circuitPart {
		c, err := g.OpenConnection(network.DirInbound, false, circuit)
		if err != nil {
			t.Fatalf("a circuit: %v", err)
		}
		defer c.Done()
	}
}

// Addresses that members have come from are known, whatever form they have.
func TestKnownAddresses(t *testing.T) {
	g := New(&network.NullResourceManager{}, Config{Handshakes: 8, IsMember: func(p peer.ID) bool { return p == "member" },
		Refused: func(string, peer.ID, string) {}})
	for i, p := range []peer.ID{"member", "stranger"} {
		c, err := g.OpenConnection(network.DirInbound, true, ma.StringCast(fmt.Sprintf("/ip4/5.5.5.%d/tcp/1", i)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Done()
		if err := c.SetPeer(p); err != nil {
			t.Fatal(err)
		}
	}
	out, err := g.OpenConnection(network.DirOutbound, true, ma.StringCast("/ip4/5.5.5.2/tcp/1"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Done()
	if err := out.SetPeer("member"); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{"/ip4/5.5.5.0/tcp/9": true, "/ip6/::ffff:5.5.5.0/tcp/9": true, "/ip4/5.5.5.1/tcp/9": false, "/ip4/5.5.5.2/tcp/1": false} {
		prefix, ok := prefixOf(addr)
		if !ok || g.table.known(prefix) != want {
			t.Errorf("%s is known: %t", addr, !want)
		}
	}
}

func prefixOf(addr string) (netip.Prefix, bool) { return pool.PrefixOf(ma.StringCast(addr)) }
