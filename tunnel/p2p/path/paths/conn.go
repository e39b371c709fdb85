package paths

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/carrier/packet"
)

// openTimeout bounds the opening of a stream for one frame.
const openTimeout = 2 * time.Second

// Config is what connections need of the node; all of it is required.
type Config struct {
	// Ctx ends with the node, and Spawn runs a goroutine that the node waits for; false:
	// the node is closed.
	Ctx   context.Context //nolint:containedctx // the node's lifetime
	Spawn func(func()) bool
	// Owns reports whether an endpoint is this node's: at an address of this host, or mapped for it by a router.
	Owns func(endpoint.Endpoint) bool
	// Packets makes the datagrams beside a QUIC connection.
	Packets *packet.Service
	// TCP has the kernel's figures of TCP connections, and Conns returns the connections to
	// a peer or relay.
	TCP   *dialer.Sockets
	Conns func(peer.ID) []network.Conn
	// Probed receives the round trip of each answered probe; nil: ignored.
	Probed func(Kind, time.Duration)
	// Queued receives now and then how long a packet that is sent now has waited here; nil: ignored.
	Queued func(Kind, time.Duration)
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
	// Narrowed says that an MTU black hole was found on c.
	Narrowed(c *Conn)
}

// Conn is one connection to a peer, direct or relayed.
type Conn struct {
	network.Conn
	traffic
	streams
	life
	ID     ladder.PathID
	Relay  peer.ID // "" for a direct connection
	Probes Probes

	cfg       *Config
	owner     Owner
	udp       bool // QUIC, to the peer or to the relay
	datagrams *packet.Session
}

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

// New makes c a path of the owner. Run has to be called.
func New(cfg *Config, owner Owner, c network.Conn, id ladder.PathID) *Conn {
	a := c.RemoteMultiaddr()
	x := &Conn{Conn: c, ID: id, cfg: cfg, owner: owner, streams: newStreams()}
	x.traffic.opened, x.traffic.wake = time.Now(), func() { owner.Wake(); x.ConfirmSize() }
	x.Probes = newProbes(x)
	x.ctx, x.cancel = context.WithCancel(cfg.Ctx)
	if endpoint.IsCircuit(a) {
		x.Relay = endpoint.RelayOf(a)
	}
	_, err := a.ValueForProtocol(ma.P_QUIC_V1)
	x.udp = err == nil
	x.datagrams = cfg.Packets.Session(x.ctx, c, datagrams{x})
	if ip, ok := endpoint.IP(a); ok && !x.udp && !x.Relayed() && !cfg.TCP.Proxied(c) {
		cfg.TCP.Measure(c, cfg.Packets.Beside(c.RemotePeer(), ip))
	}
	return x
}

// Run probes the connection and offers datagrams on it. It does not wait; false: the
// node is closed.
func (c *Conn) Run() bool { return c.cfg.Spawn(c.Probes.run) && c.cfg.Spawn(c.datagrams.Run) }

// Link describes c for the machine, without the order of its relay.
func (c *Conn) Link() ladder.Link {
	l := ladder.Link{Relayed: c.Relayed(), Relay: string(c.Relay)}
	if c.udp {
		l.Transport = ladder.QUIC
	}
	return l
}

// Relayed reports whether the connection runs through a relay.
func (c *Conn) Relayed() bool { return endpoint.IsCircuit(c.RemoteMultiaddr()) }

// OverUDP reports whether it runs over QUIC, to the peer or to the relay.
func (c *Conn) OverUDP() bool { return c.udp }

// Dead reports whether it was given up, or has ended.
func (c *Conn) Dead() bool { return c.dead.Load() || c.IsClosed() }

// Path describes c.
func (c *Conn) Path() Path {
	relay := ""
	if c.Relay != "" {
		relay = c.Relay.String()
	}
	rtt, queue, direct := c.Probes.path()
	return Path{Kind: c.kind(direct), Transport: c.transport(), RTT: rtt, Queue: queue, Addr: c.RemoteMultiaddr().String(), Relay: relay}
}

// kind is that of the path; direct: an end owns the address at which it is seen.
func (c *Conn) kind(direct bool) Kind {
	switch {
	case c.Relayed():
		return KindRelayed
	case direct:
		return KindDirect
	}
	return KindPunched
}

func (c *Conn) transport() string {
	t := endpoint.TransportName(c.udp)
	if !c.udp && endpoint.OverWebSocket(c.RemoteMultiaddr()) {
		t = "ws"
	}
	if c.Relayed() {
		return "relay/" + t
	}
	return t
}

// CarrierHeard says when the kernel last heard what is directly below c: for TCP the peer
// on this very connection, for QUIC the peer on a TCP connection beside it, for a relayed
// path the relay. The zero time: unknown.
func (c *Conn) CarrierHeard() time.Time {
	if !c.Relayed() && !c.udp {
		return c.cfg.TCP.Heard(c)
	}
	next := c.owner.ID()
	if c.Relayed() {
		next = c.Relay
	}
	var last time.Time
	for _, x := range c.cfg.Conns(next) {
		if endpoint.IsCircuit(x.RemoteMultiaddr()) {
			continue
		}
		if at := c.cfg.TCP.Heard(x); at.After(last) {
			last = at
		}
	}
	return last
}

// OpenStream opens a stream for proto on exactly this connection. It takes one round trip,
// and ends with the path. An idle path may have died unseen, so it is probed immediately.
func (c *Conn) OpenStream(ctx context.Context, proto protocol.ID) (*Stream, error) {
	c.owner.Apply(ladder.Ask{Path: c.ID})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	s, err := conns.Open(ctx, c.Conn, proto)
	if err != nil {
		return nil, err
	}
	return c.Wrap(s), nil
}

// Wrap makes s a stream of this path.
func (c *Conn) Wrap(s network.Stream) *Stream {
	st := &Stream{s: s, c: c}
	c.streams.add(st)
	return st
}
