package packet

import (
	"fmt"
	"slices"
	"testing"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/carrier/sealed"
)

func begins(f *Flight, index uint32) *flightPath {
	x, ok := newTestPath(f, index, noLanes{})
	if !ok {
		panic("the index is taken")
	}
	return x
}

// ended reports whether x was told to end.
func (x *flightPath) ended() bool { return len(x.over) == 1 }

// A path replaces the one before it on its connection; of two that are replaced, one lives on.
func TestOnePathPerConnection(t *testing.T) {
	s := testService()
	beside := func(p peer.ID) *Flight { return testFlight(s, p, &testPath{}) }
	one, other := beside("p"), beside("p")
	a, b := begins(one, 1), begins(one, 2)
	elsewhere, foreign := begins(other, 3), begins(beside("q"), 4)
	if a.ended() || b.ended() {
		t.Error("a path ended before the one that replaces it had a chance")
	}
	c := begins(one, 5)
	if !a.ended() || b.ended() || c.ended() || elsewhere.ended() || foreign.ended() {
		t.Errorf("ended: %v %v %v, beside another connection %v, of another peer %v; want the first one only",
			a.ended(), b.ended(), c.ended(), elsewhere.ended(), foreign.ended())
	}
	if n := s.Refused(RefusedReplaced); n != 1 {
		t.Errorf("%d are counted", n)
	}
}

// Whatever a peer offers, on however many connections, few paths live; the others end, the oldest first.
func TestPathsOfAPeerAreBounded(t *testing.T) {
	s := testService()
	var all []*flightPath
	for i := range uint32(1000) {
		all = append(all, begins(testFlight(s, "p", &testPath{}), i))
	}
	kept := begins(testFlight(s, "q", &testPath{}), 5000)
	for i, x := range all {
		if want := i < len(all)-maxPaths; x.ended() != want {
			t.Fatalf("path %d ended: %v, want %v", i, x.ended(), want)
		}
	}
	if kept.ended() {
		t.Error("a path of another peer ended")
	}
	for _, x := range append(all, kept) {
		x.end()
	}
	if n := len(*s.in.paths.Load()); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A peer offers a few paths in a row; when it is done, nothing is kept of it.
func TestOffersAreBounded(t *testing.T) {
	s := testService()
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
		t.Error("a peer without paths is remembered, or one that offers too many is forgotten")
	}
}

// Each refusal has a reason of its own, and a name.
func TestRefusalsAreCounted(t *testing.T) {
	d, sealer, lanes, _, _ := receiving(t, 7)
	sealedPacket := func(n int) []byte {
		b, err := sealer.Seal(nil, datagram(make([]byte, n-3)))
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
		d.take(b, testFrom())
	}
	got := ""
	for _, r := range Reasons() {
		if n := d.in.Refused(r); n > 0 {
			got += fmt.Sprintf("%s %d ", r, n)
		}
	}
	if got != "unknown_session 1 forged 1 oversize 1 " || len(lanes.got) != 2 {
		t.Errorf("refused: %s; %d delivered", got, len(lanes.got))
	}
}
