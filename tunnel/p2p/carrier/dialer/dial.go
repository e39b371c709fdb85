// Package dialer makes connections: it brings libp2p's transports, with the options and
// buffers that the underlay needs, and dials a peer beside the connections that are there.
//
//	dial.go         Dialer: listen, and dial one address of a peer
//	inject.go       hands a connection that was dialed here to the swarm and the node
//	tcp.go          TCP: the port of the listener, simultaneous opens, buffers
//	mss.go          small segments where large packets vanish
//	sockets.go      the kernel's figures of a TCP connection
//	quic.go         QUIC on the sockets that sealed packets share
//	fresh.go        QUIC from a socket of its own
//	sources.go      dials from each own address that could serve
//	proxied.go      TCP and WebSocket through an HTTP proxy
//	circuit.go      circuits, over TCP where there is a choice
//	punchpacket.go  packets that open this node's NAT
package dialer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"edgemesh/internal/proxy"
	"edgemesh/internal/resolve"
	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/base/timeline"
	"edgemesh/tunnel/p2p/carrier/plainhost"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Config is what a Dialer needs. All of it is required, except Mark, Sources, Metered, Proxy, Names and Timeline.
type Config struct {
	Key   crypto.PrivKey
	Gater *members.Gater
	// Mark is set as SO_MARK on every socket (CAP_NET_ADMIN); 0 sets none.
	Mark uint32
	// ListenUDP opens the sockets of QUIC, those that dial included.
	ListenUDP listenUDP
	// Sources are the own addresses that could serve for a dial of p at an address, beside the one that the kernel chooses; nil:
	// there are none. SendFrom has a QUIC connection to an address leave from one of them, until it is forgotten.
	Sources func(p peer.ID, to netip.Addr) []netip.Addr
	// Metered reports whether each byte on the uplink is paid for: sources are then tried one by one. nil: never.
	Metered  func() bool
	SendFrom func(to net.Addr, src netip.Addr) (forget func())
	// Proxy is the egress through an HTTP proxy; nil: none.
	Proxy *proxy.Egress
	Names *resolve.Names
	// Timeline notes the steps of circuits; nil: nobody wants them.
	Timeline *timeline.Book
	// Refused is called when a peer that the membership does not know answers at p's address.
	Refused func(reason string, p peer.ID, from string)
}

// Dialer makes the connections of one node.
type Dialer struct {
	cfg     Config
	inj     *injector
	sockets Sockets
	quic    *plainhost.QUIC // the UDP sockets
	sw      *swarm.Swarm
	listen  atomic.Pointer[[]ma.Multiaddr] // as bound
}

// New returns a Dialer. It can dial once Listen has returned.
func New(cfg Config) *Dialer { return &Dialer{cfg: cfg, inj: newInjector()} }

// Host makes the node's libp2p host, with this Dialer's key, gater and transports.
func (d *Dialer) Host(c plainhost.Config) (*plainhost.Host, error) {
	c.Key, c.Gater = d.cfg.Key, d.cfg.Gater
	c.QUIC = []quicreuse.Option{quicreuse.OverrideListenUDP(d.cfg.ListenUDP)}
	c.Transports = func(h *plainhost.Host, up transport.Upgrader) ([]transport.Transport, error) {
		d.quic = h.QUIC
		d.quic.ClientConfig().KeepAlivePeriod = quicKeepAlive
		d.quic.ClientConfig().MaxIdleTimeout = quicIdleTimeout
		tcp, err1 := newTCPTransport(d.cfg.Mark, &d.sockets, c.Guard.Upgrader(up), c.Guard)
		ws, err2 := websocket.New(up, c.Guard, nil) // dials only: relays where nothing else gets out
		return []transport.Transport{tcp, ws}, errors.Join(err1, err2, addCircuits(h, up, d.cfg.Timeline))
	}
	return plainhost.New(c)
}

// Listen makes the host's swarm listen on every address, or fails: the swarm's own Listen
// succeeds with one of them. The error wraps ErrListen where an address is at fault.
func (d *Dialer) Listen(sw *swarm.Swarm, listen []ma.Multiaddr) error {
	d.sw = sw
	for _, a := range listen {
		if _, ok := endpoint.Parse(a); !ok {
			return fmt.Errorf("%w on %s: want /ip4|ip6/ADDR/tcp/PORT or …/udp/PORT/quic-v1", ErrListen, a)
		}
		at, err := d.bind(a)
		if err == nil {
			err = sw.AddListenAddr(at)
		}
		if err != nil {
			return fmt.Errorf("%w on %s: %w", ErrListen, a, err)
		}
	}
	bound := slices.DeleteFunc(sw.ListenAddresses(), func(a ma.Multiaddr) bool { _, ok := endpoint.Parse(a); return !ok })
	d.listen.Store(&bound)
	if err := sw.AddTransport(d.inj); err != nil {
		return fmt.Errorf("add injector: %w", err)
	}
	if err := sw.AddListenAddr(d.inj.addr()); err != nil {
		return fmt.Errorf("listen on injector: %w", err)
	}
	return nil
}

// ListenAddrs returns the addresses that are bound, none before Listen.
func (d *Dialer) ListenAddrs() []ma.Multiaddr {
	if p := d.listen.Load(); p != nil {
		return slices.Clone(*p)
	}
	return nil
}

// ListensOn reports whether a listening socket is bound to e's port.
func (d *Dialer) ListensOn(e endpoint.Endpoint) bool {
	return slices.ContainsFunc(d.ListenAddrs(), func(a ma.Multiaddr) bool {
		l, ok := endpoint.Parse(a)
		return ok && l.UDP == e.UDP && l.Addr.Port() == e.Addr.Port()
	})
}

// Ports are the TCP and UDP ports that other hosts may reach this node at, 0 where there
// is none: the first ones that are not bound to loopback.
func (d *Dialer) Ports() (tcp, udp uint16) {
	for _, a := range d.ListenAddrs() {
		e, ok := endpoint.Parse(a)
		switch {
		case !ok || e.Addr.Addr().IsLoopback():
		case e.UDP && udp == 0:
			udp = e.Addr.Port()
		case !e.UDP && tcp == 0:
			tcp = e.Addr.Port()
		}
	}
	return tcp, udp
}

// QUIC owns the UDP sockets. The host has been made.
func (d *Dialer) QUIC() *quicreuse.ConnManager { return d.quic.ConnManager }

// Sockets are those of the TCP connections.
func (d *Dialer) Sockets() *Sockets { return &d.sockets }

// Dial dials p at a, which may be a circuit, from the listening port, beside whatever
// connections there are. When it returns, the swarm and the node have the connection; conns.ErrRefused: it has ended already.
func (d *Dialer) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) error {
	c, err := d.fromEach(ctx, a, p)
	if err != nil {
		return err
	}
	return d.inj.inject(ctx, c)
}

func (d *Dialer) dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	if !d.cfg.Gater.MayDial(p, a) {
		return nil, fmt.Errorf("dial %s: %w", a, members.ErrNotMember)
	}
	t := d.sw.TransportForDialing(a)
	if t == nil {
		return nil, fmt.Errorf("dial %s: no transport", a)
	}
	var c transport.CapableConn
	err := d.via(ctx, a, func(ctx context.Context, to ma.Multiaddr) (err error) {
		c, err = t.Dial(forPath(ctx, d.cfg.Gater.View(), p), to, p)
		return err
	})
	if err != nil {
		if is, ok := Answered(err); ok && !d.cfg.Gater.View().Known(is) {
			d.cfg.Refused(refusals.Key, p, fmt.Sprintf("%s, where %s answers", a, is))
		}
		return nil, err
	}
	return c, nil
}

// via dials a: through NAT64 where no IPv4 route leads there.
func (d *Dialer) via(ctx context.Context, a ma.Multiaddr, dial func(context.Context, ma.Multiaddr) error) error {
	ip, ok := endpoint.IP(a)
	if !ok || endpoint.IsCircuit(a) {
		return dial(ctx, a)
	}
	return d.cfg.Names.Dial(ctx, ip, func(ctx context.Context, at netip.Addr, proved func()) error {
		to := a
		if at != ip {
			_, rest := ma.SplitFirst(a)
			to = ma.StringCast("/ip6/" + at.String()).Encapsulate(rest)
		}
		err := dial(ctx, to)
		if err == nil {
			proved()
		}
		return err
	})
}

// Answered says who answered a dial that failed because it was meant for another peer.
func Answered(err error) (who peer.ID, ok bool) {
	var mismatch sec.ErrPeerIDMismatch
	if errors.As(err, &mismatch) {
		return mismatch.Actual, true
	}
	if err == nil {
		return "", false
	}
	// QUIC's error has no type: it is the text of that one.
	_, after, ok := strings.Cut(err.Error(), "peer id mismatch: expected ")
	if !ok {
		return "", false
	}
	_, text, _ := strings.Cut(after, "but remote key matches ")
	who, _ = peer.Decode(strings.TrimSpace(text))
	return who, true
}

// Named looks up a name in a and keeps it beside the result, where the server has a certificate for the name (WebSocket
// over TLS).
func (d *Dialer) Named(ctx context.Context, a ma.Multiaddr) ma.Multiaddr {
	r, ok := d.sw.TransportForDialing(a).(transport.Resolver)
	if !ok {
		return a
	}
	if out, err := r.Resolve(ctx, a); err == nil && len(out) == 1 {
		return out[0]
	}
	return a
}

// Simultaneous makes TCP dials with ctx one side of a simultaneous open; the client speaks
// first.
func Simultaneous(ctx context.Context, client bool) context.Context {
	return network.WithSimultaneousConnect(ctx, client, "punch")
}

// Follow counts what c costs while carried, pods' bytes, does not change. Of QUIC what it sends and receives, in packets of the path's
// size at most, is known to its library.
func (d *Dialer) Follow(c network.Conn, b *upkeep.Budget, p upkeep.Purpose, carried func() uint64) {
	if s := d.sockets.find(c); s != nil {
		d.sockets.follow(socketKey(c), s, b.Follow(p, upkeep.TCP(s.Conn), carried))
		return
	}
	var q *quic.Conn
	if !endpoint.OverUDP(c.RemoteMultiaddr()) || !c.As(&q) {
		return
	}
	to, _ := q.RemoteAddr().(*net.UDPAddr)
	head := uint64(upkeep.HeaderOf(to)) //nolint:gosec // a length
	f := b.FollowQUIC(p, func() (upkeep.Bytes, bool) {
		s := q.ConnectionStats()
		return upkeep.Bytes{Tx: s.BytesSent + s.PacketsSent*head, Rx: s.BytesReceived + s.PacketsReceived*head}, true
	}, carried)
	context.AfterFunc(q.Context(), f.End)
}

// Taken says that the node has been notified of c, and whether it keeps it: the Dial that made it returns.
func (d *Dialer) Taken(c network.Conn, kept bool) {
	var x *injected
	if !c.As(&x) {
		return
	}
	if c.IsClosed() || !kept {
		x.end()
	} else {
		close(x.taken)
	}
}
