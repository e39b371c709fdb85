package p2p

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/net/ipv4"

	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/members"
	"edgemesh/tunnel/p2p/sealed"
)

// collector is a sink that keeps what it gets.
type collector struct {
	mu     sync.Mutex
	got    [][]byte
	flush  int
	closed int
}

func (c *collector) Datagram(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, bytes.Clone(b))
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

// take makes n keep the datagrams of all its peers.
func take(n *Node) *collector {
	c := &collector{}
	n.SetDatagramHandler(func(peer.ID) DatagramSink { return c })
	n.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *Stream) {
		_, _ = s.Read(make([]byte, 1))
		s.Reset()
	})
	return c
}

// datagramStream opens a stream for the datagram lane once it runs over QUIC.
func datagramStream(t *testing.T, from *Node, to peer.ID) *Stream {
	t.Helper()
	var s *Stream
	eventually(t, 15*time.Second, "a stream of the datagram lane over QUIC", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
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

func hasDatagrams(s *Stream, least int) func() error {
	return func() error {
		if n := s.DatagramSize(); n < least {
			return fmt.Errorf("datagrams of %d bytes, want %d", n, least)
		}
		return nil
	}
}

// A peer that is starting takes datagrams a moment later; one that never does is not
// bothered.
func TestOfferPauses(t *testing.T) {
	pause, at, soon := time.Duration(0), time.Duration(0), 0
	for range 20 {
		pause = offerPause(pause, time.Millisecond)
		if at += pause; at <= time.Second {
			soon++
		}
	}
	if soon < 3 || pause != lastPause {
		t.Errorf("%d offers in the first second, at last one every %v", soon, pause)
	}
	if p := offerPause(pause, time.Hour); p != firstPause {
		t.Errorf("%v after a session of an hour", p)
	}
}

func TestDatagrams(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	take(a)
	in := take(b)
	eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	// The loopback takes jumbo frames, so the largest is found.
	eventually(t, 10*time.Second, "datagrams", hasDatagrams(s, 8900))

	var want [][]byte
	size := s.DatagramSize()
	for i, n := range []int{1, 5, 5, 5, 5, 4, 700, 700, 1200, 1200, 300, size, size, size - 1, 2} {
		b := bytes.Repeat([]byte{byte(i)}, n)
		want = append(want, b)
		if err := s.PutDatagram(b); err != nil {
			t.Fatalf("put %d bytes: %v", n, err)
		}
	}
	if err := s.FlushDatagrams(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "all arrive", func() error {
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
	if err := s.PutDatagram(make([]byte, size+1)); err != ErrNoDatagrams { //nolint:errorlint // it is not wrapped
		t.Errorf("one byte too many: %v", err)
	}
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind != KindDirect {
		t.Errorf("path %+v", st.Path)
	}
	var sent uint64
	a.peers.mu.Lock()
	for _, p := range a.peers.m[b.ID()].paths {
		sent += p.tx.Load()
	}
	a.peers.mu.Unlock()
	if sent < uint64(3*size) {
		t.Errorf("%d bytes are counted as sent", sent)
	}
}

// A peer that knows no datagrams, as one of a former version, is spoken to by
// streams; when it learns of them they are used.
func TestPeerWithoutDatagrams(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	take(a)
	b.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *Stream) {
		_, _ = s.Read(make([]byte, 1))
		s.Reset()
	})
	eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	if _, err := s.Write([]byte("x")); err != nil {
		t.Errorf("stream: %v", err)
	}
	if n := s.DatagramSize(); n != 0 {
		t.Errorf("datagrams of %d bytes", n)
	}
	if err := s.PutDatagram([]byte("x")); err != ErrNoDatagrams { //nolint:errorlint // it is not wrapped
		t.Errorf("put: %v", err)
	}
	in := take(b)
	s2 := datagramStream(t, a, b.ID())
	eventually(t, 20*time.Second, "datagrams", hasDatagrams(s2, 1))
	if err := s2.PutDatagram([]byte("x")); err != nil {
		t.Error(err)
	}
	if err := s2.FlushDatagrams(); err != nil {
		t.Error(err)
	}
	eventually(t, 5*time.Second, "it arrives", func() error {
		if got, _, _ := in.snapshot(); len(got) != 1 {
			return fmt.Errorf("%d", len(got))
		}
		return nil
	})
}

// With the path both ends of its datagrams are over, and the sink is told.
func TestDatagramsEndWithThePath(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	take(a)
	in := take(b)
	eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	eventually(t, 10*time.Second, "datagrams", hasDatagrams(s, 1))
	b.SetMembership(members.Membership{})
	eventually(t, 5*time.Second, "the sink is closed and nothing is taken any more", func() error {
		_, _, closed := in.snapshot()
		if n := len(*b.datagrams.in.Load()); closed == 0 || n != 0 {
			return fmt.Errorf("closed %d, %d sessions", closed, n)
		}
		return nil
	})
	eventually(t, 5*time.Second, "the sender knows", func() error {
		if n := s.DatagramSize(); n != 0 {
			return fmt.Errorf("datagrams of %d bytes", n)
		}
		return nil
	})
}

// What nobody sealed does not reach the sink, and does not disturb QUIC.
func TestForgedDatagrams(t *testing.T) {
	_, relay := loopbackRelay(t)
	a, b, _ := pair(t, relay)
	take(a)
	in := take(b)
	eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	eventually(t, 10*time.Second, "datagrams", hasDatagrams(s, 1))
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
	for index := range *b.datagrams.in.Load() {
		for n := range 100 {
			p := make([]byte, sealed.Overhead+n)
			p[0], p[1], p[2], p[3] = byte(index>>24), byte(index>>16), byte(index>>8), byte(index)
			_, _ = c.Write(p)
			_, _ = c.Write(p[:n/4])
		}
	}
	if err := s.PutDatagram([]byte("true")); err != nil {
		t.Fatal(err)
	}
	if err := s.FlushDatagrams(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the true one arrives", func() error {
		if got, _, _ := in.snapshot(); len(got) != 1 || string(got[0]) != "true" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	if _, err := call(a, b.ID()); err != nil {
		t.Error(err)
	}
}

// counter is a taker.
type counter struct {
	got  [][]byte
	ends int
}

func (c *counter) take(b []byte) { c.got = append(c.got, bytes.Clone(b)) }
func (c *counter) taken()        { c.ends++ }

// A train of both sorts is taken apart, whether or not the kernel joined it.
func TestSharedSocket(t *testing.T) {
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	gone := false
	k := &counter{}
	s, err := newUDPSocket(l, k, func() { gone = true })
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUDP("udp4", nil, l.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var train []byte
	for i := range 20 {
		p := bytes.Repeat([]byte{byte(i)}, 100)
		if i%3 == 0 {
			p[0] = 0x40
		}
		train = append(train, p[:100-i/19*50]...) // the last one is shorter
	}
	if _, _, err := c.WriteMsgUDP(train, segmentControl(nil, 100), nil); err != nil {
		t.Fatal(err)
	}
	ms := make([]ipv4.Message, 4)
	for i := range ms {
		ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 1452)}, make([]byte, 128)
	}
	var quics []int
	for len(quics) < 7 {
		n, err := s.ReadBatch(ms, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms[:n] {
			if from, ok := m.Addr.(*net.UDPAddr); !ok || from.Port != c.LocalAddr().(*net.UDPAddr).Port || m.N != 100 {
				t.Errorf("%d bytes from %v", m.N, m.Addr)
			}
			quics = append(quics, int(m.Buffers[0][1]))
		}
	}
	if fmt.Sprint(quics) != "[0 3 6 9 12 15 18]" {
		t.Errorf("QUIC gets packets %v", quics)
	}
	_, _ = c.Write([]byte{0x40})
	if n, err := s.ReadBatch(ms, 0); n != 1 || err != nil || ms[0].N != 1 {
		t.Errorf("a single packet: %d, %v, %d bytes", n, err, ms[0].N)
	}
	if len(k.got) != 13 || len(k.got[12]) != 50 || k.got[12][0] != 19 || k.ends == 0 {
		t.Errorf("%d others, %d ends", len(k.got), k.ends)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := s.ReadBatch(ms, 0)
		ended <- err
	}()
	s.Close()
	if err := <-ended; err == nil || !gone {
		t.Errorf("after Close: %v, told %v", err, gone)
	}
}
