package p2p

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
)

// What is sent to a peer that is still starting arrives when it serves the lane.
func TestEarlyLane(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := a.OpenStream(ctx, b.ID(), identity.DatagramProtocol)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Reset()
	sent := bytes.Repeat([]byte("first"), 600)
	if _, err := s.Write(sent); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // sleep: the peer starts late
	got := make(chan []byte, 1)
	b.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *paths.Stream) {
		defer s.Reset()
		all := make([]byte, len(sent))
		n, _ := io.ReadFull(s, all)
		got <- all[:n]
	})
	select {
	case all := <-got:
		if !bytes.Equal(all, sent) {
			t.Errorf("%d bytes of %d arrive", len(all), len(sent))
		}
	case <-time.After(5 * time.Second):
		t.Error("what was sent before the peer served the lane is lost")
	}
}

// A peer that is still starting is not taken for one of a former version.
func TestEarlyForwarding(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := circuitPair(t, relay)
	if a.ID() > b.ID() {
		a, b = b, a // a offers
	}
	out := take(a)
	fair.Eventually(t, 5*time.Second, "b's reservation", reserved(b, 1))
	s := circuitStream(t, a, b.ID())
	fair.Eventually(t, 10*time.Second, "why", func() error {
		const want = "in the circuit: the peer is starting, or not connected to the relay over UDP"
		_, _ = s.Write([]byte{0})
		if n, p := out.size(b.ID()), s.Path(); n != 0 || p.Datagrams != want {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	take(b)
	fair.Eventually(t, 10*time.Second, "datagrams", hasDatagrams(out, s, b.ID(), 1000))
}
