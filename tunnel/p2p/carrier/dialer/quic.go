package dialer

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/carrier/plainhost"
	"edgemesh/tunnel/p2p/who/members"
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

// bind binds a, which says where to listen, and returns it with its port. What arrives at a listener on one address keeps a
// keep-alive of 15 s, and ends after 30 s of silence.
func (d *Dialer) bind(a ma.Multiaddr) (ma.Multiaddr, error) {
	return d.quic.Bind(a, d.cfg.ListenUDP, func(t plainhost.Transport) quicreuse.QUICTransport { return resting{t, d.cfg.SendFrom} })
}

// resting is a listening socket for connections without a keep-alive, unless who dials wants one.
type resting struct {
	plainhost.Transport
	sendFrom func(to net.Addr, src netip.Addr) (forget func())
}

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
	src := attemptOf(ctx).src
	if !src.IsValid() {
		return t.Transport.Dial(ctx, a, tlsConf, c)
	}
	forget := t.sendFrom(a, src)
	conn, err := t.Transport.Dial(ctx, a, tlsConf, c)
	if err != nil {
		forget()
		return nil, err
	}
	context.AfterFunc(conn.Context(), forget)
	return conn, nil
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

// listenUDP opens a UDP socket.
type listenUDP = func(network string, a *net.UDPAddr) (net.PacketConn, error)
