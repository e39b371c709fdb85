// Package punch makes direct connections, TCP and QUIC, beside the relayed path that is
// there: hole punching. The exchange is DCUtR's (libp2p specs, relay/DCUtR.md) with a
// protocol ID of its own: the coordinator, which is the member with the smaller peer ID,
// sends its addresses, gets the peer's, says "sync", waits half a round trip, and both
// dial at the same time. When to punch is decided elsewhere (package ladder).
//
//	attempts.go  what the attempts with one peer need, and what is remembered of them
//	punch.go     one attempt, on both sides
//	apart.go     two sides without an IP version in common
//	dial.go      the dials of an attempt
//	pending.go   TCP dials that outlive their attempt
//	offer.go     what the two sides say to each other, on the wire
//	outcome.go   what came of an attempt, in words
//	guess.go     guessing a port of the peer, if nothing else helps (package portguess)
package punch

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/time/rate"

	"edgemesh/internal/seldom"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/nat/portguess"
	"edgemesh/tunnel/p2p/nat/sense"
	"edgemesh/tunnel/p2p/nat/targets"
)

// A peer may have offerBurst of its offers answered in a row, then one every offerEvery: one that keeps to the machine's
// pauses begins no more.
const (
	offerBurst = 8
	offerEvery = 4 * time.Second
)

// attemptTimeout bounds one attempt: a dropped SYN is sent again after 1 s, so the second one has time to get through. TCP dials
// last longer (pending.go).
const attemptTimeout = 3 * time.Second

// strangerFor is how long an endpoint is not dialed after a stranger answered there.
const strangerFor = 10 * time.Minute

// Config is what punching needs of this node; all of it is required, except Guess and
// AwaitSeen.
type Config struct {
	Dialer Dialer
	Addrs  Addrs
	Sense  Sense
	// Seen returns the endpoints where relays see this node's listening sockets; perDest:
	// two relays see one socket at different ports. Mapped returns those that routers
	// forward to this node.
	Seen func() (seen []endpoint.Endpoint, perDest bool)
	// AwaitSeen waits a moment for a relay to see this node's UDP socket where none does, and one will.
	AwaitSeen func(ctx context.Context)
	Mapped    func() []endpoint.Endpoint
	// Open opens an underlay socket for guessing ports, and Share lets QUIC have it.
	Open  func(network string, a *net.UDPAddr) (*net.UDPConn, error)
	Share func(*net.UDPConn) (net.PacketConn, error)
	// Targets says which addresses that a peer named are dialed.
	Targets *targets.Guard
	// ViaNAT64 reports whether this node has no IPv4, and reaches IPv4 hosts through NAT64.
	ViaNAT64 func(context.Context) bool
	// Ended is called after each attempt, with the NATs on both sides; ok: a direct connection is there. nil: ignored.
	Ended func(mine, theirs ladder.NAT, ok bool)
	// Guess reports whether ports are guessed where nothing else can give a direct path; nil: never.
	Guess func() bool
	// Ctx ends with the node, and Spawn runs a goroutine that the node waits for; false:
	// the node is closed.
	Ctx   context.Context //nolint:containedctx // the node's lifetime
	Spawn func(func()) bool
	Now   func() ladder.Time
	Log   *slog.Logger
}

// Dialer dials beside the connections there are, and sends from this node's sockets.
type Dialer interface {
	// Dial dials from the listening socket, DialFresh from a new one, and DialFrom from the one that open makes. When they
	// return, the connection is a path.
	Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) error
	DialFresh(ctx context.Context, e endpoint.Endpoint, p peer.ID) error
	DialFrom(ctx context.Context, e endpoint.Endpoint, p peer.ID, open func(string, *net.UDPAddr) (net.PacketConn, error)) error
	// OpenNAT sends punch packets from the listening sockets until ctx ends.
	OpenNAT(ctx context.Context, eps []endpoint.Endpoint)
	// ListenAddrs are the addresses that are bound, ListeningUDP4 is the socket of one; nil: there is none.
	ListenAddrs() []ma.Multiaddr
	ListeningUDP4() net.PacketConn
}

// Addrs knows this host's addresses.
type Addrs interface {
	// Local are the endpoints that peers may try.
	Local() []endpoint.Endpoint
	// Dialable reports whether an endpoint that a peer offered may be dialed at all.
	Dialable(e endpoint.Endpoint) bool
	// Owns reports whether ip is one of them.
	Owns(ip netip.Addr) bool
	// Near reports whether ip is in a network of this host's.
	Near(ip netip.Addr) bool
	// ReachesIPv6 reports whether e is in the IPv6 internet, and this host as well.
	ReachesIPv6(e endpoint.Endpoint) bool
}

// Sense knows what this node's NAT does.
type Sense interface {
	View() sense.View
	// Predict returns where the next UDP mappings will be, if that can be foreseen.
	Predict(ctx context.Context) []netip.AddrPort
}

// Puncher punches for one node.
type Puncher struct {
	Config
	guesser  *portguess.Guesser
	refused  atomic.Uint64 // offers, of peers that make too many
	reported seldom.Log
}

// New returns a Puncher.
func New(c Config) *Puncher { return &Puncher{Config: c, guesser: newGuesser(c)} }

// Refused is how many offers were not answered, because their peers make too many.
func (u *Puncher) Refused() uint64 { return u.refused.Load() }

// NAT is the best that is known of this node's NAT.
func (u *Puncher) NAT() ladder.NAT {
	k := u.Sense.View().Kind
	if k == ladder.NATUnknown {
		seen, perDest := u.Seen()
		k = sense.Judge(seen, u.Addrs.Local(), perDest)
	}
	if k != ladder.NATNone && len(u.Mapped()) > 0 {
		return ladder.NATStable // one port is open to all
	}
	return k
}

// outside are the addresses at which relays see this node that are not its own.
func (u *Puncher) outside() (out []netip.Addr) {
	seen, _ := u.Seen()
	for _, s := range seen {
		if a := s.Addr.Addr(); !u.Addrs.Owns(a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// nat66 reports whether relays see this node at an IPv6 address that is not its own.
func (u *Puncher) nat66() bool {
	seen, _ := u.Seen()
	return slices.ContainsFunc(seen, func(s endpoint.Endpoint) bool { return s.Addr.Addr().Is6() && !u.Addrs.Owns(s.Addr.Addr()) })
}

// Peer is a peer as its attempts see it. Its methods are called without any lock of this
// package.
type Peer interface {
	ID() peer.ID
	// Name is what logs call it.
	Name() string
	// Admitted reports whether it is still a member.
	Admitted() bool
	// Missing returns the transports there is no live direct path over.
	Missing() []ladder.Transport
	// Wanted returns those, and the ones that may be had over IPv6 again.
	Wanted() []ladder.Transport
	// Await waits until done returns true; it is called after every change of the
	// peer's paths.
	Await(ctx context.Context, done func() bool) error
	// Offered receives what the peer's offer said: where it may be dialed, and its NAT.
	Offered(eps []endpoint.Endpoint, nat ladder.NAT)
}

// Attempts are those with one peer: what they need, and what is remembered of them.
type Attempts struct {
	u *Puncher
	p Peer

	mu     sync.Mutex          // a leaf
	known  []endpoint.Endpoint // where the peer said it may be dialed, last time
	theirs ladder.NAT          // the peer's, as it said
	nat66  bool                // likewise: its IPv6 is translated
	past   history
	busy   bool          // answering an offer
	offers *rate.Limiter // of the peer, that are answered
	// strangers has endpoints where strangers answered, and until when they are not
	// dialed.
	strangers map[endpoint.Endpoint]ladder.Time
	pending   map[endpoint.Endpoint]*pending
	guessed   string // what came of guessing ports the last time, for an operator
}

// With returns the attempts with p, which was last reached at known.
func (u *Puncher) With(p Peer, known []endpoint.Endpoint) *Attempts {
	return &Attempts{u: u, p: p, known: known, offers: rate.NewLimiter(rate.Every(offerEvery), offerBurst)}
}

// Known returns where the peer may be dialed, as far as it said so.
func (a *Attempts) Known() []endpoint.Endpoint {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.known)
}

// NAT is the peer's, as it said.
func (a *Attempts) NAT() ladder.NAT {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.theirs
}

// offered remembers what the peer said, before anything else may end the attempt.
func (a *Attempts) offered(o offer, eps []endpoint.Endpoint) {
	nat := ladder.ParseNAT(o.NAT)
	a.mu.Lock()
	a.known, a.theirs, a.nat66 = eps, nat, o.NAT66
	a.mu.Unlock()
	a.p.Offered(eps, nat)
}

// IPv6 reports whether this node and the peer, by what it said, are both in the IPv6 internet, or translated to it.
func (a *Attempts) IPv6() bool {
	known := a.Known()
	return slices.ContainsFunc(known, a.u.Addrs.ReachesIPv6) || a.u.nat66() && slices.ContainsFunc(known, func(e endpoint.Endpoint) bool {
		return e.Addr.Addr().Is6() && endpoint.IsPublic(e.Addr.Addr())
	})
}

// missing returns which of the wanted transports have no direct path, or may have a better one.
func (a *Attempts) missing(want []string) []string {
	return slices.DeleteFunc(names(a.p.Wanted()), func(t string) bool { return !slices.Contains(want, t) })
}

// names are those of transports in offers.
func names(ts []ladder.Transport) []string {
	var out []string
	for _, t := range ts {
		out = append(out, t.String())
	}
	return out
}

// NoteStranger remembers where a stranger answered instead of the peer, if that is what
// err says: another site uses the same private addresses. That does no harm, but costs a
// handshake.
func (a *Attempts) NoteStranger(e endpoint.Endpoint, err error) {
	if _, stranger := dialer.Answered(err); !stranger {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.strangers == nil || len(a.strangers) >= 4*maxOffer {
		a.strangers = make(map[endpoint.Endpoint]ladder.Time)
	}
	a.strangers[e] = a.u.Now() + strangerFor
}

// Worth reports whether an endpoint of the peer is worth dialing: it may be dialed at all,
// and no stranger answered there lately.
func (a *Attempts) Worth(e endpoint.Endpoint) bool {
	if !a.u.Addrs.Dialable(e) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.u.Now() >= a.strangers[e]
}

// NetChanged forgets where strangers answered: this may be another LAN.
func (a *Attempts) NetChanged() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.strangers)
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

// Tried returns what was tried, whoever began it; ok is false where the last attempt left nothing missing, or there was
// none.
func (a *Attempts) Tried() (t Tried, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.past.last
	if len(last.missing) == 0 {
		return Tried{}, false
	}
	return Tried{Apart: last.apart != "", Failed: a.past.failed, Last: last.at, Missing: slices.Sorted(slices.Values(last.missing)),
		Dials: slices.Sorted(slices.Values(last.dials)), Text: last.text()}, true
}

// WhyRelayed says in words why there is no direct path.
func (a *Attempts) WhyRelayed() []string {
	mine := a.u.NAT()
	here := a.u.nat66()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch last := a.past.last; {
	case len(last.missing) == 0:
		return []string{"hole punching has not ended yet"}
	case last.apart != "":
		return []string{"relayed: " + last.apart}
	}
	why := []string{"relayed: " + whyRelayed(mine, a.theirs), a.past.last.text()}
	switch {
	case here && a.nat66:
		why = append(why, "IPv6 is translated here and there (NAT66)")
	case here:
		why = append(why, "IPv6 is translated here (NAT66)")
	case a.nat66:
		why = append(why, "IPv6 is translated there (NAT66)")
	}
	if a.guessed != "" {
		why = append(why, a.guessed)
	}
	return why
}

// pending is a TCP dial that outlives the attempt that began it; the next attempt
// joins it. A router that has seen both sides' SYNs remembers their sequence numbers
// for 2 minutes (Linux: SYN_SENT2) and does not translate the SYN of a new dial
// between the same ports, while the same SYN sent again still gets through.
type pending struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done
}
