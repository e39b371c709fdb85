package tunnel_test

import (
	"encoding/binary"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel"
	"edgemesh/tunnel/tunneltest"
)

// TestACKsAreThinnedOnLongPaths: of the ACKs of a young flow the sender's kernel gets a few in a round trip, and the last one
// in any case. On short paths it gets all.
func TestACKsAreThinnedOnLongPaths(t *testing.T) {
	const segments, size = 100, 1000
	segment := func(n int) []byte {
		p := tunneltest.TCPPacket(addrA, addrB, make([]byte, size))
		binary.BigEndian.PutUint32(p[24:], uint32(1+n*size))
		return p
	}
	ack := func(n int) []byte {
		p := tunneltest.TCPPacket(addrB, addrA, nil)
		binary.BigEndian.PutUint32(p[28:], uint32(1+n*size))
		return p
	}
	for name, c := range map[string]struct {
		rtt         time.Duration
		least, most int
	}{
		"long":  {100 * time.Millisecond, 1, segments / 2},
		"short": {time.Millisecond, segments, segments},
	} {
		t.Run(name, func(t *testing.T) {
			_, a, b, path := pair(t, tunnel.Limits{})
			path.SetRTT(c.rtt)
			a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, nil)) // the carrier is up, and tells its round trip
			b.packets(t, 1)
			for n := range segments {
				a.dev.Inject(segment(n))
			}
			b.packets(t, 1+segments)
			for n := range segments {
				b.dev.Inject(ack(n + 1))
			}
			last := func() int {
				a.mu.Lock()
				defer a.mu.Unlock()
				if len(a.frames) == 0 {
					return 0
				}
				f := a.frames[len(a.frames)-1]
				return int(binary.BigEndian.Uint32(f[len(f)-12:])) / size
			}
			fair.Eventually(t, patience, "the last ACK passes", fair.True(func() bool { return last() == segments }))
			if n := len(a.packets(t, 1)); n < c.least || n > c.most {
				t.Errorf("%d of %d ACKs passed, want %d to %d", n, segments, c.least, c.most)
			}
		})
	}
}
