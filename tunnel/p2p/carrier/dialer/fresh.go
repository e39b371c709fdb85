package dialer

import (
	"context"
	"fmt"
	"net"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	libp2pquic "github.com/libp2p/go-libp2p/p2p/transport/quic"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/quic-go/quic-go"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// DialFresh dials p by QUIC from a new socket. Behind a sequential NAT its mapping is the
// next one; the listening socket's mapping towards the same peer may be one of an earlier
// attempt, which nobody can predict.
func (d *Dialer) DialFresh(ctx context.Context, e endpoint.Endpoint, p peer.ID) error {
	return d.DialFrom(ctx, e, p, d.cfg.ListenUDP)
}

// DialElsewhere is Dial from another port than the listening ones: a router may remember something wrong about those.
func (d *Dialer) DialElsewhere(ctx context.Context, a ma.Multiaddr, p peer.ID) error {
	if e, ok := endpoint.Parse(a); ok && e.UDP {
		return d.DialFresh(ctx, e, p)
	}
	return d.Dial(context.WithValue(ctx, anyPortKey{}, true), a, p)
}

// DialFrom dials p by QUIC from the socket that open makes, which is the
// connection's from then on, or closed.
func (d *Dialer) DialFrom(ctx context.Context, e endpoint.Endpoint, p peer.ID, open listenUDP) error {
	a := e.Multiaddr()
	if !d.cfg.Gater.MayDial(p, a) {
		return fmt.Errorf("dial %s: %w", a, members.ErrNotMember)
	}
	var socket net.PacketConn
	cm, err := quicreuse.NewConnManager(quic.StatelessResetKey{}, quic.TokenGeneratorKey{}, quicreuse.DisableReuseport(),
		quicreuse.OverrideListenUDP(func(nw string, a *net.UDPAddr) (net.PacketConn, error) {
			var err error
			socket, err = open(nw, a)
			return socket, err
		}))
	if err != nil {
		return fmt.Errorf("dial %s: %w", a, err)
	}
	*cm.ClientConfig() = *d.quic.ClientConfig()
	if !d.cfg.Gater.View().IsRelay(p) {
		*cm.ClientConfig() = *rests(cm.ClientConfig())
	}
	timeless, err := identity.Timeless()
	if err != nil {
		return fmt.Errorf("dial %s: %w", a, err)
	}
	t, err := libp2pquic.NewTransport(d.cfg.Key, cm, nil, d.cfg.Gater, d.sw.ResourceManager(),
		libp2pquic.WithTLSIdentityOption(timeless))
	if err != nil {
		return fmt.Errorf("dial %s: %w", a, err)
	}
	var c transport.CapableConn
	err = d.via(ctx, a, func(ctx context.Context, to ma.Multiaddr) (err error) {
		c, err = t.Dial(ctx, to, p)
		return err
	})
	if err != nil {
		if socket != nil {
			_ = socket.Close()
		}
		return err
	}
	return d.inj.inject(ctx, &freshConn{c, socket})
}

// freshConn owns its socket, which libp2p's transport leaves to the garbage
// collector.
type freshConn struct {
	transport.CapableConn
	socket net.PacketConn
}

func (c *freshConn) Close() error {
	err := c.CapableConn.Close()
	_ = c.socket.Close()
	return err
}
