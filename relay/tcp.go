package main

import (
	"net"
	"net/http"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/libp2p/go-libp2p/p2p/transport/websocket"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/base/mux"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// tcpTransport is go-libp2p's, with buffers below the security layer, on ports that it may share with WebSocket.
type tcpTransport struct {
	*tcp.TcpTransport
	upgrader transport.Upgrader
	ports    *sharedPorts
}

// newTCPTransport makes it with the gate's upgrader.
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

// kernelKeeps has connections over TCP kept alive by the kernel. Proxies answer for WebSocket's other end.
func kernelKeeps(_ peer.ID, at net.Addr) time.Duration {
	if _, ok := at.(*net.TCPAddr); ok {
		return mux.KernelKeepAlive
	}
	return 0
}

// A request for WebSocket takes less than maxHeader bytes; net/http would read a million from anybody.
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

// webHandshake bounds the request; the gate bounds it and what follows, by how many others wait.
const webHandshake = 10 * time.Second

// webUpgrader has the WebSocket transport's listeners share their ports.
type webUpgrader struct {
	transport.Upgrader
	ports *sharedPorts
}

func (u webUpgrader) GateMaListener(l manet.Listener) transport.GatedMaListener {
	return u.ports.split(u.Upgrader.GateMaListener(l))
}
