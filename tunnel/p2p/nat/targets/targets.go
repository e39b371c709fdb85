// Package targets decides which of the addresses that a peer names this node sends packets to, and how many: a member
// cannot direct this node's packets at others, nor search the networks around this node for open ports.
//
//	targets.go   the rules, and what is known of a peer's addresses
//	window.go    the packets of the last minute
//
// An address counts as the peer's if an operator's relay sees the peer there, if the peer has shown its key there, or if
// a LAN probe has proved it. Of all others little is tried.
package targets

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/seldom"
	"edgemesh/tunnel/p2p/base/endpoint"
)

const (
	// Budget bounds the packets that one peer can have sent in a minute to addresses that are not known to be its own,
	// and LastBudget those of them for where it was last.
	Budget     = 24
	LastBudget = 12
	// minPort is the lowest port that is tried: below it are servers.
	minPort = 1024
	// seenFor is how long what relays said counts.
	seenFor = 5 * time.Minute
	// aimFor is how long it counts for guessing ports, which sends far more packets than a dial.
	aimFor = 30 * time.Second
	// maxAddrs bounds what is remembered of one peer, of each kind, and maxRelays the relays whose word is.
	maxAddrs, maxRelays = 16, 8

	// A dial of an address that is not known to be the peer's gets nearTime in a network of this node's, farTime
	// elsewhere.
	nearTime = 900 * time.Millisecond
	farTime  = 2500 * time.Millisecond
)

// The reasons for a refusal.
var (
	ErrPort    = errors.New("ports below 1024 are not tried")
	ErrPrivate = errors.New("private, and in no network of this node")
	ErrBudget  = errors.New("no relay sees the peer there, and enough was tried in this minute")
	// ErrUnseen and ErrDisputed are for ports that would be guessed (Aim).
	ErrUnseen   = errors.New("none of `relays` says that it sees the peer there")
	ErrDisputed = errors.New("`relays` disagree on where the peer is")
)

// Config is what a Guard needs. All of it is required, Witness for Query and Aim only.
type Config struct {
	// Near reports whether an address is in a network of this node's own uplinks, and Public whether it belongs to the
	// internet or counts as if it did.
	Near, Public func(netip.Addr) bool
	// Witness queries operators' relays for where they see a peer, and returns the answer of each.
	Witness func(context.Context, peer.ID) [][]endpoint.Endpoint
	// Name is what the log calls a peer.
	Name func(peer.ID) string
	// Now is a clock that nobody sets.
	Now func() time.Duration
	Log *slog.Logger
}

// Guard has the rules of one node.
type Guard struct {
	cfg    Config
	proved atomic.Pointer[func(peer.ID) []netip.Addr]

	refused  [len(reasons)]atomic.Uint64
	reported seldom.Log

	mu    sync.Mutex // a leaf
	peers map[peer.ID]*known
}

// known is what is known of one peer.
type known struct {
	seen   [][]endpoint.Endpoint // by operators' relays, each for itself
	saidAt time.Duration         // when they said so
	met    []netip.Addr          // where the peer has shown its key, the newest last
	sent   window
}

// New returns a Guard that knows no addresses.
func New(cfg Config) *Guard { return &Guard{cfg: cfg, peers: make(map[peer.ID]*known)} }

// SetProved sets what returns the addresses at which LAN probes have proved a peer to be.
func (g *Guard) SetProved(f func(peer.ID) []netip.Addr) { g.proved.Store(&f) }

// Seen notes where operators' relays see p now, each for itself.
func (g *Guard) Seen(p peer.ID, at [][]endpoint.Endpoint) {
	var seen [][]endpoint.Endpoint
	for _, one := range at {
		if len(one) > 0 && len(seen) < maxRelays {
			seen = append(seen, slices.Clone(one[:min(len(one), maxAddrs)]))
		}
	}
	if len(seen) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.of(p)
	k.seen, k.saidAt = seen, g.cfg.Now()
}

// Query queries operators' relays for where they see p, until ctx ends.
func (g *Guard) Query(ctx context.Context, p peer.ID) { g.Seen(p, g.cfg.Witness(ctx, p)) }

// Met notes that p has shown its key at an address.
func (g *Guard) Met(p peer.ID, at netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.of(p)
	k.met = append(slices.DeleteFunc(k.met, func(a netip.Addr) bool { return a == at }), at)
	k.met = k.met[max(0, len(k.met)-maxAddrs):]
}

// Owns reports whether an address is known to be p's.
func (g *Guard) Owns(p peer.ID, at netip.Addr) bool {
	lan := g.lan(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(lan, at) || g.of(p).owns(at, g.cfg.Now())
}

// Retain forgets the peers that member does not accept.
func (g *Guard) Retain(member func(peer.ID) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.peers {
		if !member(p) {
			delete(g.peers, p)
		}
	}
}

// Check says why an endpoint that p named is not tried at all; nil: it may be.
func (g *Guard) Check(p peer.ID, e endpoint.Endpoint) error {
	lan := g.lan(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.check(g.of(p), e, lan)
}

func (g *Guard) check(k *known, e endpoint.Endpoint, lan []netip.Addr) error {
	ip := e.Addr.Addr()
	switch {
	case e.Addr.Port() < minPort && !k.seenAt(g.cfg.Now(), seenFor, func(s endpoint.Endpoint) bool { return s == e }):
		return ErrPort
	case !g.cfg.Public(ip) && !g.cfg.Near(ip) && !slices.Contains(lan, ip):
		return ErrPrivate
	}
	return nil
}

// Take requests to dial an endpoint that p named, once, while no more than budget packets go to unknown addresses in a
// minute. most bounds the dial; 0: nothing does. The error is one of this package's.
func (g *Guard) Take(p peer.ID, e endpoint.Endpoint, budget int) (most time.Duration, err error) {
	lan := g.lan(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	k, ip := g.of(p), e.Addr.Addr()
	if err := g.check(k, e, lan); err != nil {
		return 0, g.refuse(err, p, e)
	}
	if slices.Contains(lan, ip) || k.owns(ip, g.cfg.Now()) {
		return 0, nil
	}
	return g.spend(k, p, e, budget)
}

// Spend is Take for the addresses of a member that is a relay, which may have any port and stand on any network.
func (g *Guard) Spend(p peer.ID, e endpoint.Endpoint) (most time.Duration, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.of(p)
	if k.owns(e.Addr.Addr(), g.cfg.Now()) {
		return 0, nil
	}
	return g.spend(k, p, e, Budget)
}

func (g *Guard) spend(k *known, p peer.ID, e endpoint.Endpoint, budget int) (time.Duration, error) {
	near := g.cfg.Near(e.Addr.Addr())
	if !k.sent.take(g.cfg.Now(), packets(e.UDP, near), budget) {
		return 0, g.refuse(ErrBudget, p, e)
	}
	if near {
		return nearTime, nil
	}
	return farTime, nil
}

// Spent is the most that was spent for one peer in the last minute.
func (g *Guard) Spent() (most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range g.peers {
		most = max(most, k.sent.sum(g.cfg.Now()))
	}
	return most
}

// packets is how many a dial sends to a stranger: over QUIC two in each flight, after 0, 0.2, 0.6 and 1.4 s; over TCP
// three SYNs without an answer, and some more where a server accepts them.
func packets(udp, near bool) int {
	switch {
	case udp && near:
		return 6
	case udp:
		return 8
	}
	return 5
}

// Aim says why ports are not guessed at e, where p says that it is; nil: they may be. Hundreds of packets would go to that
// host, so the peer's word and a relay's are both needed: an operator's relay sees p at exactly e now, and most of those
// that see p see it at that address. Neither a peer nor one relay among three can aim the packets at a stranger. Where none
// has seen it there, they are queried once more, until ctx ends: p may have connected them over QUIC since they said so.
func (g *Guard) Aim(ctx context.Context, p peer.ID, e endpoint.Endpoint) error {
	err := g.aim(p, e)
	if errors.Is(err, ErrUnseen) {
		g.Query(ctx, p)
		err = g.aim(p, e)
	}
	if err != nil {
		return g.refuse(err, p, e)
	}
	return nil
}

func (g *Guard) aim(p peer.ID, e endpoint.Endpoint) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of(p).aim(e, g.cfg.Now())
}

func (k *known) aim(e endpoint.Endpoint, now time.Duration) error {
	if !k.seenAt(now, aimFor, func(s endpoint.Endpoint) bool { return s == e }) {
		return ErrUnseen
	}
	here, elsewhere := 0, 0
	for _, one := range k.seen {
		if slices.ContainsFunc(one, func(s endpoint.Endpoint) bool { return s.Addr.Addr() == e.Addr.Addr() }) {
			here++
		} else if slices.ContainsFunc(one, func(s endpoint.Endpoint) bool { return s.Addr.Addr().Is4() == e.Addr.Addr().Is4() }) {
			elsewhere++
		}
	}
	if here <= elsewhere {
		return ErrDisputed
	}
	return nil
}

// refuse counts a refusal, and logs it now and then.
func (g *Guard) refuse(err error, p peer.ID, e endpoint.Endpoint) error {
	for i, reason := range reasons {
		if errors.Is(err, reason.err) {
			g.refused[i].Add(1)
			if g.reported.Due(string(p) + reason.name) {
				g.cfg.Log.Info("an address that a peer named is not dialed, as it may be another host's; the peer is reached at"+
					" its other addresses or through a relay", "peer", g.cfg.Name(p), "addr", e, "why", err)
			}
		}
	}
	return err
}

// reasons are the errors with their names as a metric's label.
//
//nolint:gochecknoglobals // a constant
var reasons = [...]struct {
	err  error
	name string
}{
	{ErrPort, "target_port"}, {ErrPrivate, "target_private"}, {ErrBudget, "target_budget"},
	{ErrUnseen, "target_unseen"}, {ErrDisputed, "target_disputed"},
}

// Refused is how many dials were refused, by the reason's name as a metric label.
func (g *Guard) Refused() map[string]uint64 {
	out := make(map[string]uint64)
	for i, r := range reasons {
		out[r.name] = g.refused[i].Load()
	}
	return out
}

// lan is where LAN probes have proved p to be. It takes no lock of this package.
func (g *Guard) lan(p peer.ID) []netip.Addr {
	if f := g.proved.Load(); f != nil {
		return (*f)(p)
	}
	return nil
}

// of returns what is known of p. The caller holds mu.
func (g *Guard) of(p peer.ID) *known {
	k := g.peers[p]
	if k == nil {
		k = &known{}
		g.peers[p] = k
	}
	return k
}

func (k *known) owns(ip netip.Addr, now time.Duration) bool {
	return slices.Contains(k.met, ip) ||
		k.seenAt(now, seenFor, func(e endpoint.Endpoint) bool { return e.Addr.Addr() == ip })
}

// seenAt reports whether a relay has said, no longer than within ago, that it sees the peer where match says.
func (k *known) seenAt(now, within time.Duration, match func(endpoint.Endpoint) bool) bool {
	return now < k.saidAt+within &&
		slices.ContainsFunc(k.seen, func(one []endpoint.Endpoint) bool { return slices.ContainsFunc(one, match) })
}
