package dialer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"

	"edgemesh/internal/proxy"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// tcpDialTimeout bounds connecting, except in a simultaneous open; it is longer than the first two SYN retransmissions (1 s, 3 s).
const tcpDialTimeout = 4 * time.Second

// tcpTransport is go-libp2p's TCP transport with this package's socket options
// on every socket, and buffers between the socket and the security layer.
type tcpTransport struct {
	*tcp.TcpTransport
	upgrader bufferedUpgrader
	sizes    *segmentSizes
	mark     uint32

	mu    sync.Mutex              // a leaf
	ports map[string]*net.TCPAddr // by network: the address dials are made from
}

var (
	_ transport.Transport   = (*tcpTransport)(nil)
	_ transport.DialUpdater = (*tcpTransport)(nil)
)

func newTCPTransport(mark uint32, s *Sockets, up transport.Upgrader, rcmgr network.ResourceManager) (*tcpTransport, error) {
	sizes := &s.sizes
	t := &tcpTransport{upgrader: bufferedUpgrader{up, s, sizes}, sizes: sizes, mark: mark, ports: make(map[string]*net.TCPAddr)}
	var err error
	t.TcpTransport, err = tcp.NewTCPTransport(t.upgrader, rcmgr, nil,
		tcp.WithConnectionTimeout(PendingTimeout),
		tcp.WithDialerForAddr(func(ma.Multiaddr) (tcp.ContextDialer, error) { return t, nil }))
	return t, err
}

// Listen listens on a. Unlike go-libp2p's it fails when the port is taken.
// Accepted sockets inherit the options of the listening one.
func (t *tcpTransport) Listen(a ma.Multiaddr) (transport.Listener, error) {
	nw, host, err := manet.DialArgs(a)
	if err != nil {
		return nil, err
	}
	laddr, err := net.ResolveTCPAddr(nw, host)
	if err != nil {
		return nil, err
	}
	if err := portFree(nw, laddr); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: socket.ListenControl(t.mark)}
	nl, err := lc.Listen(context.Background(), nw, host)
	if err != nil {
		return nil, err
	}
	l, err := manet.WrapNetListener(nl)
	if err != nil {
		nl.Close()
		return nil, err
	}
	t.mu.Lock()
	if _, ok := t.ports[nw]; !ok {
		t.ports[nw] = nl.Addr().(*net.TCPAddr)
	}
	t.mu.Unlock()
	return t.upgrader.UpgradeGatedMaListener(t, lingerListener{t.upgrader.GateMaListener(l)}), nil
}

// lingerListener makes closing an accepted connection abort it, so that its
// addresses and ports are free for a new one immediately.
type lingerListener struct{ transport.GatedMaListener }

func (l lingerListener) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, scope, err := l.GatedMaListener.Accept()
	if err == nil {
		if x, ok := c.(interface{ SetLinger(int) error }); ok {
			_ = x.SetLinger(0)
		}
	}
	return c, scope, err
}

// DialContext opens the socket of a dial. In a simultaneous open it comes from the
// listening port or fails; any other dial may fall back to another port when an old
// connection still holds the pair of addresses.
func (t *tcpTransport) DialContext(ctx context.Context, nw, address string) (net.Conn, error) {
	punching, _, _ := network.GetSimultaneousConnect(ctx)
	if through := proxy.Dialing(ctx); through != nil {
		return through(ctx, address)
	}
	if !punching {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tcpDialTimeout)
		defer cancel()
	}
	var local *net.TCPAddr
	if ctx.Value(anyPortKey{}) == nil {
		t.mu.Lock()
		local = t.ports[nw]
		t.mu.Unlock()
	}
	var unported net.Addr // what is left where the port is in use
	one := attemptOf(ctx)
	if src := one.src; src.IsValid() {
		from := net.TCPAddr{IP: src.AsSlice()}
		unported = &net.TCPAddr{IP: from.IP}
		if local != nil {
			from.Port = local.Port
		}
		local = &from
	}
	d := net.Dialer{KeepAlive: -1, Control: t.sizes.control(address, socket.Control(t.mark, local != nil))}
	if local != nil {
		d.LocalAddr = local
	}
	c, err := d.DialContext(ctx, nw, address)
	if err == nil {
		one.connected()
	}
	if err == nil || local == nil {
		return c, err
	}
	if punching ||
		!(errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EADDRINUSE)) {
		return nil, err
	}
	d.LocalAddr = unported
	c, err2 := d.DialContext(ctx, nw, address)
	if err2 != nil {
		return nil, fmt.Errorf("%w (and from any port: %w)", err, err2)
	}
	one.connected()
	return c, nil
}

// bufferedUpgrader puts a socket.Conn under the security layer.
type bufferedUpgrader struct {
	transport.Upgrader
	sockets *Sockets
	sizes   *segmentSizes
}

// Upgrade negotiates security and muxer on c. The server of a simultaneous open first looks
// who is at the other end: the client's dial, as planned, or the client's listener, which is
// a server as well because our SYN was faster than the client's. Then this end becomes the
// client.
func (u bufferedUpgrader) Upgrade(ctx context.Context, t transport.Transport, c manet.Conn, dir network.Direction,
	p peer.ID, scope network.ConnManagementScope) (transport.CapableConn, error) {
	b := u.sockets.buffered(c)
	stop := func() error { return nil }
	if p != "" { // dialed here
		accepted, turn := conns.Turn(ctx)
		if turn {
			accepted()
		}
		stop = u.sizes.watch(c, turn)
	}
	if dir == network.DirInbound && p != "" && facesServer(ctx, b) {
		dir = network.DirOutbound
	}
	up, err := u.Upgrader.Upgrade(ctx, t, b, dir, p, scope)
	if why := stop(); err != nil && why != nil {
		err = fmt.Errorf("%w: %w", why, err)
	}
	return up, err
}

// proposalWait is how long a proposal may come after the header.
const proposalWait = 150 * time.Millisecond

// facesServer reports whether the other end of b waits for a proposal. It consumes
// nothing.
func facesServer(ctx context.Context, b *socket.Conn) bool {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(tcpDialTimeout)
	}
	if b.Peek(multistreamHeader, deadline) < multistreamHeader {
		return false // nothing, or something else: the handshake shows which
	}
	return b.Peek(multistreamHeader+1, time.Now().Add(proposalWait)) == multistreamHeader
}

func (u bufferedUpgrader) UpgradeGatedMaListener(t transport.Transport, l transport.GatedMaListener) transport.Listener {
	return u.Upgrader.UpgradeGatedMaListener(t, socket.Listener{GatedMaListener: l,
		Buffer: func(c manet.Conn) manet.Conn { return u.sockets.buffered(c) }})
}

// portFree returns an error when something else listens on a: with SO_REUSEPORT
// a second listener would succeed silently and steal half of the connections.
func portFree(network string, a *net.TCPAddr) error {
	if a.Port == 0 {
		return nil
	}
	l, err := net.ListenTCP(network, a)
	if err != nil {
		return err
	}
	return l.Close()
}

// PendingTimeout is how long a pending dial, one side of a simultaneous open, lasts:
// Linux sends its SYN for the fourth time after 7 s, and since 6.5 every second at first.
const PendingTimeout = 16 * time.Second

// anyPortKey marks the context of a dial that is not to leave from the listening port.
type anyPortKey struct{}

// Dial is go-libp2p's, repeated when an attempt found that the path takes smaller segments
// only.
func (t *tcpTransport) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	return t.DialWithUpdates(ctx, a, p, nil)
}

// DialWithUpdates is Dial for the swarm.
func (t *tcpTransport) DialWithUpdates(ctx context.Context, a ma.Multiaddr, p peer.ID, updates chan<- transport.DialUpdate) (transport.CapableConn, error) {
	for {
		start := time.Now()
		c, err := t.TcpTransport.DialWithUpdates(ctx, a, p, updates)
		if err == nil || ctx.Err() != nil || !t.sizes.shrunkSince(a, start) {
			return c, err
		}
	}
}
