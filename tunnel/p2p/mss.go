package p2p

import (
	"context"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"
)

// A TCP connection over a link that takes smaller packets than both ends think, and
// does not say so, stops for good: the kernel repeats the same segment. Nothing can be
// done about a living one, so all begin with segments that every link of IPv6 takes. What
// does not even get through its handshake with those is dialed again with smaller ones.
const (
	// usualMSS fits 1280 bytes with the larger of the two IP headers.
	usualMSS = 1280 - 60
	// smallMSS fits 576 bytes, the least that every host of IPv4 takes (RFC 791).
	smallMSS = 576 - 40
	// smallFor is how long an address is dialed with small segments.
	smallFor = 10 * time.Minute
	// A handshake is stuck when its segments were repeated so often after stuckAfter, or
	// when it took stuckLatest: the other end's may vanish, of which nothing is seen here.
	stuckAfter   = 1500 * time.Millisecond
	stuckRepeats = 2
	stuckLatest  = 3500 * time.Millisecond
)

// segmentSizes knows the addresses that get small segments. The zero value is ready.
type segmentSizes struct {
	mu    sync.Mutex
	small map[netip.Addr]time.Time // since when
}

// mss is the segment size for dials to an address.
func (s *segmentSizes) mss(to netip.Addr) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.small[to.Unmap()]; ok && to.Unmap().Is4() {
		if time.Since(at) < smallFor {
			return smallMSS
		}
		delete(s.small, to.Unmap())
	}
	return usualMSS
}

// shrink has an address dialed with small segments. It returns false when it is
// already, or has no smaller ones.
func (s *segmentSizes) shrink(to netip.Addr) bool {
	to = to.Unmap()
	if !to.Is4() || s.mss(to) == smallMSS {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.small == nil {
		s.small = map[netip.Addr]time.Time{}
	}
	if len(s.small) > 1024 { // of members and relays there are fewer
		clear(s.small)
	}
	s.small[to] = time.Now()
	return true
}

// shrunkSince reports whether that happened after t.
func (s *segmentSizes) shrunkSince(a ma.Multiaddr, t time.Time) bool {
	ip, ok := addrIP(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && s.small[ip.Unmap()].After(t)
}

// control adds the segment size for an address, host and port, to a socket's options.
func (s *segmentSizes) control(address string, set func(string, string, syscall.RawConn) error) func(string, string, syscall.RawConn) error {
	size := usualMSS
	if to, err := netip.ParseAddrPort(address); err == nil {
		size = s.mss(to.Addr())
	}
	return func(nw, a string, c syscall.RawConn) error {
		// The kernel takes no size below its least, nor above the interface's; without
		// the option everything works as long as no packets vanish.
		_ = c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, size) })
		return set(nw, a, c)
	}
}

// watch ends a handshake on c that is stuck, and remembers it. The function it returns
// ends the watch.
func (s *segmentSizes) watch(c manet.Conn) (stop func()) {
	ip, ok := addrIP(c.RemoteMultiaddr())
	sc, isRaw := c.(syscall.Conn)
	if !ok || !isRaw {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(context.Background(), stuckLatest)
	early := time.AfterFunc(stuckAfter, func() {
		if ctx.Err() == nil && repeats(sc) >= stuckRepeats && s.shrink(ip) {
			_ = c.Close()
		}
	})
	late := context.AfterFunc(ctx, func() {
		if ctx.Err() == context.DeadlineExceeded && s.shrink(ip) { //nolint:errorlint // it is the context's own
			_ = c.Close()
		}
	})
	return func() {
		late()
		cancel()
		early.Stop()
	}
}

// repeats is how often the kernel has sent the segment again that it waits for.
func repeats(c syscall.Conn) int {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = rc.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Retransmits)
		}
	})
	return n
}

// Dial is go-libp2p's, with a second attempt where the first found the way to be too
// narrow.
func (t *tcpTransport) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (transport.CapableConn, error) {
	return t.DialWithUpdates(ctx, a, p, nil)
}

// DialWithUpdates is Dial for the swarm.
func (t *tcpTransport) DialWithUpdates(ctx context.Context, a ma.Multiaddr, p peer.ID, updates chan<- transport.DialUpdate) (transport.CapableConn, error) {
	start := time.Now()
	c, err := t.TcpTransport.DialWithUpdates(ctx, a, p, updates)
	if err != nil && ctx.Err() == nil && t.sizes.shrunkSince(a, start) {
		return t.TcpTransport.DialWithUpdates(ctx, a, p, updates)
	}
	return c, err
}

var _ transport.DialUpdater = (*tcpTransport)(nil)
