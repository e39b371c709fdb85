package packet

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// intakes is a service whose receivers are made by hand.
func intakes() *Service {
	return New(Config{Spawn: func(f func()) bool { go f(); return true }, Log: slog.New(slog.DiscardHandler)})
}

func onPath(s *Service) *sending { return sendingOn(s, &testPath{}) }

func (s *Service) begins(p peer.ID, on *sending, index uint32) *receiver {
	r := &receiver{out: on, peer: p, index: index, over: wake.NewOne(), sink: &testSink{}}
	if !s.in.add(r) {
		panic("the index is taken")
	}
	return r
}

// ended reports whether r was told to end.
func (r *receiver) ended() bool { return len(r.over) == 1 }

// A session replaces the one before it on its path; of two that are replaced, one lives on.
func TestOneSessionPerPath(t *testing.T) {
	s := intakes()
	one, other := onPath(s), onPath(s)
	a, b := s.begins("p", one, 1), s.begins("p", one, 2)
	elsewhere, foreign := s.begins("p", other, 3), s.begins("q", onPath(s), 4)
	if a.ended() || b.ended() {
		t.Error("a session ended before the one that replaces it had a chance")
	}
	c := s.begins("p", one, 5)
	if !a.ended() || b.ended() || c.ended() || elsewhere.ended() || foreign.ended() {
		t.Errorf("ended: %v %v %v, on another path %v, of another peer %v; want the first one only",
			a.ended(), b.ended(), c.ended(), elsewhere.ended(), foreign.ended())
	}
	if n := s.Refused(RefusedReplaced); n != 1 {
		t.Errorf("%d are counted", n)
	}
}

// Whatever a peer begins, on however many paths, few sessions of a kind live; the others end, the oldest first.
func TestSessionsOfAPeerAreBounded(t *testing.T) {
	s := intakes()
	begins := func(p peer.ID, index uint32, repairs bool) *receiver {
		r := &receiver{out: onPath(s), peer: p, index: index, over: wake.NewOne(), sink: &testSink{}}
		if repairs {
			r.flight = &flightPath{of: newFlightPeer(1, noLanes{}, flight.NewMemory(0))}
		}
		if !s.in.add(r) {
			t.Fatal("the index is taken")
		}
		return r
	}
	var all [2][]*receiver
	for i := range uint32(1000) {
		all[0] = append(all[0], begins("p", 2*i, false))
		if i%3 == 0 {
			all[1] = append(all[1], begins("p", 2*i+1, true))
		}
	}
	kept := begins("q", 5000, true)
	for kind, all := range all {
		for i, r := range all {
			if want := i < len(all)-maxReceivers; r.ended() != want {
				t.Fatalf("kind %d, session %d ended: %v, want %v", kind, i, r.ended(), want)
			}
		}
	}
	if kept.ended() {
		t.Error("a session of another peer ended")
	}
	for _, r := range append(append(all[0], all[1]...), kept) {
		s.in.remove(r)
	}
	if n := len(*s.in.receivers.Load()); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A peer offers a few sessions in a row; when it is done, nothing is kept of it.
func TestOffersAreBounded(t *testing.T) {
	s := intakes()
	allowed := 0
	for range 1000 {
		if s.in.mayOffer("p") {
			allowed++
		}
	}
	if allowed < offerBurst || allowed > offerBurst+10 {
		t.Errorf("%d of 1000 offers are taken, want %d", allowed, offerBurst)
	}
	if !s.in.mayOffer("q") {
		t.Error("another peer has to wait")
	}
	s.in.from("idle")
	s.in.from("another")
	if s.in.inbound["idle"] != nil || s.in.inbound["p"] == nil {
		t.Error("a peer without sessions is remembered, or one that offers too many is forgotten")
	}
}

// Each refusal has a reason of its own, and a name.
func TestRefusalsAreCounted(t *testing.T) {
	d, sealer, sink, _, _ := receiving(t, 7)
	sealedPacket := func(n int) []byte {
		b, err := sealer.Seal(nil, make([]byte, n))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	p := sealedPacket(10)
	again := slices.Clone(p)
	unknown := slices.Clone(p)
	unknown[3]++
	forged := sealedPacket(10)
	forged[len(forged)-1]++
	for _, b := range [][]byte{p, again, unknown, forged, sealedPacket(maxPacket - sealed.Overhead), sealedPacket(maxPacket - sealed.Overhead + 1)} {
		d.take(b, nil)
	}
	got := ""
	for _, r := range Reasons() {
		if n := d.in.Refused(r); n > 0 {
			got += fmt.Sprintf("%s %d ", r, n)
		}
	}
	if got != "unknown_session 1 forged 1 replayed 1 oversize 1 " || len(sink.got) != 2 {
		t.Errorf("refused: %s; %d delivered", got, len(sink.got))
	}
}
