package main

import (
	"syscall"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/tcpreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"

	"edgemesh/tunnel/p2p/join"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/socket"
)

// newTCPTransport is go-libp2p's TCP transport with buffers below the security
// layer.
func newTCPTransport(up transport.Upgrader, rm network.ResourceManager, shared *tcpreuse.ConnMgr) (*tcp.TcpTransport, error) {
	return tcp.NewTCPTransport(socket.Upgrader{Upgrader: up}, rm, shared, tcp.DisableReuseport())
}

// newWebSocket is the same for WebSocket.
func newWebSocket(up transport.Upgrader, rm network.ResourceManager, shared *tcpreuse.ConnMgr) (*websocket.WebsocketTransport, error) {
	return websocket.New(socket.Upgrader{Upgrader: up}, rm, shared)
}

// tuned is the gater of the membership. It also sets what helps a relay on accepted
// TCP sockets, and lets peers knock at the door, if there is one, that the membership does
// not know.
type tuned struct {
	*members.Gater
	door *join.Door // nil: only those of the membership are served
}

// InterceptAccept is asked before the handshake.
func (t tuned) InterceptAccept(c network.ConnMultiaddrs) bool {
	if !t.Gater.InterceptAccept(c) {
		return false
	}
	if sc, ok := c.(syscall.Conn); ok { // not QUIC
		if raw, err := sc.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { socket.TuneTCP(int(fd)) })
		}
	}
	return true
}

// knocks says whether p may prove the join secret: nothing else is known of it.
func (t tuned) knocks(dir network.Direction, p peer.ID) bool {
	return t.door != nil && dir == network.DirInbound && !t.View().Known(p) && t.Refusal(p) == nil
}

// InterceptSecured is asked once the handshake has shown who the peer is.
func (t tuned) InterceptSecured(dir network.Direction, p peer.ID, c network.ConnMultiaddrs) bool {
	if t.knocks(dir, p) {
		return t.View().Outside(c.RemoteMultiaddr()) && t.door.Knock(p, c.RemoteMultiaddr())
	}
	return t.Gater.InterceptSecured(dir, p, c)
}

// InterceptUpgraded is asked last.
func (t tuned) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	if t.knocks(c.Stat().Direction, c.RemotePeer()) {
		return true, 0
	}
	return t.Gater.InterceptUpgraded(c)
}
