package dialer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/plainhost"
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
)

// bind binds a, which says where to listen, and returns it with its port. Of QUIC on all addresses the socket is lent to
// the manager, whose own would have a keep-alive on all connections, and which finds it when a listener wants it; all else
// is left to libp2p. So what arrives at a listener on one address keeps a keep-alive of 15 s and ends after 30 s of
// silence: the manager takes no socket for that.
func bind(q *plainhost.QUIC, listen listenUDP, a ma.Multiaddr) (ma.Multiaddr, error) {
	e, _ := endpoint.Parse(a)
	if !e.UDP || !e.Addr.Addr().IsUnspecified() {
		return a, nil
	}
	family := "udp4"
	if e.Addr.Addr().Is6() {
		family = "udp6"
	}
	c, err := listen(family, net.UDPAddrFromAddrPort(e.Addr))
	if err != nil {
		return nil, err
	}
	if err := q.Lend(family, resting{q.On(c)}, c); err != nil {
		return nil, err
	}
	bound, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil, fmt.Errorf("bound to a %T", c.LocalAddr())
	}
	e.Addr = bound.AddrPort()
	return e.Multiaddr(), nil
}

// resting is a listening socket for connections without a keep-alive, unless who dials wants one.
type resting struct{ *quic.Transport }

var _ quicreuse.QUICTransport = resting{}

// Listen implements quicreuse.QUICTransport.
func (t resting) Listen(tlsConf *tls.Config, c *quic.Config) (quicreuse.QUICListener, error) {
	return t.Transport.Listen(tlsConf, rests(c))
}

// Dial implements quicreuse.QUICTransport.
func (t resting) Dial(ctx context.Context, a net.Addr, tlsConf *tls.Config, c *quic.Config) (*quic.Conn, error) {
	if ctx.Value(pathKey{}) != nil {
		c = rests(c)
	}
	return t.Transport.Dial(ctx, a, tlsConf, c)
}

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
