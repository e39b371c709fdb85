package dialer

import (
	"testing"
	"time"

	"edgemesh/internal/upkeep"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// A connection that is closed before it is counted leaves nothing behind.
func TestFollowClosed(t *testing.T) {
	for _, early := range []bool{true, false} {
		c, far := tcpPair(t)
		defer far.Close()
		var s Sockets
		b := s.buffered(c)
		if early {
			b.Close()
		}
		s.follow(socketKey(c), b, upkeep.New().Follow(upkeep.Peer, upkeep.TCP(c), nil))
		b.Close()
		s.flows.Range(func(any, any) bool {
			t.Errorf("closed early %v: it is still counted", early)
			return true
		})
	}
}

// The kernel knows the shortest round trip of a connection that it has: not where a proxy is its other end.
func TestLeastRTT(t *testing.T) {
	c, far := tcpPair(t)
	defer far.Close()
	var s Sockets
	if d := s.LeastRTT(c); d != 0 {
		t.Errorf("%v of a connection that is not known", d)
	}
	defer s.buffered(c).Close()
	if d := s.LeastRTT(c); d <= 0 || d > time.Second {
		t.Errorf("%v on this host", d)
	}
	to, _ := endpoint.Target(c.RemoteMultiaddr())
	s.proxies.Store(to, struct{}{})
	if d := s.LeastRTT(c); d != 0 {
		t.Errorf("%v to a proxy", d)
	}
}
