package punch

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/nat/portguess"
)

// guessLead is how long after the sync of an attempt that was agreed on both sides begin to guess, if dialing has made no
// path by then.
const guessLead = attemptTimeout + time.Second

// noPorts says to an operator why the peer lets no ports be guessed.
func noPorts(why string) string {
	switch why {
	case notAllowed:
		return "ports are not guessed: the peer has punch.guess: never"
	case isBusy:
		return "ports are guessed as soon as the peer has ended an attempt with another one"
	case hasRested:
		return "ports are not guessed again yet: the peer pauses after its last attempt"
	case notKnown:
		return "ports are not guessed yet: the peer does not know which ports its NAT gives"
	default: // a former version
		return "ports are not guessed: the peer's version does so only with punch: {birthday: true}"
	}
}

// offer says what the peer may guess, if both sides were to; nil: nothing, and why.
func (g guessed) offer() (*portsOffer, string) {
	a := g.a
	if a.u.Guess == nil || !a.u.Guess() {
		return nil, notAllowed
	}
	if ready, busy := a.u.guesser.Ready(a.p.Name()); busy {
		return nil, isBusy
	} else if !ready {
		return nil, hasRested
	}
	seen, _ := a.u.Seen()
	i := slices.IndexFunc(seen, func(e endpoint.Endpoint) bool { return e.UDP && e.Addr.Addr().Is4() })
	if i < 0 || !g.Wanted() {
		return nil, notKnown
	}
	o := &portsOffer{Addr: seen[i].Multiaddr().String()}
	switch v := a.u.Sense.View(); {
	case a.u.NAT() == ladder.NATStable && !v.Kind.PerDestination():
		o.Range = portguess.Range{Low: seen[i].Addr.Port(), High: seen[i].Addr.Port()}
	case v.Kind == ladder.NATRandom && v.Ports.Size() > 0 && v.Addr == seen[i].Addr.Addr():
		o.Range = v.Ports
	default:
		return nil, notKnown
	}
	return o, ""
}

// plan works out from both offers what to do should dialing fail; nil: nothing, and the status says why if guessing might
// help. later: there will be an attempt once another one has ended. sync is when this one began, on both sides.
func (g guessed) plan(mine, theirs offer, eps []endpoint.Endpoint, sync time.Time) (attempt *portguess.Attempt, later bool) {
	here, there := ladder.ParseNAT(mine.NAT), ladder.ParseNAT(theirs.NAT)
	switch {
	case mine.Ports != nil && theirs.Ports != nil:
		return g.attempt(mine.Ports, theirs.Ports, eps, sync), false
	case !ladder.Hopeless(here, there):
		return nil, false
	case here.PerDestination() && there.PerDestination():
		g.note(portguess.BothRandom)
		return nil, false
	case mine.NoPorts == notAllowed:
		g.note("ports are not guessed: punch.guess is never here")
	case mine.NoPorts == isBusy:
		g.note("ports are guessed as soon as an attempt with another peer has ended")
	case mine.NoPorts == hasRested: // the last attempt's outcome says until when
	case mine.Ports == nil:
		g.note("ports are not guessed yet: it is not known which ports the NAT here gives")
	default:
		g.note(noPorts(theirs.NoPorts))
	}
	return nil, mine.NoPorts == isBusy || mine.Ports != nil && theirs.NoPorts == isBusy
}

func (g guessed) attempt(mine, theirs *portsOffer, eps []endpoint.Endpoint, sync time.Time) *portguess.Attempt {
	at, err := ma.NewMultiaddr(theirs.Addr)
	if err != nil {
		return nil
	}
	// What is sent goes to a host that the peer is dialed at anyway, and that is not one of this node's own networks.
	e, ok := endpoint.Parse(at)
	if !ok || !e.UDP || !e.Addr.Addr().Is4() || !slices.Contains(eps, e) || !g.a.u.Addrs.Dialable(e) || !endpoint.IsPublic(e.Addr.Addr()) ||
		g.a.u.Targets.Check(g.a.p.ID(), e) != nil {
		return nil
	}
	attempt, why := g.a.u.guesser.Attempt(g, mine.Range, theirs.Range, e.Addr, sync.Add(guessLead))
	if why != "" {
		g.note(why)
	}
	return attempt
}

// run guesses, if there is still no direct path, and relays see the peer where it says it is: they were queried when the
// offers were exchanged, and are queried again if they had not seen it there by then. It reports whether there is a direct path.
func (g guessed) run(attempt *portguess.Attempt) bool {
	if attempt == nil || !g.Wanted() {
		return false
	}
	ctx, cancel := context.WithTimeout(g.a.u.Ctx, guessLead-attemptTimeout)
	defer cancel()
	if err := g.a.u.Targets.Aim(ctx, g.a.p.ID(), endpoint.Endpoint{UDP: true, Addr: attempt.To()}); err != nil {
		g.note("ports are not guessed: " + err.Error())
		return false
	}
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
	return err
}
