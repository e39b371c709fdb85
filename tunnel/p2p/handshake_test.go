package p2p

import (
	"context"
	"fmt"
	"net"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
	"golang.org/x/sys/unix"

	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/carrier/dialer"
)

// A handshake that gets no answer is begun again with smaller segments, twice.
func TestStuckHandshake(t *testing.T) {
	t.Parallel()
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	l, err := net.Listen("tcp4", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := ma.StringCast(fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", l.Addr().(*net.TCPAddr).Port))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.dialer.Dial(ctx, to, b.ID()) }()
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
	if sizes[0] <= dialer.SmallerMSS(1460) || sizes[1] > dialer.SmallerMSS(1460) || sizes[1] <= dialer.MinMSS || sizes[2] > dialer.MinMSS {
		t.Errorf("dialed with segments of %v bytes", sizes)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("connected")
	}
}
