package socket

import (
	"context"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	manet "github.com/multiformats/go-multiaddr/net"
)

// ofMember puts buffers in front of a relay's connection, and has the kernel notice when its other end is gone.
func ofMember(c manet.Conn) manet.Conn {
	b := Buffered(c, nil)
	b.Supervise()
	return b
}

// Upgrader puts buffers under the security layer of every connection of a relay.
type Upgrader struct{ transport.Upgrader }

// Upgrade negotiates security and muxer on a connection that was dialed.
func (u Upgrader) Upgrade(ctx context.Context, t transport.Transport, c manet.Conn, dir network.Direction,
	p peer.ID, scope network.ConnManagementScope) (transport.CapableConn, error) {
	return u.Upgrader.Upgrade(ctx, t, ofMember(c), dir, p, scope)
}

// UpgradeGatedMaListener does so on the connections that l accepts.
func (u Upgrader) UpgradeGatedMaListener(t transport.Transport, l transport.GatedMaListener) transport.Listener {
	return u.Upgrader.UpgradeGatedMaListener(t, Listener{l, ofMember})
}

// Listener puts buffers in front of the connections that it accepts.
type Listener struct {
	transport.GatedMaListener
	Buffer func(manet.Conn) manet.Conn
}

// Accept implements transport.GatedMaListener.
func (l Listener) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, scope, err := l.GatedMaListener.Accept()
	if err != nil {
		return nil, nil, err
	}
	return l.Buffer(c), scope, nil
}
