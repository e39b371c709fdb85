package main

import (
	"syscall"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/tcpreuse"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"

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
// TCP sockets.
type tuned struct{ *members.Gater }

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
