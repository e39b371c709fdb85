package p2p

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// A stream stays on its path and ends in order, or with its path.
func TestStreamEnds(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, m := reservedPair(t, relay)
	got, began := make(chan error, 1), make(chan struct{}, 8)
	b.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *paths.Stream) {
		began <- struct{}{}
		n, err := io.Copy(io.Discard, struct{ io.Reader }{s})
		if err == nil && n != 1<<20 {
			err = fmt.Errorf("%d bytes", n)
		}
		select {
		case got <- err:
		case <-t.Context().Done(): // a stream that OpenStream gave up for another one
		}
		s.Reset()
	})
	open := func() *paths.Stream {
		t.Helper()
		ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s, err := a.OpenStream(ctx, b.ID(), identity.DatagramProtocol)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if _, err := s.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("stream that was closed: %v", err)
	}
	<-began
	s = open()
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	<-began
	s.Reset()
	if err := <-got; err == nil {
		t.Error("stream that was reset was read to its end")
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a stream that was reset can be written")
	}
	// Removing the member ends its streams and connections on both sides.
	s = open()
	if _, err := s.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	<-began
	start := time.Now()
	without := m
	without.Members = m.Members[:1]
	a.SetMembership(without)
	if err := <-got; err == nil {
		t.Error("the removed member's stream was read to its end")
	}
	fair.Eventually(t, 2*time.Second, "disconnected", func() error {
		if n := len(a.h.Network().ConnsToPeer(b.ID())) + len(b.h.Network().ConnsToPeer(a.ID())); n > 0 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	t.Logf("cut off after %v", time.Since(start))
	if _, err := call(a, b.ID()); !errors.Is(err, members.ErrNotMember) {
		t.Errorf("call to a removed member: %v, want members.ErrNotMember", err)
	}
	refuses(t, b, a.ID())
	a.SetMembership(m)
	fair.Eventually(t, 5*time.Second, "member again", func() error { _, err := call(b, a.ID()); return err })
}

// Both sides open streams at the same time, before there is any connection.
func TestBothTogether(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	var wg sync.WaitGroup
	for range 20 {
		for _, x := range []struct{ n, to *Node }{{a, b}, {b, a}} {
			wg.Go(func() {
				if _, err := call(x.n, x.to.ID()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, x := range []struct{ n, to *Node }{{a, b}, {b, a}} {
		fair.Eventually(t, 10*time.Second, "direct", onPath(x.n, x.to.ID(), paths.KindDirect, "tcp"))
	}
}

// A peer that is there and does not speak a protocol, because its agent has only begun
// to start, is not dialed again for that: a round of dialing may take seconds.
func TestPeerThatHasYetToStart(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, 10*time.Second, "direct", onPath(a, b.ID(), paths.KindDirect, "tcp"))
	rounds := func() int {
		st, _ := a.PeerStatus(b.ID())
		return st.Rounds
	}
	before := rounds()
	const later = "/edgemesh/later/1"
	ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := a.OpenStream(ctx, b.ID(), later)
	if none := (mss.ErrNotSupported[protocol.ID]{}); !errors.Is(err, ErrUnreachable) || !errors.As(err, &none) {
		t.Errorf("error %v, want that the protocol is not supported", err)
	}
	if now := rounds(); now != before {
		t.Errorf("%d rounds of dialing for it", now-before)
	}
	b.SetStreamHandler(later, func(_ peer.ID, s *paths.Stream) { _, _ = io.Copy(io.Discard, s) })
	s, err := a.OpenStream(ctx, b.ID(), later)
	if err != nil {
		t.Fatalf("as soon as it speaks it: %v", err)
	}
	s.Reset()
}
