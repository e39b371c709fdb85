package p2p

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/fair"
	"edgemesh/test/relaytest"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/p2p/who/identity"
)

// The owner of the streams says when to disconnect: all paths end as one event, and
// the peer is not reached again before it is wanted.
func TestDisconnect(t *testing.T) {
	_, relay := relaytest.Loopback(t)
	a, b, _ := reservedPair(t, relay)
	b.SetStreamHandler(identity.DatagramProtocol, func(_ peer.ID, s *paths.Stream) {
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{s})
		s.Reset()
	})
	var events eventLog
	a.SetNotify(events.add)
	path, err := call(a, b.ID())
	if err != nil {
		t.Fatalf("call over %+v: %v", path, err)
	}
	fair.Eventually(t, 10*time.Second, "three paths", func() error {
		if st, _ := a.PeerStatus(b.ID()); len(st.All) < 3 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	ctx, cancel := fair.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := a.OpenStream(ctx, b.ID(), echoProto)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("x")); err != nil { // the stream is negotiated with its first data
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.OpenStream(ctx, b.ID(), identity.DatagramProtocol); err != nil { // on QUIC
		t.Fatal(err)
	}
	// The last use is long ago, at both ends: one that was used a moment ago
	// would have the paths it sees closed one by one replaced.
	age := func() {
		for n, to := range map[*Node]*Node{a: b, b: a} {
			hop(n, to.ID(), 10*time.Minute)
		}
	}
	a.Disconnect(b.ID())
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind == paths.KindNone {
		t.Error("disconnected although it was used a moment ago")
	}
	// A path with a stream on it stays.
	for range 4 {
		age()
		time.Sleep(ladder.ProbeBusy) // sleep: it stays meanwhile
	}
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind == paths.KindNone {
		t.Error("disconnected although a stream is open")
	}
	age()
	events.mu.Lock()
	before := len(events.got)
	events.mu.Unlock()
	a.Disconnect(b.ID())
	if st, _ := a.PeerStatus(b.ID()); st.Path.Kind != paths.KindNone || st.Wanted || len(st.All) > 0 {
		t.Errorf("status %+v, want no path and not wanted", st)
	}
	if !s.Lost() {
		t.Error("a stream of a peer that was disconnected is not lost")
	}
	for _, n := range []*Node{a, b} {
		fair.Eventually(t, 5*time.Second, "disconnected", func() error {
			if c := n.h.Network().ConnsToPeer(map[*Node]*Node{a: b, b: a}[n].ID()); len(c) > 0 {
				return fmt.Errorf("%v", c)
			}
			return nil
		})
	}
	if _, err := call(a, b.ID()); err != nil {
		t.Errorf("call after that: %v", err)
	}
	events.mu.Lock()
	defer events.mu.Unlock()
	var ends []string
	for _, e := range events.got[before:] {
		if !strings.HasPrefix(e, peers.PathChanged.String()) {
			ends = append(ends, e)
		}
	}
	if len(ends) != 1 || ends[0] != "unused path closed: none " {
		t.Errorf("events %q, want one end, to no path, and no loss", ends)
	}
}
