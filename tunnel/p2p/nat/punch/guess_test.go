package punch

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/portguess"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/nat/uplinks"
	"edgemesh/tunnel/p2p/who/members"
)

// silent is a peer that nothing becomes of.
type silent struct{}

func (silent) ID() peer.ID                                    { return "peer" }
func (silent) Name() string                                   { return "peer" }
func (silent) Admitted() bool                                 { return true }
func (silent) Missing() []ladder.Transport                    { return []ladder.Transport{ladder.TCP, ladder.QUIC} }
func (silent) Wanted() []ladder.Transport                     { return nil }
func (silent) Await(ctx context.Context, _ func() bool) error { <-ctx.Done(); return ctx.Err() }
func (silent) Offered([]endpoint.Endpoint, ladder.NAT)        {}

// What a peer says cannot have packets sent to others, or to this node's own networks.
func TestGuessIsBounded(t *testing.T) {
	view := members.NewView("self", members.Membership{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	addrs := uplinks.New(func() *members.View { return view }, func() []ma.Multiaddr { return nil })
	now := func() ladder.Time { return 0 }
	guard := targets.New(targets.Config{Near: addrs.Near, Public: endpoint.IsPublic, Now: now})
	a := New(Config{Addrs: addrs, Guess: func() bool { return true }, Targets: guard, Now: now}).With(silent{}, nil)
	const his = "/ip4/5.5.2.1/udp/40007/quic-v1"
	random, one := portguess.Range{Low: 40000, High: 40255}, portguess.Range{Low: 4001, High: 4001}
	mine := offer{Ports: &portsOffer{Range: one}}
	eps := endpoints([]string{his, "/ip4/192.168.1.1/udp/40007/quic-v1", "/ip4/10.244.1.1/udp/40007/quic-v1", "/ip6/2001:db8::1/udp/40007/quic-v1"}, maxOffer)
	for name, o := range map[string]*portsOffer{
		"none":           nil,
		"not offered":    {"/ip4/5.5.3.1/udp/40007/quic-v1", random},
		"TCP":            {"/ip4/5.5.2.1/tcp/40007", random},
		"private":        {"/ip4/192.168.1.1/udp/40007/quic-v1", random},
		"in the cluster": {"/ip4/10.244.1.1/udp/40007/quic-v1", random},
		"IPv6":           {"/ip6/2001:db8::1/udp/40007/quic-v1", random},
		"no address":     {"x", random},
	} {
		if g, _ := (guessed{a}).plan(mine, offer{Ports: o}, eps, time.Now()); g != nil {
			t.Errorf("%s: would be guessed", name)
			g.Release()
		}
	}
	good := offer{Ports: &portsOffer{his, random}}
	if g, _ := (guessed{a}).plan(offer{}, good, eps, time.Now()); g != nil {
		t.Error("guessed although this side has not agreed")
	}
	g, _ := guessed{a}.plan(mine, good, eps, time.Now())
	if g == nil {
		t.Fatal("the best offer is refused")
	}
	g.Release()
}

// Nothing is sent to where the peer says it is while no relay says the same. The status says so, and it is counted.
func TestGuessIsAimedByRelays(t *testing.T) {
	addr := endpoint.Endpoint{UDP: true, Addr: netip.MustParseAddrPort("5.5.2.1:40007")}
	now := func() ladder.Time { return 0 }
	for _, c := range []struct {
		name, why, counted string
		seen               [][]endpoint.Endpoint
	}{
		{"relays of a former version", "none of `relays` says that it sees the peer there", "target_unseen", nil},
		{
			"one of two relays lies", "`relays` disagree on where the peer is", "target_disputed",
			[][]endpoint.Endpoint{{addr}, {{UDP: true, Addr: netip.MustParseAddrPort("5.5.3.1:40007")}}},
		},
	} {
		guard := targets.New(targets.Config{Public: endpoint.IsPublic, Now: now, Witness: func(context.Context, peer.ID) [][]endpoint.Endpoint { return c.seen }, Log: slog.New(slog.DiscardHandler), Name: func(p peer.ID) string { return string(p) }})
		guard.Seen("peer", c.seen)
		p := New(Config{Guess: func() bool { return true }, Targets: guard, Now: now, Ctx: t.Context(), Log: slog.New(slog.DiscardHandler), Open: func(string, *net.UDPAddr) (*net.UDPConn, error) {
			t.Error(c.name + ": a socket is opened")
			return nil, net.ErrClosed
		}})
		a := p.With(silent{}, nil)
		attempt, _ := p.guesser.Attempt(guessed{a}, portguess.Range{Low: 40000, High: 40255}, portguess.Range{Low: 40007, High: 40007}, addr.Addr, time.Now())
		if attempt == nil {
			t.Fatal("no attempt")
		}
		a.past.last.missing = []string{"tcp", "quic"}
		if (guessed{a}).run(attempt) || guard.Refused()[c.counted] != 1 {
			t.Errorf("%s: guessed, or counted %v", c.name, guard.Refused())
		}
		if why := a.guessed; why != "ports are not guessed: "+c.why {
			t.Errorf("%s: %q", c.name, why)
		}
		attempt.Release()
		if ready, _ := p.guesser.Ready("peer"); !ready {
			t.Errorf("%s: a pause although nothing was sent", c.name)
		}
	}
}

// What the peer waits before it answers is no part of the round trip.
func TestRoundTrip(t *testing.T) {
	for _, c := range []struct{ known, exchange, want time.Duration }{{0, 90, 90}, {30, 1090, 30}, {100, 90, 90}} {
		if got := roundTrip(c.known, c.exchange); got != c.want {
			t.Errorf("known %d, exchange %d: %d, want %d", c.known, c.exchange, got, c.want)
		}
	}
}

// Why nothing is guessed is said where guessing might help, and another peer's attempt is waited for.
func TestWhyNothingIsGuessed(t *testing.T) {
	one := &portsOffer{Range: portguess.Range{Low: 4001, High: 4001}}
	nat := func(k ladder.NAT, o offer) offer { o.NAT = k.String(); return o }
	for _, c := range []struct {
		name         string
		mine, theirs offer
		want         string
		later        bool
	}{
		{"easier ways", nat(ladder.NATStable, offer{NoPorts: notAllowed}), nat(ladder.NATStable, offer{NoPorts: notAllowed}), "", false},
		{"never here", nat(ladder.NATStable, offer{NoPorts: notAllowed}), nat(ladder.NATRandom, offer{}), "punch.guess is never here", false},
		{"never there", nat(ladder.NATStable, offer{Ports: one}), nat(ladder.NATRandom, offer{NoPorts: notAllowed}), "the peer has punch.guess: never", false},
		{"a former version", nat(ladder.NATStable, offer{Ports: one}), nat(ladder.NATRandom, offer{}), "punch: {birthday: true}", false},
		{"busy here", nat(ladder.NATStable, offer{NoPorts: isBusy}), nat(ladder.NATRandom, offer{}), "another peer has ended", true},
		{"busy there", nat(ladder.NATStable, offer{Ports: one}), nat(ladder.NATRandom, offer{NoPorts: isBusy}), "attempt with another one", true},
		{"busy, but not allowed", nat(ladder.NATStable, offer{NoPorts: notAllowed}), nat(ladder.NATRandom, offer{NoPorts: isBusy}), "never here", false},
		{"both random", nat(ladder.NATRandom, offer{NoPorts: notKnown}), nat(ladder.NATSequential, offer{NoPorts: isBusy}), portguess.BothRandom, false},
	} {
		a := New(Config{}).With(silent{}, nil)
		g, later := guessed{a}.plan(c.mine, c.theirs, nil, time.Now())
		if g != nil || later != c.later || !strings.Contains(a.guessed, c.want) || c.want == "" && a.guessed != "" {
			t.Errorf("%s: %v, later %v, %q", c.name, g, later, a.guessed)
		}
	}
}
