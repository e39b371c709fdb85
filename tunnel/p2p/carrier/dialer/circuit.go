package dialer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	pb "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/util"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/timeline"
)

// statusSize bounds a relay's answer, as in libp2p's client.
const statusSize = 4096

// circuits is the transport that dials and accepts through relays. libp2p's client accepts. Its own Dial waits for the
// relay's answer before it sends the far end anything, obeys no context in that time, and lets other dials of the same peer wait.
type circuits struct {
	*client.Client
	h    host.Host
	up   transport.Upgrader
	book *timeline.Book
}

// addCircuits adds it to h.
func addCircuits(h host.Host, up transport.Upgrader, book *timeline.Book) error {
	c, err := client.New(h, noting{up, book})
	if err != nil {
		return fmt.Errorf("make circuit client: %w", err)
	}
	n, ok := h.Network().(transport.TransportNetwork)
	if !ok {
		return fmt.Errorf("%T takes no transports", h.Network())
	}
	if err := n.AddTransport(&circuits{c, h, up, book}); err != nil {
		return fmt.Errorf("add circuits: %w", err)
	}
	if err := h.Network().Listen(ma.StringCast("/p2p-circuit")); err != nil {
		return fmt.Errorf("listen for circuits: %w", err)
	}
	c.Start()
	return nil
}

// RefusedCircuit is a relay's answer, other than OK, to a request for a circuit.
type RefusedCircuit pb.Status

func (r RefusedCircuit) Error() string {
	return fmt.Sprintf("error opening relay circuit: %s (%d)", pb.Status(r), int32(r))
}

// Dial implements transport.Transport. The request for the circuit and the first flight of the handshake go out together, and
// whatever follows waits for both answers: a relay that refuses has an unread ClientHello at most.
func (c *circuits) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	scope, err := c.h.Network().ResourceManager().OpenConnection(network.DirOutbound, false, a)
	if err != nil {
		return nil, fmt.Errorf("dial a circuit: %w", err)
	}
	conn, err := c.dial(ctx, endpoint.RelayOf(a), p, scope)
	if err != nil {
		scope.Done()
		return nil, fmt.Errorf("dial a circuit: %w", err)
	}
	return conn, nil
}

func (c *circuits) dial(ctx context.Context, relay, p peer.ID, scope network.ConnManagementScope) (transport.CapableConn, error) {
	if err := scope.SetPeer(p); err != nil {
		return nil, err
	}
	over := overTCP(c.h.Network().ConnsToPeer(relay))
	if over == nil {
		return nil, network.ErrNoConn // what connects relays knows from which ports, and whether through a proxy
	}
	s, err := conns.Begin(ctx, over, proto.ProtoIDv2Hop)
	if err != nil {
		return nil, err
	}
	x := &circuit{Stream: s, far: p, addr: endpoint.Circuit(relay, over.RemoteMultiaddr())}
	msg := pb.HopMessage{Type: pb.HopMessage_CONNECT.Enum(), Peer: util.PeerInfoToPeerV2(peer.AddrInfo{ID: p})}
	stop := context.AfterFunc(ctx, func() { _ = x.Close() })
	defer stop()
	if err := util.NewDelimitedWriter(s).WriteMsg(&msg); err != nil {
		_ = x.Close()
		return nil, fmt.Errorf("request a circuit: %w", err)
	}
	c.book.Note(p, timeline.Requested)
	_ = s.SetReadDeadline(time.Now().Add(conns.Patience))
	up, err := c.up.Upgrade(ctx, c, x, network.DirOutbound, p, scope)
	switch {
	case err == nil:
		c.book.Note(p, timeline.Secured)
		return up, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case x.err != nil: // rather than what the handshake made of it
		return nil, x.err
	}
	return nil, err
}

// overTCP is a connection to the relay, over TCP where there is a choice: a circuit carries about twice as much than over QUIC.
func overTCP(all []network.Conn) (over network.Conn) {
	for _, c := range all {
		switch {
		case c.IsClosed() || endpoint.IsCircuit(c.RemoteMultiaddr()):
		case !endpoint.OverUDP(c.RemoteMultiaddr()):
			return c
		default:
			over = c
		}
	}
	return over
}

// circuit is one that was requested. What is written follows the request; the relay passes it on, unread, once the far end has
// accepted. The first Read takes the relay's answer.
type circuit struct {
	network.Stream
	far      peer.ID
	addr     ma.Multiaddr
	answered atomic.Bool // set by the goroutine that reads
	err      error       // why there is no circuit; of that goroutine
}

var (
	_ manet.Conn       = (*circuit)(nil)
	_ network.ConnStat = (*circuit)(nil)
)

// Read implements net.Conn.
func (c *circuit) Read(b []byte) (int, error) {
	if !c.answered.Load() {
		if c.err == nil {
			c.err = c.answer()
		}
		if c.err != nil {
			return 0, c.err
		}
		c.answered.Store(true)
	}
	return c.Stream.Read(b) //nolint:wrapcheck // the stream's own
}

// Write implements net.Conn. A relay that refuses may take nothing more; the next Read says why.
func (c *circuit) Write(b []byte) (int, error) {
	n, err := c.Stream.Write(b)
	if err != nil && !c.answered.Load() {
		return len(b), nil
	}
	return n, err //nolint:wrapcheck // the stream's own
}

// answer reads the relay's answer.
func (c *circuit) answer() error {
	r := util.NewDelimitedReader(c.Stream, statusSize)
	defer r.Close()
	var msg pb.HopMessage
	var late net.Error
	switch err := r.ReadMsg(&msg); {
	case errors.As(err, &late) && late.Timeout():
		return fmt.Errorf("no answer to a request for a circuit for %v: %w", conns.Patience, err)
	case err != nil:
		return fmt.Errorf("read the answer to a request for a circuit: %w", err)
	case msg.GetType() != pb.HopMessage_STATUS:
		return fmt.Errorf("a request for a circuit was answered by a message of type %v", msg.GetType())
	case msg.GetStatus() != pb.Status_OK:
		return RefusedCircuit(msg.GetStatus())
	}
	return c.SetReadDeadline(time.Time{})
}

// Close implements net.Conn. It does not wait for the network.
func (c *circuit) Close() error {
	_ = c.SetDeadline(time.Unix(1, 0)) // Reset itself may wait behind a full path
	return c.Reset()                   //nolint:wrapcheck // the stream's own
}

// Stat implements network.ConnStat: a peer behind circuits alone does not count as connected, whatever bounds the relay sets.
func (c *circuit) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Limited: true}}
}

// RemoteMultiaddr implements manet.Conn.
func (c *circuit) RemoteMultiaddr() ma.Multiaddr { return c.addr }

// LocalMultiaddr implements manet.Conn.
func (c *circuit) LocalMultiaddr() ma.Multiaddr { return c.Conn().LocalMultiaddr() }

// LocalAddr implements net.Conn.
func (c *circuit) LocalAddr() net.Addr {
	a, _ := manet.ToNetAddr(c.LocalMultiaddr())
	return a
}

// RemoteAddr implements net.Conn.
func (c *circuit) RemoteAddr() net.Addr {
	return &client.NetAddr{Relay: c.Conn().RemotePeer().String(), Remote: c.far.String()}
}

// noting notes when circuits arrive. Whose they are is the relay's word until the handshake has ended.
type noting struct {
	transport.Upgrader
	book *timeline.Book
}

// GateMaListener implements transport.Upgrader.
func (u noting) GateMaListener(l manet.Listener) transport.GatedMaListener {
	return notingListener{u.Upgrader.GateMaListener(l), u.book}
}

type notingListener struct {
	transport.GatedMaListener
	book *timeline.Book
}

// Accept implements transport.GatedMaListener.
func (l notingListener) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, scope, err := l.GatedMaListener.Accept()
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // libp2p tells them apart
	}
	if a, ok := c.RemoteAddr().(*client.NetAddr); ok {
		if p, err := peer.Decode(a.Remote); err == nil {
			l.book.Begin(p, timeline.Arrived)
		}
	}
	return c, scope, nil
}
