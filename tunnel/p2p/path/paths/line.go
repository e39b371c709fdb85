package paths

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/base/timeline"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/carrier/packet"
)

// openTimeout bounds the opening of a stream for one frame.
const openTimeout = 2 * time.Second

// Config is what connections need of the node; all of it is required, except Channel.
type Config struct {
	// Ctx ends with the node, and Spawn runs a goroutine that the node waits for; false:
	// the node is closed.
	Ctx   context.Context //nolint:containedctx // the node's lifetime
	Spawn func(func()) bool
	// Owns reports whether an endpoint is this node's: at an address of this host, or mapped for it by a router.
	Owns func(endpoint.Endpoint) bool
	// Packets makes the sealed packets beside connections; without Sealed there are none.
	Packets *packet.Service
	Sealed  bool
	// Channel opens a channel to a peer at a relay; nil: what goes through a relay takes circuits alone.
	Channel func(ctx context.Context, relay, to peer.ID) (*packet.Channel, error)
	// TCP has the kernel's figures of TCP connections, and Conns returns the connections to
	// a peer or relay.
	TCP   *dialer.Sockets
	Conns func(peer.ID) []network.Conn
	// Probed receives the round trip of each answered probe; nil: ignored.
	Probed func(Kind, time.Duration)
	// Queued receives now and then how long a packet that is sent now has waited here; nil: ignored.
	Queued func(Kind, time.Duration)
	// Timeline notes the steps of first contacts; nil: nobody wants them.
	Timeline *timeline.Book
	// SuspectRelay makes a relay be pinged.
	SuspectRelay func(peer.ID)
	Log          *slog.Logger
}

// Owner is the peer that a connection leads to. Its methods take the peer's lock, which is
// above those of this package.
type Owner interface {
	ID() peer.ID
	Name() string
	// Apply applies an event of a path to the peer's machine.
	Apply(ladder.Event)
	// Wake says that a quiet path carries data again.
	Wake()
	// Dropped says that the peer found the connection that it knows as token dead.
	Dropped(token uint64)
	// Narrowed says that an MTU black hole was found on a path.
	Narrowed(path ladder.PathID)
}

// line is a connection to a peer as its probes, streams and sealed packets see it.
type line struct {
	network.Conn
	traffic
	life
	ID    ladder.PathID
	Relay peer.ID // "" for a direct connection
	// Doubted: on one before it nothing was heard, as if the peer had refused it. Set before the first stream.
	Doubted bool

	cfg   *Config
	owner Owner
	addr  ma.Multiaddr // the peer's: a circuit's is costly to make
	udp   bool         // QUIC, to the peer or to the relay
}

// RemoteMultiaddr implements network.Conn.
func (c *line) RemoteMultiaddr() ma.Multiaddr { return c.addr }

// life ends with the connection, or when it is given up.
type life struct {
	ctx    context.Context //nolint:containedctx // ends with the connection
	cancel context.CancelFunc
	dead   atomic.Bool // given up, or ended
}

// GiveUp marks the connection as dead; the caller closes it.
func (l *life) GiveUp() { l.dead.Store(true) }

// Ended is called once the connection has ended.
func (l *life) Ended() {
	l.dead.Store(true)
	l.cancel()
}

// Relayed reports whether the connection runs through a relay.
func (c *line) Relayed() bool { return c.Relay != "" }

// OverUDP reports whether it runs over QUIC, to the peer or to the relay.
func (c *line) OverUDP() bool { return c.udp }

// Dead reports whether it was given up, or has ended.
func (c *line) Dead() bool { return c.dead.Load() || c.IsClosed() }

// kind is that of the path; direct: an end owns the address at which it is seen.
func (c *line) kind(direct bool) Kind {
	switch {
	case c.Relayed():
		return KindRelayed
	case direct:
		return KindDirect
	}
	return KindPunched
}

func (c *line) transport() string {
	t := endpoint.TransportName(c.udp)
	if !c.udp && endpoint.OverWebSocket(c.RemoteMultiaddr()) {
		t = "ws"
	}
	if c.Relayed() {
		return "relay/" + t
	}
	return t
}
