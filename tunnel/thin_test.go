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
// in any case. On short paths, and those that lose nothing, it gets all.
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
		clean       bool
		least, most int
	}{
		"long":  {100 * time.Millisecond, false, 1, segments / 2},
		"clean": {100 * time.Millisecond, true, segments, segments},
		"short": {time.Millisecond, false, segments, segments},
	} {
		t.Run(name, func(t *testing.T) {
			_, a, b, path := pair(t, tunnel.Limits{})
			path.SetRTT(c.rtt)
			path.SetClean(c.clean)
			a.dev.Inject(tunneltest.TCPPacket(addrA, addrB, nil)) // the carrier is up, and reports its round trip
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

// beside are two nodes with such a round trip between them; what the first one sends goes by path, or beside it as datagrams d.
func beside(t *testing.T, rtt time.Duration) (a, b *node, path *tunneltest.Path, d *taker) {
	t.Helper()
	net := tunneltest.NewNet()
	path = tunneltest.NewPath(64 << 10)
	path.SetRTT(rtt)
	net.SetPath(nodeA, nodeB, path)
	net.SetPath(nodeB, nodeA, tunneltest.NewPath(64<<10))
	t.Cleanup(net.Wait)
	a = newNode(t, nodeA, net.Underlay(nodeA), tunnel.Limits{}, nil)
	b = newNode(t, nodeB, net.Underlay(nodeB), tunnel.Limits{}, nil)
	net.Attach(nodeA, a.Tunnel)
	net.Attach(nodeB, b.Tunnel)
	d = newTaker(t, a, nodeA, b, nodeB)
	d.upForDatagrams()
	return a, b, path, d
}

// sendBulk has node A send 400 KB of a flow.
func (n *node) sendBulk() {
	for i := range 400 {
		p := tunneltest.TCPPacket(addrA, addrB, pattern(1000))
		binary.BigEndian.PutUint32(p[24:], uint32(1+i*1000))
		n.dev.Inject(p)
	}
}

// sendACK has node A acknowledge so many bytes of the other direction.
func (n *node) sendACK(ack int) {
	p := tunneltest.TCPPacket(addrA, addrB, nil)
	binary.BigEndian.PutUint32(p[28:], uint32(ack))
	n.dev.Inject(p)
}

// TestACKsPassBulk: while the stream to a peer stands with more behind it, the ACKs of a flow from there arrive, all but the
// first, and those that their flow's sender thins as well. Alone they are on the stream.
func TestACKsPassBulk(t *testing.T) {
	const acks = 20
	a, b, path, d := beside(t, 100*time.Millisecond)
	a.sendACK(1)
	a.dev.Inject(tunneltest.UDPPacket(addrA, addrB, pattern(100)))
	a.sendACK(2)
	b.packets(t, 3)
	if n, _ := d.datagrams(); n != 1 {
		t.Errorf("%d datagrams while nothing else is sent: want that of UDP", n)
	}
	path.Stall()
	defer path.Resume()
	a.sendBulk()
	fair.Eventually(t, patience, "ACKs arrive beside a stream that stands", fair.True(func() bool {
		for n := range acks {
			a.sendACK(3 + n)
		}
		n, _ := d.datagrams()
		return n >= acks
	}))
	b.packets(t, 3+acks-1)
}

// TestACKsOnAThinLine: on a stream that has shown to be slow, of the ACKs that come together the last one leaves as a datagram,
// and few others. On a busy machine they may not come together: one try of three is enough.
func TestACKsOnAThinLine(t *testing.T) {
	const acks = 200
	n := acks
	for range 3 {
		if n = thinned(t, acks); n <= acks/2 {
			return
		}
	}
	t.Errorf("%d datagrams for %d ACKs that came together", n, acks)
}

// thinned is how many datagrams so many ACKs became.
func thinned(t *testing.T, acks int) int {
	t.Helper()
	a, b, path, d := beside(t, 400*time.Millisecond)
	rate := func() float64 { return a.StatsOf(nodeB).Lanes[tunnel.StreamLane].Rate }
	path.Slow(200 * time.Millisecond) // 64 KiB in this time
	a.sendBulk()
	fair.Eventually(t, patience, "the rate is known", fair.True(func() bool { return rate() > 0 }))
	a.sendBulk()
	a.sendACK(1) // along with the data
	for n := range acks {
		a.sendACK(2 + n)
	}
	fair.Eventually(t, patience, "the last ACK arrives", fair.True(func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, f := range b.frames {
			if p := f[len(f)-12:]; binary.BigEndian.Uint32(p) == uint32(1+acks) {
				return true
			}
		}
		return false
	}))
	n, _ := d.datagrams()
	return n
}
