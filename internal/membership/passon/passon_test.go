package passon

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/signed"
)

// One member has one exchange in each direction at a time, however long it takes: the places are for all.
func TestOneExchangePerMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{})
		turn := func(id peer.ID, theirs bool) bool {
			_, end := p.turn(t.Context(), 0, id, theirs)
			return end != nil
		}
		for _, theirs := range []bool{true, false} {
			if !turn("slow", theirs) {
				t.Fatal("no first exchange")
			}
			time.Sleep(10 * passEvery)
			p.forget(nil) // it runs on, whether the member is connected or not
			if turn("slow", theirs) {
				t.Errorf("a second exchange beside the first one, begun by the member: %v", theirs)
			}
			if !turn("other", theirs) {
				t.Error("another member waits for it")
			}
		}
		p.note("slow", true, 1, signed.Count{}, false)
		time.Sleep(passRest)
		if !turn("slow", true) || turn("slow", false) {
			t.Error("the end of one direction counts for the other")
		}
		// What comes for nothing counts for the rate.
		p.note("slow", true, 1, signed.Count{Useless: 100 * passRate}, true)
		time.Sleep(50 * time.Second)
		if turn("slow", true) {
			t.Error("a member that sends what is useless is heard again too soon")
		}
	})
}

// Whether a connected member has all statements is known once an exchange ended well; one that takes none is no laggard.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{})
		behind := func(want time.Duration, knows bool) {
			t.Helper()
			since, _, _, known := p.Behind("relay")
			if got := time.Since(since); known != knows || !since.IsZero() && got != want || since.IsZero() != (want == 0) {
				t.Errorf("behind for %v, known %v", got, known)
			}
		}
		behind(0, false)
		p.turn(t.Context(), 1, "relay", false)
		time.Sleep(time.Second)
		behind(time.Second, true)
		p.note("relay", false, 1, signed.Count{Whole: true}, true)
		p.turn(t.Context(), 1, "relay", false)
		behind(0, true)
		p.turn(t.Context(), 2, "relay", false)
		time.Sleep(time.Minute)
		behind(time.Minute, true)
		lacks := func(want ...string) {
			t.Helper()
			time.Sleep(passRest)
			_, end := p.turn(t.Context(), 2, "relay", false)
			if _, n, some, _ := p.Behind("relay"); n != len(want) || !slices.Equal(some, want) || (end == nil) != (want != nil) {
				t.Errorf("it lacks %q, want %q; another exchange: %v", some, want, end != nil)
			}
		}
		ends := func(lacked ...string) {
			p.note("relay", false, 2, signed.Count{Whole: true, Lacked: len(lacked), Some: lacked}, true)
		}
		p.note("relay", false, 2, signed.Count{Lacked: 2, Some: []string{"n1", "n2"}}, false) // it may not have been sent them
		lacks()
		ends("n1", "n2") // it was sent both, and may take them
		lacks()
		ends("n2")
		lacks()
		ends("n2")
		lacks("n2")
		behind(time.Minute+4*passRest, true)
		p.turn(t.Context(), 3, "relay", false) // something is signed, and it takes what it refused
		p.note("relay", false, 3, signed.Count{Whole: true}, true)
		p.turn(t.Context(), 3, "relay", false)
		behind(0, true)
		time.Sleep(passEvery)
		p.turn(t.Context(), 4, "relay", false)
		time.Sleep(time.Minute)
		p.missed("relay", true)
		behind(time.Minute, false)
		p.forget(nil)
		behind(0, false)
	})
}

// Members whose exchanges never end keep the others waiting for passFair.
func TestSlowMembersGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, theirs := range []bool{true, false} {
			p := New(Config{})
			first, _ := p.turn(t.Context(), 0, "0", theirs)
			for _, id := range []peer.ID{"1", "2", "3", "4", "5", "6", "7"} {
				p.turn(t.Context(), 0, id, theirs)
			}
			if _, end := p.turn(t.Context(), 0, "ninth", theirs); end != nil {
				t.Error("nine at a time")
			}
			time.Sleep(passFair)
			if _, end := p.turn(t.Context(), 0, "ninth", theirs); end == nil || first.Err() == nil || len(p.now[theirs]) != passTogether {
				t.Errorf("it waits, begun by the member: %v", theirs)
			}
			p.note("0", theirs, 1, signed.Count{}, false)
			p.note("1", theirs, 1, signed.Count{}, false)
			if len(p.now[theirs]) != passTogether-1 {
				t.Errorf("%d run", len(p.now[theirs]))
			}
		}
	})
}
