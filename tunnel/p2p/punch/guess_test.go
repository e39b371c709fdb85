package punch

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/portguess"
	"edgemesh/tunnel/p2p/targets"
	"edgemesh/tunnel/p2p/uplinks"
)

// silent is a peer that nothing becomes of.
type silent struct{}

func (silent) ID() peer.ID                                    { return "peer" }
func (silent) Name() string                                   { return "peer" }
func (silent) Admitted() bool                                 { return true }
func (silent) Missing() []ladder.Transport                    { return []ladder.Transport{ladder.TCP, ladder.QUIC} }
func (silent) Await(ctx context.Context, _ func() bool) error { <-ctx.Done(); return ctx.Err() }
func (silent) Offered([]endpoint.Endpoint, ladder.NAT)        {}

// What a peer says cannot have packets sent to others, or to this node's own networks.
func TestGuessIsBounded(t *testing.T) {
	view := members.NewView("self", members.Membership{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	addrs := uplinks.New(func() *members.View { return view }, func() []ma.Multiaddr { return nil })
	now := func() ladder.Time { return 0 }
	guard := targets.New(targets.Config{Near: addrs.Near, Public: endpoint.IsPublic, Now: now})
	a := New(Config{Addrs: addrs, Guess: true, Targets: guard, Now: now}).With(silent{}, nil)
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
		if g := (guessed{a}).plan(mine, offer{Ports: o}, eps, time.Now()); g != nil {
			t.Errorf("%s: would be guessed", name)
			g.Release()
		}
	}
	good := offer{Ports: &portsOffer{his, random}}
	if (guessed{a}).plan(offer{}, good, eps, time.Now()) != nil {
		t.Error("guessed although this side has not agreed")
	}
	g := guessed{a}.plan(mine, good, eps, time.Now())
	if g == nil {
		t.Fatal("the best offer is refused")
	}
	g.Release()
}
