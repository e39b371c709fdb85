package p2p

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"
)

func TestSegmentSizes(t *testing.T) {
	var s segmentSizes
	v4, v6 := netip.MustParseAddr("5.5.5.5"), netip.MustParseAddr("fd00::5")
	for _, a := range []netip.Addr{v4, v6} {
		if n := s.mss(a); n != 0 {
			t.Errorf("%s begins with %d", a, n)
		}
	}
	const options = 12 // RFC 7323's timestamps, which the kernel takes off its MSS
	if !s.shrink(v6, 1440) || s.mss(v6) != ipv6MSS || s.shrink(v6, ipv6MSS-options) {
		t.Errorf("IPv6 goes down to %d, want one step to %d", s.mss(v6), ipv6MSS)
	}
	before := time.Now()
	for _, c := range []struct{ vanish, want int }{
		{1460, ipv6MSS}, {1460, ipv6MSS}, // both connections of a pair
		{ipv6MSS - options, ipv4MSS},
		{1460, ipv4MSS}, // an older one, late
	} {
		if !s.shrink(netip.AddrFrom16(v4.As16()), c.vanish) || s.mss(v4) != c.want {
			t.Errorf("segments of %d vanish: IPv4 goes down to %d, want %d", c.vanish, s.mss(v4), c.want)
		}
	}
	if s.shrink(v4, ipv4MSS-options) {
		t.Error("smaller than every host takes")
	}
	a := ma.StringCast("/ip4/5.5.5.5/tcp/1")
	if !s.shrunkSince(a, before) || s.shrunkSince(a, time.Now()) || s.shrunkSince(ma.StringCast("/ip4/5.5.5.6/tcp/1"), before) {
		t.Error("when it shrank is not told")
	}
	s.m[v4] = narrow{ipv4MSS, time.Now().Add(-narrowFor)}
	if n := s.mss(v4); n != 0 {
		t.Errorf("%d after a while", n)
	}
	for i := range 3000 { // addresses of nobody do not pile up
		s.shrink(netip.AddrFrom4([4]byte{9, 9, byte(i >> 8), byte(i)}), 1460)
	}
	if n := len(s.m); n > 1025 {
		t.Errorf("%d addresses are remembered", n)
	}
}

// A handshake that gets no answer is begun again with smaller segments, twice.
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
	for range 3 {
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
	if sizes[0] <= ipv6MSS || sizes[1] > ipv6MSS || sizes[1] <= ipv4MSS || sizes[2] > ipv4MSS {
		t.Errorf("dialed with segments of %v bytes", sizes)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("connected")
	}
}
