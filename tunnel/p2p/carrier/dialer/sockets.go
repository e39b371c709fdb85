package dialer

import (
	"math"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"

	"edgemesh/internal/proxy"
	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/socket"
)

// Sockets finds the kernel's socket of a TCP connection. The kernel hears the
// peer earlier than any stream does: after a loss everything behind it waits for
// the retransmission, on a slow path for seconds, while acknowledgements continue.
type Sockets struct {
	m       sync.Map // endpoints → *socket.Conn
	proxies sync.Map // endpoint.Endpoint → struct{}: where a proxy was reached
	flows   sync.Map // *socket.Conn → *upkeep.Flow
	failed  proxy.Failures
	sizes   segmentSizes
}

func socketKey(c network.ConnMultiaddrs) string {
	return string(c.LocalMultiaddr().Bytes()) + "|" + string(c.RemoteMultiaddr().Bytes())
}

// buffered makes c a buffered connection and remembers it until it is closed.
func (s *Sockets) buffered(c manet.Conn) *socket.Conn {
	key := socketKey(c)
	var b *socket.Conn
	b = socket.Buffered(c, func() {
		s.m.CompareAndDelete(key, b)
		s.unfollow(b)
	})
	socket.KeepAlive(c, 0) // paths are probed; for relays, KeepAlive says when
	s.m.Store(key, b)
	return b
}

// follow counts a connection until it is closed.
func (s *Sockets) follow(key string, b *socket.Conn, f *upkeep.Flow) {
	s.flows.Store(b, f)
	if v, _ := s.m.Load(key); v != b { // it was closed meanwhile
		s.unfollow(b)
	}
}

func (s *Sockets) unfollow(b *socket.Conn) {
	if f, ok := s.flows.LoadAndDelete(b); ok {
		f.(*upkeep.Flow).End() //nolint:forcetypeassert // as follow stored it
	}
}

// find returns nil for a connection that is not TCP.
func (s *Sockets) find(c network.ConnMultiaddrs) *socket.Conn {
	v, _ := s.m.Load(socketKey(c))
	b, _ := v.(*socket.Conn)
	return b
}

// KeepAlive is socket.Conn's of a TCP connection, and ended its Silent.
func (s *Sockets) KeepAlive(c network.ConnMultiaddrs, silence time.Duration) (ended func() time.Duration) {
	b := s.find(c)
	if b == nil {
		return func() time.Duration { return 0 }
	}
	b.KeepAlive(silence)
	return b.Silent
}

// Clean is socket.Conn's of a TCP connection, false for any other.
func (s *Sockets) Clean(c network.ConnMultiaddrs) bool {
	b := s.find(c)
	return b != nil && b.Clean()
}

// Heard says when the kernel last heard the other end of a TCP connection, the
// zero time for any other connection, and behind a proxy, which acknowledges by itself:
// tcpi_last_ack_recv of linux/tcp.h, in ms.
func (s *Sockets) Heard(c network.ConnMultiaddrs) time.Time {
	info, _ := s.Info(c)
	if info == nil || s.Proxied(c) {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(info.Last_ack_recv) * time.Millisecond)
}

// LeastRTT is the shortest round trip to the other end of a TCP connection, as the kernel measured it (tcpi_min_rtt of linux/tcp.h; the
// first sample after tcp_min_rtt_wlen, five minutes, replaces it), 0: unknown, as of any other connection, and to a proxy.
func (s *Sockets) LeastRTT(c network.ConnMultiaddrs) time.Duration {
	info, _ := s.Info(c)
	if info == nil || info.Min_rtt == math.MaxUint32 || s.Proxied(c) {
		return 0
	}
	return time.Duration(info.Min_rtt) * time.Microsecond
}

// Proxied reports whether a connection runs through a proxy: the proxy's address is its other end.
func (s *Sockets) Proxied(c network.ConnMultiaddrs) bool {
	e, ok := endpoint.Target(c.RemoteMultiaddr())
	if ok {
		_, ok = s.proxies.Load(e)
	}
	return ok
}

// KeptAlive reports whether the kernel keeps a connection alive whose other end is at a: one over TCP that no proxy answers for.
func (s *Sockets) KeptAlive(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	if ok {
		_, proxied := s.proxies.Load(endpoint.Endpoint{Addr: netip.AddrPortFrom(t.AddrPort().Addr().Unmap(), t.AddrPort().Port())})
		ok = !proxied
	}
	return ok
}

// ProxyFailures are the connections that the proxy did not give.
func (s *Sockets) ProxyFailures() *proxy.Failures { return &s.failed }

// Info is what the kernel says of a TCP connection, nil for any other, and how many bytes
// it has sent without their being acknowledged.
func (s *Sockets) Info(c network.ConnMultiaddrs) (info *unix.TCPInfo, unacked int) {
	b := s.find(c)
	if b == nil {
		return nil, 0
	}
	sc, ok := b.Conn.(syscall.Conn)
	if !ok {
		return nil, 0
	}
	return tcpInfo(sc)
}

// Shrink makes later dials of the host at to use smaller segments than mss bytes, which
// vanish on its path.
func (s *Sockets) Shrink(to netip.Addr, mss int) { s.sizes.shrink(to, mss) }
