package reach

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/nat/targets"
	"edgemesh/tunnel/p2p/path/mdns"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// circuits are what is remembered of a peer's circuits.
type circuits struct {
	hanging atomic.Int32 // being dialed

	mu       sync.Mutex // behind peers' locks; those of relays and Spawn's are taken under it
	best     peer.ID    // the relay they should use; "" as long as nothing is known
	improved time.Time  // when a better one was last tried
}

// Finder finds current addresses of a member.
type Finder interface {
	FindPeer(ctx context.Context, p peer.ID) (peer.AddrInfo, error)
	io.Closer
}

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

// dial dials the peer, no longer than most if that is not 0.
func (s *Search) dial(ctx context.Context, e endpoint.Endpoint, most time.Duration) error {
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	return s.Dialer.Dial(ctx, e.Multiaddr(), s.peer.ID())
}
