package main

import (
	"syscall"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/admission/gate"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/who/members"
)

// gater is the membership's, except for incoming connections that the gate decides about. It also tunes accepted TCP
// sockets.
type gater struct {
	*members.Gater
	gate *gate.Gate
}

// InterceptAccept is called before the handshake.
func (g gater) InterceptAccept(c network.ConnMultiaddrs) bool {
	if !g.Gater.InterceptAccept(c) {
		return false
	}
	if sc, ok := c.(syscall.Conn); ok { // not QUIC
		if raw, err := sc.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { socket.TuneTCP(int(fd)) })
		}
	}
	return true
}

// InterceptSecured is called once the handshake has shown who the peer is. The gate takes a slot in SetPeer.
func (g gater) InterceptSecured(dir network.Direction, p peer.ID, c network.ConnMultiaddrs) bool {
	if dir == network.DirInbound && g.gate.Decides(p) {
		return g.MayCome(p, c)
	}
	return g.Gater.InterceptSecured(dir, p, c)
}

// InterceptUpgraded is called last.
func (g gater) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	if c.Stat().Direction == network.DirInbound && g.gate.Decides(c.RemotePeer()) {
		return g.gate.Stays(c), 0
	}
	return g.Gater.InterceptUpgraded(c)
}
