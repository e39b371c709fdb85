package punch

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/birthday"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/members"
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

// What a peer says cannot have packets sent to others, to a server's ports, to this node's
// own networks, or more often than this side's bounds allow.
func TestGuessIsBounded(t *testing.T) {
	var now ladder.Time
	view := members.NewView("self", members.Membership{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	addrs := uplinks.New(func() *members.View { return view }, func() []ma.Multiaddr { return nil })
	a := New(Config{Addrs: addrs, Guess: true, Now: func() ladder.Time { return now }}).With(silent{}, nil)
	random := birthday.Range{Low: 40000, High: 40255}
	const his = "/ip4/5.5.2.1/udp/40007/quic-v1"
	mine := offer{Ports: &portsOffer{Range: random}}
	eps := endpoints([]string{his, "/ip4/192.168.1.1/udp/40007/quic-v1", "/ip4/10.244.1.1/udp/40007/quic-v1", "/ip6/2001:db8::1/udp/40007/quic-v1"}, maxOffer)
	plan := func(mine offer, ports *portsOffer) *guess {
		return a.planGuess(mine, offer{Ports: ports}, eps, true, time.Now())
	}
	for name, o := range map[string]*portsOffer{
		"none":                  nil,
		"not offered":           {"/ip4/5.5.3.1/udp/40007/quic-v1", random},
		"TCP":                   {"/ip4/5.5.2.1/tcp/40007", random},
		"private":               {"/ip4/192.168.1.1/udp/40007/quic-v1", random},
		"in the cluster":        {"/ip4/10.244.1.1/udp/40007/quic-v1", random},
		"IPv6":                  {"/ip6/2001:db8::1/udp/40007/quic-v1", random},
		"no address":            {"x", random},
		"no range":              {his, birthday.Range{}},
		"backwards":             {his, birthday.Range{Low: 9000, High: 8000}},
		"servers":               {his, birthday.Range{Low: 1, High: 1100}},
		"another port":          {his, birthday.Range{Low: 53, High: 53}},
		"no odds to speak of":   {his, birthday.Range{Low: 1024, High: 65535}},
		"neither is a surprise": {his, birthday.Range{Low: 40007, High: 40007}},
	} {
		m := mine
		if name == "no odds to speak of" {
			m = offer{Ports: &portsOffer{Range: birthday.Range{Low: 1024, High: 65535}}}
		}
		if name == "neither is a surprise" {
			m = offer{Ports: &portsOffer{Range: birthday.Range{Low: 4001, High: 4001}}}
		}
		if g := plan(m, o); g != nil {
			t.Errorf("%s: would be guessed", name)
			g.release()
		}
	}
	if plan(offer{}, &portsOffer{his, random}) != nil {
		t.Error("guessed although this side has not agreed")
	}
	good := &portsOffer{his, random}
	g := plan(mine, good)
	if g == nil {
		t.Fatal("the best offer is refused")
	}
	if plan(mine, good) != nil {
		t.Error("two at once")
	}
	a.u.limits.spent(g.host, now)
	g.release()
	if plan(mine, good) != nil {
		t.Error("the same host twice in a row")
	}
	now += birthday.Every
	if g = plan(mine, good); g == nil {
		t.Fatal("refused when the time has come")
	}
	g.release()
}
