package main

import (
	"net/http"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/control"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/admission/join"
	"edgemesh/tunnel/p2p/admission/lobby"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/who/members"
)

// tcpTransport is go-libp2p's, with buffers below the security layer, on ports that it may share with WebSocket.
type tcpTransport struct {
	*tcp.TcpTransport
	upgrader transport.Upgrader
	ports    *sharedPorts
}

// newTCPTransport makes it with a guarded upgrader.
func newTCPTransport(up transport.Upgrader, ports *sharedPorts, rm network.ResourceManager) (*tcpTransport, error) {
	up = socket.Upgrader{Upgrader: up}
	t, err := tcp.NewTCPTransport(up, rm, nil, tcp.DisableReuseport())
	return &tcpTransport{t, up, ports}, err
}

// Listen implements transport.Transport.
func (t *tcpTransport) Listen(a ma.Multiaddr) (transport.Listener, error) {
	if l := t.ports.forTCP(a); l != nil {
		return t.upgrader.UpgradeGatedMaListener(t, l), nil
	}
	return t.TcpTransport.Listen(a)
}

// A request for WebSocket takes less than maxHeader bytes; net/http would read a million from every stranger.
const maxHeader = 4 << 10

// newWebSocket is the same for WebSocket.
func newWebSocket(up transport.Upgrader, ports *sharedPorts, rm network.ResourceManager) (*websocket.WebsocketTransport, error) {
	return websocket.New(socket.Upgrader{Upgrader: webUpgrader{up, ports}}, rm, nil,
		websocket.WithHandshakeTimeout(webHandshake),
		websocket.WithHTTPHandler(http.NotFoundHandler()), // as without it; the next line needs it
		websocket.WithHTTPServerConfig(func(s *http.Server) {
			s.MaxHeaderBytes = maxHeader
			s.Protocols = new(http.Protocols)
			s.Protocols.SetHTTP1(true)
			s.SetKeepAlivesEnabled(false)
		}))
}

// webHandshake bounds the request; knock bounds it and what follows, by how many others wait.
const webHandshake = 10 * time.Second

// webUpgrader has the WebSocket transport's listeners share their ports.
type webUpgrader struct {
	transport.Upgrader
	ports *sharedPorts
}

func (u webUpgrader) GateMaListener(l manet.Listener) transport.GatedMaListener {
	return u.ports.split(u.Upgrader.GateMaListener(l))
}

// tuned is the gater of the membership. It also sets what helps a relay on accepted
// TCP sockets, and lets peers knock at the door, or into the lobby, that the membership does
// not know.
type tuned struct {
	*members.Gater
	door  *join.Door   // nil: only those of the membership are served
	lobby *lobby.Lobby // nil: nobody else may ask a controller
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

// visits says whether p may ask a controller: it is neither known nor banned, and there is one.
func (t tuned) visits(dir network.Direction, p peer.ID) bool {
	v := t.View()
	return t.lobby != nil && v.HasControllers() && dir == network.DirInbound && !v.Known(p) && !v.Banned(p) && t.Refusal(p) == nil
}

// InterceptSecured is asked once the handshake has shown who the peer is.
func (t tuned) InterceptSecured(dir network.Direction, p peer.ID, c network.ConnMultiaddrs) bool {
	if t.knocks(dir, p) {
		return t.View().Outside(c.RemoteMultiaddr()) && t.door.Knock(p, c.RemoteMultiaddr())
	}
	if t.visits(dir, p) {
		return t.View().Outside(c.RemoteMultiaddr()) && t.lobby.Enter(p, c.RemoteMultiaddr())
	}
	return t.Gater.InterceptSecured(dir, p, c)
}

// InterceptUpgraded is asked last.
func (t tuned) InterceptUpgraded(c network.Conn) (bool, control.DisconnectReason) {
	if d, p := c.Stat().Direction, c.RemotePeer(); t.knocks(d, p) || t.visits(d, p) {
		return true, 0
	}
	return t.Gater.InterceptUpgraded(c)
}
