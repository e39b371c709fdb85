package knock

import (
	"fmt"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/x/rate"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/who/refusals"
)

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
	g := New(rm, Config{Places: 100, IsMember: func(peer.ID) bool { return true },
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
	if g.pool.taken != 0 {
		t.Errorf("%d places are taken in the end", g.pool.taken)
	}
	g.from.Range(func(p, _ any) bool { t.Errorf("%v is remembered", p); return true })
}

// A flood takes no places of circuits, which come from a relay; a stranger's own connection is refused then.
func TestCircuitsDuringAFlood(t *testing.T) {
	rm, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(rcmgr.InfiniteLimits), rcmgr.WithMetricsDisabled(),
		rcmgr.WithLimitPerSubnet([]rcmgr.ConnLimitPerSubnet{{PrefixLength: 32, ConnCount: 1 << 20}}, nil), rcmgr.WithConnRateLimiters(&rate.Limiter{}))
	if err != nil {
		t.Fatal(err)
	}
	defer rm.Close()
	g := New(rm, Config{Places: 64, IsMember: func(peer.ID) bool { return false }, Refused: func(string, peer.ID, string) {}})
	fill(g.pool, 1000, 100)
	relay := ma.StringCast("/ip4/5.0.0.2/tcp/4501")
	if _, err := g.OpenConnection(network.DirInbound, false, relay); err == nil {
		t.Error("the control: a place is left for a stranger")
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
