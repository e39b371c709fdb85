package p2p

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/carrier/sealed"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
	"edgemesh/tunnel/pull"
)

// collector keeps the datagrams that a node gets, and has others sent.
type collector struct {
	mu     sync.Mutex
	got    [][]byte
	counts bool // instead of that
	count  int
	bytes  int
	flush  int
	closed int
	to     map[peer.ID]*datagramLanes // which are up
}

// datagramLanes are what sealed packets to one peer carry.
type datagramLanes struct {
	*collector
	p     peer.ID
	wake  func()
	asks  bool // how long one may be
	room  int  // the answer, bytes
	waits [][]byte
}

func (l *datagramLanes) Up(wake func(), _ bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake, l.to[l.p] = wake, l
}

func (l *datagramLanes) Down([]pull.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits = nil
	if l.to[l.p] == l {
		delete(l.to, l.p)
	}
}

func (l *datagramLanes) Waits() (stream, datagram bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return false, l.asks || len(l.waits) > 0
}

func (l *datagramLanes) TakeDatagram(line pull.Line, room int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks, l.room = false, line.Room
	for len(l.waits) > 0 && len(l.waits[0]) > line.Room { // the path has become narrower
		l.waits = l.waits[1:]
	}
	if len(l.waits) == 0 || len(l.waits[0]) > room {
		return nil
	}
	b := l.waits[0]
	l.waits = l.waits[1:]
	return b
}

func (*datagramLanes) Take(pull.Line) (pull.Frame, int) { return nil, 0 }
func (*datagramLanes) Carries() bool                    { return false }
func (*datagramLanes) Stream(int, []byte) int           { return 0 }
func (*datagramLanes) Restart(int)                      {}

func (c *collector) Datagram(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count, c.bytes = c.count+1, c.bytes+len(b)
	if !c.counts {
		c.got = append(c.got, bytes.Clone(b))
	}
}

func (c *collector) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush++
}

func (c *collector) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
}

func (c *collector) snapshot() (got [][]byte, flush, closed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got, c.flush, c.closed
}

// size is the longest datagram to a peer, bytes; 0: none.
func (c *collector) size(to peer.ID) int {
	c.mu.Lock()
	l := c.to[to]
	if l == nil {
		c.mu.Unlock()
		return 0
	}
	l.asks, l.room = true, 0
	c.mu.Unlock()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) { // sleep: between looks
		l.wake()
		c.mu.Lock()
		room := l.room
		c.mu.Unlock()
		if room > 0 {
			return room
		}
	}
	return 0
}

var errNoLanes = errors.New("no datagrams")

// put sends one. It waits while many do.
func (c *collector) put(to peer.ID, b []byte) error {
	for {
		c.mu.Lock()
		l := c.to[to]
		if l == nil {
			c.mu.Unlock()
			return errNoLanes
		}
		if len(l.waits) < 1000 {
			l.waits = append(l.waits, b)
			c.mu.Unlock()
			l.wake()
			return nil
		}
		c.mu.Unlock()
		time.Sleep(time.Millisecond) // sleep: the queue is full
	}
}

// take makes n keep the datagrams of all its peers.
func take(n *Node) *collector {
	c := &collector{to: map[peer.ID]*datagramLanes{}}
	n.SetLanes(func(p peer.ID) packet.Lanes { return &datagramLanes{collector: c, p: p} })
	n.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *paths.Stream) {
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{s})
		s.Reset()
	})
	return c
}

// datagramStream opens a stream for the datagram lane once it runs over QUIC.
func datagramStream(t *testing.T, from *Node, to peer.ID) *paths.Stream {
	t.Helper()
	var s *paths.Stream
	fair.Eventually(t, 15*time.Second, "a stream of the datagram lane over QUIC", func() error {
		ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		o, err := from.OpenStream(ctx, to, identity.DatagramProtocol)
		if err != nil {
			return err
		}
		if p := o.Path(); p.Transport != "quic" {
			o.Reset()
			return fmt.Errorf("path %+v", p)
		}
		s = o
		return nil
	})
	t.Cleanup(s.Reset)
	return s
}

// hasDatagrams has the datagram lane use a path, and checks how long a datagram may be.
func hasDatagrams(c *collector, s *paths.Stream, to peer.ID, least int) func() error {
	return func() error {
		_, _ = s.Write([]byte{0})
		if n := c.size(to); n < least {
			return fmt.Errorf("datagrams of %d bytes, want %d", n, least)
		}
		return nil
	}
}

// exchanged sends datagrams of all lengths, and checks that they arrive as they were.
func exchanged(t *testing.T, from *collector, to peer.ID, in *collector) {
	t.Helper()
	var want [][]byte
	size := from.size(to)
	for i, n := range []int{1, 5, 5, 5, 5, 4, 700, 700, 1200, 1200, 300, size, size, size - 1, 2} {
		b := bytes.Repeat([]byte{byte(i)}, n)
		want = append(want, b)
		if err := from.put(to, b); err != nil {
			t.Fatalf("put %d bytes: %v", n, err)
		}
	}
	fair.Eventually(t, 5*time.Second, "all arrive", func() error {
		if got, flush, _ := in.snapshot(); len(got) != len(want) || flush == 0 {
			return fmt.Errorf("%d of %d, %d flushes", len(got), len(want), flush)
		}
		return nil
	})
	got, _, _ := in.snapshot()
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("datagram %d: %d bytes of %d, want %d of %d", i, len(got[i]), got[i][0], len(want[i]), want[i][0])
		}
	}
}

func TestDatagrams(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	out, in := take(a), take(b)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	// The loopback takes jumbo frames, so the largest is found.
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(out, s, b.ID(), 8900))
	size := out.size(b.ID())
	exchanged(t, out, b.ID(), in)
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind != paths.KindDirect {
		t.Errorf("path %+v", st.Path)
	}
	var sent uint64
	for _, c := range a.h.Network().ConnsToPeer(b.ID()) {
		sent += a.peers.Conn(c).Moved()
	}
	if sent < uint64(3*size) {
		t.Errorf("%d bytes are counted as sent", sent)
	}
}

// With the path both ends of its datagrams are over, and the lanes are told.
func TestDatagramsEndWithThePath(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	out, in := take(a), take(b)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(out, s, b.ID(), 1))
	b.SetMembership(members.Membership{})
	fair.Eventually(t, 5*time.Second, "the lanes are closed", func() error {
		if _, _, closed := in.snapshot(); closed == 0 {
			return errors.New("they are not")
		}
		return nil
	})
	fair.Eventually(t, 5*time.Second, "the sender knows", func() error {
		if n := out.size(b.ID()); n != 0 {
			return fmt.Errorf("datagrams of %d bytes", n)
		}
		return nil
	})
}

// Rubbish on the shared socket does not reach the lanes, and does not disturb QUIC.
func TestRubbishOnTheSharedSocket(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	out, in := take(a), take(b)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(out, s, b.ID(), 1))
	var to netip.AddrPort
	for _, addr := range b.ListenAddrs() {
		if e, ok := endpoint.Parse(addr); ok && e.UDP {
			to = e.Addr
		}
	}
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for n := range 100 {
		_, _ = c.Write(make([]byte, sealed.Overhead+n))
		_, _ = c.Write(make([]byte, n/4+1))
	}
	if err := out.put(b.ID(), []byte("true")); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, 5*time.Second, "the true one arrives", func() error {
		if got, _, _ := in.snapshot(); len(got) != 1 || string(got[0]) != "true" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	if _, err := call(a, b.ID()); err != nil {
		t.Error(err)
	}
}
