package lan

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/internal/nstest"
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

// Probes to neighbours that do not answer, hosts of another site with the same addresses, say, keep nobody waiting: packets of
// the tunnel wait for what sends probes.
func TestSilentNeighboursHoldUpNobody(t *testing.T) {
	nstest.Enter(t)
	nstest.Run(t, `ip link add eth0 type veth peer name far
ip link set eth0 up
ip link set far up
ip address add 192.168.1.5/24 dev eth0
echo 60000 >/proc/sys/net/ipv4/neigh/eth0/retrans_time_ms`)
	s, err := Listen(netip.MustParseAddr("192.168.1.5"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sent, end := make(chan int, 1), time.After(20*time.Second)
	go func() {
		n := 0
		for i := range 20000 {
			if s.Send(0, 1, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 1, byte(10 + i%200)}), 5211), make([]byte, 1400)) == nil {
				n++
			}
		}
		sent <- n
	}()
	select {
	case n := <-sent:
		if n < 500 {
			t.Errorf("%d probes found room", n)
		}
	case <-end:
		t.Error("a probe waits for neighbours that do not answer")
	}
}
