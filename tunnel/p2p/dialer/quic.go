package dialer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"
	"go.uber.org/fx"
	"golang.org/x/time/rate"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/members"
)

const (
	// quicKeepAlive keeps the UDP mapping of a NAT open: many forget one after
	// 30 s without packets, some after 20 s. It is that of connections to relays. Paths to peers are probed as often as
	// their NATs need (package ladder).
	quicKeepAlive = 15 * time.Second
	// quicIdleTimeout ends a connection that stayed silent. Probes notice a dead
	// path much sooner (package paths); this is the last resort.
	quicIdleTimeout = 30 * time.Second
	// RestingKeepAlive is how often connections of paths are kept alive by themselves, and quicRestTimeout ends one of QUIC,
	// which is not: both are longer than any path that answers is left without a probe.
	RestingKeepAlive = 4 * time.Minute
	quicRestTimeout  = 4 * time.Minute
	// unverifiedRate is how many connections a second may come from addresses that have not shown that they are theirs, as
	// in package quicreuse.
	unverifiedRate = 1000
)

// quicSockets are the sockets of QUIC: a connection manager, and the transports of listening sockets that are lent to it.
// Its own would have a keep-alive on all connections.
type quicSockets struct {
	*quicreuse.ConnManager
	listen listenUDP
	make   func(net.PacketConn) *quic.Transport
	lent   []*resting
}

// quicReuse configures the UDP sockets and connections of QUIC. It replaces
// go-libp2p's constructor and therefore repeats what that one sets: connections
// are accounted for by the resource manager from their first packet on. q gets
// the manager.
func quicReuse(listen listenUDP, q *quicSockets) libp2p.Option {
	return libp2p.QUICReuse(func(key quic.StatelessResetKey, tok quic.TokenGeneratorKey,
		rcmgr network.ResourceManager, lc fx.Lifecycle) (*quicreuse.ConnManager, error) {
		accept := func(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
			addr, err := quicreuse.ToQuicMultiaddr(info.RemoteAddr, quic.Version1)
			if err != nil {
				addr = nil // the resource manager decides without
			}
			scope, err := rcmgr.OpenConnection(network.DirInbound, false, addr)
			if err != nil {
				return ctx, err
			}
			ctx = network.WithConnManagementScope(ctx, scope)
			context.AfterFunc(ctx, scope.Done)
			return ctx, nil
		}
		cm, err := quicreuse.NewConnManager(key, tok, quicreuse.OverrideListenUDP(listen), quicreuse.ConnContext(accept),
			quicreuse.VerifySourceAddress(rcmgr.VerifySourceAddress))
		if err != nil {
			return nil, err
		}
		cm.ClientConfig().KeepAlivePeriod = quicKeepAlive
		cm.ClientConfig().MaxIdleTimeout = quicIdleTimeout
		few := rate.NewLimiter(unverifiedRate, unverifiedRate)
		*q = quicSockets{ConnManager: cm, listen: listen, make: func(c net.PacketConn) *quic.Transport {
			return &quic.Transport{Conn: c, TokenGeneratorKey: &tok, StatelessResetKey: &key, ConnContext: accept,
				VerifySourceAddress: func(a net.Addr) bool { return !few.Allow() || rcmgr.VerifySourceAddress(a) }}
		}}
		lc.Append(fx.StopHook(q.close))
		return cm, nil
	})
}

// bind binds a, which says where to listen, and returns it with its port. Of QUIC on all addresses the socket is lent to
// the manager, which finds it when a listener wants it; all else is left to libp2p.
func (q *quicSockets) bind(a ma.Multiaddr) (ma.Multiaddr, error) {
	e, _ := endpoint.Parse(a)
	if !e.UDP || !e.Addr.Addr().IsUnspecified() {
		return a, nil
	}
	family := "udp4"
	if e.Addr.Addr().Is6() {
		family = "udp6"
	}
	c, err := q.listen(family, net.UDPAddrFromAddrPort(e.Addr))
	if err != nil {
		return nil, err
	}
	t := &resting{q.make(c), c}
	if _, err := q.LendTransport(family, t, c); err != nil {
		return nil, errors.Join(err, t.end())
	}
	q.lent = append(q.lent, t)
	bound, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil, fmt.Errorf("bound to a %T", c.LocalAddr())
	}
	e.Addr = bound.AddrPort()
	return e.Multiaddr(), nil
}

func (q *quicSockets) close() error {
	err := q.ConnManager.Close()
	for _, t := range q.lent {
		err = errors.Join(err, t.end())
	}
	return err
}

// resting is a listening socket for connections without a keep-alive, unless who dials wants one.
type resting struct {
	*quic.Transport
	socket net.PacketConn
}

var _ quicreuse.QUICTransport = (*resting)(nil)

// Listen implements quicreuse.QUICTransport.
func (t *resting) Listen(tlsConf *tls.Config, c *quic.Config) (quicreuse.QUICListener, error) {
	return t.Transport.Listen(tlsConf, rests(c))
}

// Dial implements quicreuse.QUICTransport.
func (t *resting) Dial(ctx context.Context, a net.Addr, tlsConf *tls.Config, c *quic.Config) (*quic.Conn, error) {
	if ctx.Value(pathKey{}) != nil {
		c = rests(c)
	}
	return t.Transport.Dial(ctx, a, tlsConf, c)
}

// end closes the socket, which the manager leaves open.
func (t *resting) end() error { return errors.Join(t.Transport.Close(), t.socket.Close()) }

// rests returns c without a keep-alive.
func rests(c *quic.Config) *quic.Config {
	c = c.Clone()
	c.KeepAlivePeriod, c.MaxIdleTimeout = 0, quicRestTimeout
	return c
}

// pathKey marks the context of a dial that makes a path, which is probed.
type pathKey struct{}

// forPath marks ctx if p is a peer and no relay.
func forPath(ctx context.Context, v *members.View, p peer.ID) context.Context {
	if v.IsRelay(p) {
		return ctx
	}
	return context.WithValue(ctx, pathKey{}, true)
}
