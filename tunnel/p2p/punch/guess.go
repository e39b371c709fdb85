package punch

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/dialer"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/portguess"
)

// guessLead is how long after the sync of an attempt that was agreed on both sides begin to guess, if dialing has made no
// path by then.
const guessLead = attemptTimeout + time.Second

// portsOffer is what a node lets be guessed: on the wire part of an offer.
type portsOffer struct {
	Addr            string `json:"addr"` // multiaddr, one of those offered
	portguess.Range        // one port, or those of a NAT that maps at random
}

// newGuesser makes what bounds port guessing.
func newGuesser(c Config) *portguess.Guesser {
	return portguess.New(portguess.Config{
		Now:       c.Now,
		Open:      func() (*net.UDPConn, error) { return c.Open("udp4", &net.UDPAddr{}) },
		Listening: func() net.PacketConn { return c.Dialer.ListeningUDP4() },
		Packet:    dialer.PunchPacket,
		Log:       c.Log,
	})
}

// offer says what the peer may guess, if both sides were to; nil: nothing.
func (g guessed) offer() *portsOffer {
	a := g.a
	if !a.u.Guess || !a.u.guesser.Ready(a.p.Name()) || !g.Wanted() {
		return nil
	}
	seen, _ := a.u.Seen()
	i := slices.IndexFunc(seen, func(e endpoint.Endpoint) bool { return e.UDP && e.Addr.Addr().Is4() })
	if i < 0 {
		return nil
	}
	o := &portsOffer{Addr: seen[i].Multiaddr().String()}
	switch v := a.u.Sense.View(); {
	case a.u.NAT() == ladder.NATStable && !v.Kind.PerDestination():
		o.Range = portguess.Range{Low: seen[i].Addr.Port(), High: seen[i].Addr.Port()}
	case v.Kind == ladder.NATRandom && v.Ports.Size() > 0 && v.Addr == seen[i].Addr.Addr():
		o.Range = v.Ports
	default:
		return nil
	}
	return o
}

// plan works out from both offers what to do should dialing fail; nil: nothing. sync is when the attempt began, on
// both sides.
func (g guessed) plan(mine, theirs offer, eps []endpoint.Endpoint, sync time.Time) *portguess.Attempt {
	if mine.Ports == nil || theirs.Ports == nil {
		return nil
	}
	at, err := ma.NewMultiaddr(theirs.Ports.Addr)
	if err != nil {
		return nil
	}
	// What is sent goes to a host that the peer is dialed at anyway, and that is not one of this node's own networks.
	e, ok := endpoint.Parse(at)
	if !ok || !e.UDP || !e.Addr.Addr().Is4() || !slices.Contains(eps, e) || !g.a.u.Addrs.Dialable(e) || !endpoint.IsPublic(e.Addr.Addr()) ||
		g.a.u.Targets.Check(g.a.p.ID(), e) != nil {
		return nil
	}
	attempt, why := g.a.u.guesser.Attempt(g, mine.Ports.Range, theirs.Ports.Range, e.Addr, sync.Add(guessLead))
	if why != "" {
		g.note(why)
	}
	return attempt
}

// run guesses, if there is still no direct path. It reports whether there is one.
func (g guessed) run(attempt *portguess.Attempt) bool {
	met, outcome := attempt.Run(g.a.u.Ctx)
	if met || outcome != "" {
		g.note(outcome)
	}
	return met
}

// note says to an operator what came of guessing.
func (g guessed) note(text string) {
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	g.a.guessed = text
}

// guessed is a peer as port guessing sees it.
type guessed struct{ a *Attempts }

var _ portguess.Peer = guessed{}

func (g guessed) Name() string { return g.a.p.Name() }
func (g guessed) Met() bool    { return g.a.has(true) }
func (g guessed) Wanted() bool { return g.a.p.Admitted() && len(g.a.p.Missing()) == 2 }

func (g guessed) AwaitMet(ctx context.Context) { _ = g.a.p.Await(ctx, g.Met) }

func (g guessed) Dial(ctx context.Context, c *net.UDPConn, to netip.AddrPort) error {
	used := false
	err := g.a.u.Dialer.DialFrom(ctx, endpoint.Endpoint{UDP: true, Addr: to}, g.a.p.ID(), func(string, *net.UDPAddr) (net.PacketConn, error) {
		used = true
		return g.a.u.Share(c)
	})
	if !used {
		_ = c.Close()
	}
	if err != nil {
		return err
	}
	return g.a.arrived(ctx, true)
}
