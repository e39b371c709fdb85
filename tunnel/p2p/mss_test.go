package p2p

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"
)

func TestSegmentSizes(t *testing.T) {
	var s segmentSizes
	v4, v6 := netip.MustParseAddr("5.5.5.5"), netip.MustParseAddr("fd00::5")
	for _, a := range []netip.Addr{v4, v6} {
		if n := s.mss(a); n != usualMSS {
			t.Errorf("%s begins with %d", a, n)
		}
	}
	if s.shrink(v6) || s.mss(v6) != usualMSS {
		t.Error("IPv6 has no smaller packets")
	}
	before := time.Now()
	if !s.shrink(netip.AddrFrom16(v4.As16())) || s.mss(v4) != smallMSS {
		t.Error("IPv4 is not dialed with small segments")
	}
	if s.shrink(v4) {
		t.Error("twice")
	}
	a := ma.StringCast("/ip4/5.5.5.5/tcp/1")
	if !s.shrunkSince(a, before) || s.shrunkSince(a, time.Now()) || s.shrunkSince(ma.StringCast("/ip4/5.5.5.6/tcp/1"), before) {
		t.Error("when it shrank is not told")
	}
	s.small[v4] = time.Now().Add(-smallFor)
	if n := s.mss(v4); n != usualMSS {
		t.Errorf("%d after a while", n)
	}
	for i := range 3000 { // addresses of nobody do not pile up
		s.shrink(netip.AddrFrom4([4]byte{9, 9, byte(i >> 8), byte(i)}))
	}
	if n := len(s.small); n > 1025 {
		t.Errorf("%d addresses are remembered", n)
	}
}

// Both ends of a TCP connection send segments that fit 1280 bytes.
func TestSegmentsFitIPv6(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "direct", onPath(a, b.ID(), KindDirect, "tcp"))
	for _, n := range []*Node{a, b} {
		seen := 0
		n.sockets.m.Range(func(_, v any) bool {
			c, ok := v.(*bufferedConn)
			if !ok {
				return true
			}
			rc, err := c.Conn.(interface {
				SyscallConn() (syscall.RawConn, error)
			}).SyscallConn()
			if err != nil {
				t.Error(err)
				return true
			}
			_ = rc.Control(func(fd uintptr) {
				size, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
				if err != nil || size > usualMSS {
					t.Errorf("segments of %d bytes, %v", size, err)
				}
				seen++
			})
			return true
		})
		if seen == 0 {
			t.Error("no TCP connection was looked at")
		}
	}
}

// A handshake that gets no answer is begun again with small segments.
func TestStuckHandshake(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	l, err := net.Listen("tcp4", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := ma.StringCast(fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", l.Addr().(*net.TCPAddr).Port))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.dialAddr(ctx, to, b.ID()) }()
	var sizes []int
	for range 2 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		rc, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = rc.Control(func(fd uintptr) {
			n, _ := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
			sizes = append(sizes, n)
		})
	}
	if sizes[0] > usualMSS || sizes[0] <= smallMSS || sizes[1] > smallMSS {
		t.Errorf("dialed with segments of %v bytes", sizes)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("connected")
	}
}
