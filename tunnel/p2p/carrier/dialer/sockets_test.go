package dialer

import (
	"testing"

	"edgemesh/internal/upkeep"
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
