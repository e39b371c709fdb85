// Package reach finds a first path to a peer: through relays and, at the same time, at its
// last addresses and on the local network; if all of that fails, at addresses from the DHT.
//
//	reach.go     a round of attempts, in all those ways
//	circuits.go  circuits through relays, and better ones
//	lan.go       the local network
//	dht.go       the DHT
package reach

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/path/mdns"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

const (
	// roundTimeout bounds one round of attempts to reach a peer.
	roundTimeout = 10 * time.Second
	// directTimeout bounds the direct dials of a round: failing ones must not delay the
	// next round, in which a relay may know better.
	directTimeout = 4 * time.Second
	// relayAgain is the pause until relays are tried again in a round.
	relayAgain = 400 * time.Millisecond
)

// Config is what finding peers needs of this node; all of it is required, except LAN.
type Config struct {
	Self   peer.ID
	Dialer Dialer
	Addrs  Addrs
	Relays Relays
	// Candidates are the relays for circuits to a peer, in the membership's order.
	Candidates func(peer.ID) []choice.Candidate
	DHT        Finder
	LAN        *mdns.Finder // nil: off
	// Targets says which addresses that a peer named are dialed.
	Targets *targets.Guard
	// Ctx ends with the node, and Spawn runs a goroutine that the node waits for; false:
	// the node is closed.
	Ctx   context.Context //nolint:containedctx // the node's lifetime
	Spawn func(func()) bool
	Log   *slog.Logger
}

// Dialer dials beside the connections there are.
type Dialer interface {
	// Dial dials p at a, which may be a circuit. When it returns, the connection is a path.
	Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) error
}

// Addrs knows this host's addresses.
type Addrs interface {
	// Dialable reports whether an endpoint that a peer offered may be dialed at all.
	Dialable(e endpoint.Endpoint) bool
	// Near reports whether ip is in a network of this host's.
	Near(ip netip.Addr) bool
}

// Relays are those that this node uses.
type Relays interface {
	// Infos are all of them, and Position is one's place in the membership's order.
	Infos() []peer.AddrInfo
	Position(relay peer.ID) int
	// AwaitAny waits until one is connected, at most for d.
	AwaitAny(ctx context.Context, d time.Duration)
	// Connect returns the address at which a relay is connected, and connects it where it is not. Visit does so with a
	// peer, if it is a relay.
	Connect(ctx context.Context, relay peer.ID) (ma.Multiaddr, error)
	Visit(ctx context.Context, p peer.ID)
	// Suspect has a relay pinged immediately.
	Suspect(relay peer.ID)
}

// Peer is a peer as the search for it sees it.
type Peer interface {
	ID() peer.ID
	// Name is what logs call it.
	Name() string
	// Connected reports whether there is a path.
	Connected() bool
}

// Places are addresses that a peer said it may be dialed at.
type Places interface {
	Known() []endpoint.Endpoint
	// Worth reports whether one of them is worth dialing, and NoteStranger receives the
	// error of a dial.
	Worth(e endpoint.Endpoint) bool
	NoteStranger(e endpoint.Endpoint, err error)
}

// Search is what is remembered of finding one peer.
type Search struct {
	*Config
	peer     Peer
	places   Places
	circuits circuits
}

// With returns the search for p.
func (c *Config) With(p Peer, places Places) *Search {
	return &Search{Config: c, peer: p, places: places}
}

// Connect makes one round of attempts. It returns nil as soon as there is a path. While other ways than relays may still
// lead to one, relays are tried again: this node may just have reached one, or the peer may.
func (s *Search) Connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	dctx, dcancel := context.WithTimeout(ctx, directTimeout)
	defer dcancel()
	direct := s.dialDirect(dctx)
	err := s.ByRelay(ctx)
	if err == nil || s.peer.Connected() {
		return nil
	}
	var derr error
	ended := make(chan struct{})
	if !s.Spawn(func() { defer close(ended); derr = s.byDHT(ctx); direct.Wait() }) {
		return dialer.ErrClosed
	}
	for {
		select {
		case <-ended:
			if derr == nil || s.peer.Connected() {
				return nil
			}
			return wording.Join(err, derr)
		case <-time.After(relayAgain):
		}
		if err = s.ByRelay(ctx); err == nil || s.peer.Connected() {
			return nil
		}
	}
}

// dialDirect dials, in goroutines that the group waits for, the addresses where the peer was
// last and where it answers on the local network.
func (s *Search) dialDirect(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	beside := func(f func()) {
		wg.Add(1)
		if !s.Spawn(func() { defer wg.Done(); f() }) {
			wg.Done()
		}
	}
	known := s.places.Known()
	slices.SortStableFunc(known, func(a, b endpoint.Endpoint) int { return cmp.Compare(s.distance(a), s.distance(b)) })
	for _, e := range known {
		if !s.places.Worth(e) {
			continue
		}
		most, err := s.Targets.Take(s.peer.ID(), e, targets.LastBudget)
		if err != nil {
			s.Log.Debug("not dialed where the peer was last", "peer", s.peer.Name(), "at", e, "why", err)
			continue
		}
		beside(func() {
			if err := s.dial(ctx, e, most); err != nil {
				s.places.NoteStranger(e, err)
				s.Log.Debug("dial where the peer was last", "peer", s.peer.Name(), "at", e, "err", err)
			}
		})
	}
	if s.LAN != nil {
		beside(func() { s.onLAN(ctx) })
	}
	if slices.ContainsFunc(s.Relays.Infos(), func(r peer.AddrInfo) bool { return r.ID == s.peer.ID() }) { // a member may be a relay
		beside(func() { s.Relays.Visit(ctx, s.peer.ID()) })
	}
	return &wg
}

// distance orders addresses: those in this node's own networks first, since they cost the least and work without relays.
func (s *Search) distance(e endpoint.Endpoint) int {
	if s.Addrs.Near(e.Addr.Addr()) {
		return 0
	}
	return 1
}

// dial dials the peer, no longer than most if that is not 0.
func (s *Search) dial(ctx context.Context, e endpoint.Endpoint, most time.Duration) error {
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	return s.Dialer.Dial(ctx, e.Multiaddr(), s.peer.ID())
}
