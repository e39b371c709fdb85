package p2p

import (
	"bytes"
	"errors"
	"fmt"
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
	n.SetDatagramHandler(func(peer.ID) packet.Sink { return c })
	n.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *paths.Stream) {
		_, _ = s.Read(make([]byte, 1))
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

func hasDatagrams(s *paths.Stream, least int) func() error {
	return func() error {
		if n := s.DatagramSize(); n < least {
			return fmt.Errorf("datagrams of %d bytes, want %d", n, least)
		}
		return nil
	}
}

func TestDatagrams(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	take(a)
	in := take(b)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	// The loopback takes jumbo frames, so the largest is found.
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(s, 8900))

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
	if err := s.PutDatagram(make([]byte, size+1)); err != packet.ErrNoDatagrams { //nolint:errorlint // it is not wrapped
		t.Errorf("one byte too many: %v", err)
	}
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

// A peer that knows no datagrams, as one of a former version, is spoken to by
// streams; when it learns of them they are used.
func TestPeerWithoutDatagrams(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	take(a)
	b.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *paths.Stream) {
		_, _ = s.Read(make([]byte, 1))
		s.Reset()
	})
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	if _, err := s.Write([]byte("x")); err != nil {
		t.Errorf("stream: %v", err)
	}
	if n := s.DatagramSize(); n != 0 {
		t.Errorf("datagrams of %d bytes", n)
	}
	if err := s.PutDatagram([]byte("x")); err != packet.ErrNoDatagrams { //nolint:errorlint // it is not wrapped
		t.Errorf("put: %v", err)
	}
	in := take(b)
	s2 := datagramStream(t, a, b.ID())
	fair.Eventually(t, 20*time.Second, "datagrams", hasDatagrams(s2, 1))
	if err := s2.PutDatagram([]byte("x")); err != nil {
		t.Error(err)
	}
	if err := s2.FlushDatagrams(); err != nil {
		t.Error(err)
	}
	fair.Eventually(t, 5*time.Second, "it arrives", func() error {
		if got, _, _ := in.snapshot(); len(got) != 1 {
			return fmt.Errorf("%d", len(got))
		}
		return nil
	})
}

// With the path both ends of its datagrams are over, and the sink is told.
func TestDatagramsEndWithThePath(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	take(a)
	in := take(b)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(s, 1))
	b.SetMembership(members.Membership{})
	fair.Eventually(t, 5*time.Second, "the sink is closed", func() error {
		if _, _, closed := in.snapshot(); closed == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	fair.Eventually(t, 5*time.Second, "the sender knows", func() error {
		if n := s.DatagramSize(); n != 0 {
			return fmt.Errorf("datagrams of %d bytes", n)
		}
		return nil
	})
}

// Rubbish on the shared socket does not reach the sink, and does not disturb QUIC.
func TestRubbishOnTheSharedSocket(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := pair(t, relay)
	take(a)
	in := take(b)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := datagramStream(t, a, b.ID())
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(s, 1))
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
	if err := s.PutDatagram([]byte("true")); err != nil {
		t.Fatal(err)
	}
	if err := s.FlushDatagrams(); err != nil {
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
