package dialer

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
	"golang.org/x/sys/unix"

	"edgemesh/internal/nat64"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// A TCP connection over a link that silently drops packets smaller than both ends think it
// takes stops for good: the kernel repeats the same segment. An existing connection cannot
// be repaired (package paths gives it up). The next one is stuck in its handshake, whose
// messages are longer than a packet; it is dialed again with segments that every link of
// IPv6 takes, then with segments that every host of IPv4 takes.
const (
	// ipv6MSS fits 1280 bytes with the larger of the two IP headers.
	ipv6MSS = 1280 - 60
	// MinMSS fits 576 bytes (RFC 791).
	MinMSS = 576 - 40
	// narrowFor is how long an address is dialed with small segments.
	narrowFor = 10 * time.Minute
	// A handshake is stuck when a large segment was repeated stuckRepeats times, which is
	// checked every stuckEvery, or when it took stuckLatest: segments of the other end may
	// vanish unseen.
	stuckEvery   = 250 * time.Millisecond
	stuckRepeats = 2
	stuckLatest  = 3500 * time.Millisecond
	// begunLatest is how long a handshake may take once its turn has come, see conns.TurnLatest.
	begunLatest = 4 * time.Second
)

// errUnserved is a relay that accepts, and does not begin.
var errUnserved = errors.New("the connection is accepted, and then there is no answer: the program there hangs, or is overloaded")

// errBegun is one that begins, and does not continue.
var errBegun = errors.New("the handshake does not end")

// segmentSizes has the addresses to dial with small segments. The zero value is ready to use.
type segmentSizes struct {
	mu sync.Mutex // a leaf
	m  map[netip.Addr]narrow
}

// narrow is an address whose path takes no larger segments.
type narrow struct {
	mss   int
	since time.Time
}

// mss is the segment size for dials to an address, 0: the kernel's own.
func (s *segmentSizes) mss(to netip.Addr) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.m[nat64.Inside(to)]; ok && time.Since(n.since) < narrowFor {
		return n.mss
	}
	return 0
}

// SmallerMSS is the segment size to try when segments of mss bytes vanish.
func SmallerMSS(mss int) int {
	if mss > ipv6MSS {
		return ipv6MSS
	}
	return MinMSS
}

// shrink makes later dials of an address use smaller segments than mss bytes, which vanish
// on its path. It returns false when there is no smaller size.
func (s *segmentSizes) shrink(to netip.Addr, mss int) bool {
	to = nat64.Inside(to)
	next := SmallerMSS(mss)
	if mss <= MinMSS || next == MinMSS && !to.Is4() {
		return false
	}
	if known := s.mss(to); known != 0 {
		next = min(next, known) // another connection has found it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[netip.Addr]narrow{}
	}
	if len(s.m) > 1024 { // of members and relays there are fewer
		clear(s.m)
	}
	s.m[to] = narrow{next, time.Now()}
	return true
}

// shrunkSince reports whether shrink changed a's address after t.
func (s *segmentSizes) shrunkSince(a ma.Multiaddr, t time.Time) bool {
	ip, ok := endpoint.IP(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && s.m[ip].since.After(t)
}

// control adds the segment size for an address, host and port, to a socket's options.
func (s *segmentSizes) control(address string, set func(string, string, syscall.RawConn) error) func(string, string, syscall.RawConn) error {
	size := 0
	if to, err := netip.ParseAddrPort(address); err == nil {
		size = s.mss(to.Addr())
	}
	if size == 0 {
		return set
	}
	return func(nw, a string, c syscall.RawConn) error {
		// The kernel takes no size below its least, nor above the interface's; without
		// the option everything works as long as no packets vanish.
		_ = c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, size) })
		return set(nw, a, c)
	}
}

// watch ends a handshake on c that is stuck, and remembers it. turn: it may wait for its turn first, see conns.WithTurn. The
// function it returns ends the watch, and says why it has ended the handshake, if that is known better than from its error.
func (s *segmentSizes) watch(c manet.Conn, turn bool) (stop func() error) {
	ip, ok := endpoint.IP(c.RemoteMultiaddr())
	sc, isRaw := c.(syscall.Conn)
	if !ok || !isRaw {
		return func() error { return nil }
	}
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		look := time.NewTicker(stuckEvery)
		defer look.Stop()
		w := handshake{turn: turn, start: time.Now(), since: time.Now()}
		for {
			select {
			case <-end:
				ended <- nil
				return
			case <-look.C:
			}
			info, unacked := tcpInfo(sc)
			if info == nil {
				continue
			}
			stuck, why := w.look(time.Now(), info, unacked)
			if stuck && s.shrink(ip, int(info.Snd_mss)) || why != nil {
				_ = c.Close()
				ended <- why
				return
			}
		}
	}()
	return sync.OnceValue(func() error {
		close(end)
		return <-ended
	})
}

// handshake is one that is watched.
type handshake struct {
	turn  bool      // it may wait for its turn
	start time.Time // when the connection was accepted
	since time.Time // since when the other end owes an answer
}

// look reports whether segments seem to vanish, and why there is no use in waiting any longer.
func (w *handshake) look(now time.Time, info *unix.TCPInfo, unacked int) (stuck bool, why error) {
	// What it was sent has arrived, and all that came is multistream-select's header, which a server sends unasked.
	waits := w.turn && info.Bytes_received <= uint64(multistreamHeader) && unacked == 0
	if waits && now.Sub(w.start) < conns.TurnLatest {
		w.since = now
		return false, nil
	}
	stuck = info.Retransmits >= stuckRepeats && unacked > MinMSS || now.Sub(w.since) >= stuckLatest
	switch {
	case w.turn && waits:
		why = errUnserved
	case w.turn && now.Sub(w.since) >= begunLatest:
		why = errBegun
	}
	return stuck, why
}

// tcpInfo is Info of a socket.
func tcpInfo(sc syscall.Conn) (info *unix.TCPInfo, unacked int) {
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, 0
	}
	_ = rc.Control(func(fd uintptr) {
		if i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			info = i
			if queued, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil { // tcp(7): unsent ones, too
				unacked = queued - int(i.Notsent_bytes)
			}
		}
	})
	return info, unacked
}

// multistreamHeader is the length of multistream-select's first message in
// bytes. A server sends it alone, a client together with its proposal.
const multistreamHeader = 1 + len("/multistream/1.0.0\n")
