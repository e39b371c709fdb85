package lan

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProbesAreNeitherRoutedNorCut: one hop, and no fragments.
func TestProbesAreNeitherRoutedNorCut(t *testing.T) {
	for _, c := range []struct {
		at   string
		want [][3]int // level, option, value
	}{
		{"127.0.0.1", [][3]int{{unix.SOL_IP, unix.IP_TTL, 1}, {unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}}},
		{"::1", [][3]int{{unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, 1}, {unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE}}},
	} {
		opened, err := Listen(netip.MustParseAddr(c.at), 0)
		if err != nil {
			t.Skip(err) // no IPv6 here
		}
		s, ok := opened.(*socket)
		if !ok {
			t.Fatalf("%T", opened)
		}
		raw, err := s.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.want {
			if err := raw.Control(func(fd uintptr) {
				if v, err := unix.GetsockoptInt(int(fd), w[0], w[1]); err != nil || v != w[2] {
					t.Errorf("%s: option %d of level %d is %d, want %d: %v", c.at, w[1], w[0], v, w[2], err)
				}
			}); err != nil {
				t.Error(err)
			}
		}
		s.Close()
	}
}
