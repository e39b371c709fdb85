package choice

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// relayNames in the order of their weight as homes of "node".
func relayNames(n int) []peer.ID {
	var all []peer.ID
	for i := range n {
		all = append(all, peer.ID(fmt.Sprintf("relay-%d", i)))
	}
	return Homes("node", all)
}

func TestReservations(t *testing.T) {
	h := relayNames(5) // h[0] is home
	const ms = time.Millisecond
	failed := func(i int) Relay { return Relay{ID: h[i], Failed: true} }
	away := func(i int, rtt time.Duration) Relay { return Relay{ID: h[i], RTT: rtt} }
	held := func(i int, rtt time.Duration) Relay { return Relay{ID: h[i], RTT: rtt, Reserved: true} }
	const unknown = 0 // round trip
	for _, c := range []struct {
		name string
		all  []Relay
		want []peer.ID
	}{
		{"none", nil, nil},
		{
			"as many as are held at most",
			[]Relay{failed(2), away(1, unknown), away(0, unknown)},
			[]peer.ID{h[2], h[1], h[0]},
		},
		{
			"nothing known: home and the first ones",
			[]Relay{away(4, unknown), away(3, unknown), away(2, unknown), away(0, unknown)},
			[]peer.ID{h[0], h[4], h[3]},
		},
		{
			"home and the nearest",
			[]Relay{away(0, 90*ms), away(1, 50*ms), away(2, 10*ms), away(3, 20*ms), away(4, unknown)},
			[]peer.ID{h[0], h[2], h[3]},
		},
		{
			"home has failed: the next home",
			[]Relay{failed(0), away(1, 90*ms), away(2, 10*ms), away(3, 20*ms), away(4, 30*ms)},
			[]peer.ID{h[1], h[2], h[3]},
		},
		{
			"a little nearer is not enough",
			[]Relay{held(0, 9*ms), held(1, 40*ms), held(2, 30*ms), away(3, 29*ms)},
			[]peer.ID{h[0], h[2], h[1]},
		},
		{
			"much nearer is",
			[]Relay{held(0, 9*ms), held(1, 40*ms), held(2, 30*ms), away(3, 25*ms)},
			[]peer.ID{h[0], h[2], h[3]},
		},
		{
			"all have failed: homes",
			[]Relay{failed(4), failed(3), failed(2), failed(0)},
			[]peer.ID{h[0], h[2], h[3]},
		},
	} {
		if got := Reservations("node", c.all); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Where relays are many, crowded ones take no more, as long as there are others.
func TestCrowded(t *testing.T) {
	h := relayNames(ManyRelays) // h[0] is home
	const ms = time.Millisecond
	make := func(change func(all []Relay)) []Relay {
		var all []Relay
		for i, id := range h {
			all = append(all, Relay{ID: id, RTT: time.Duration(10+40*(i/3)) * ms}) // 1 and 2 are near, then 3 to 5
		}
		change(all)
		return all
	}
	for _, c := range []struct {
		name string
		all  []Relay
		want []peer.ID
	}{
		{"none is", make(func([]Relay) {}), []peer.ID{h[0], h[1]}},
		{"one is", make(func(all []Relay) { all[1].Crowded = true }), []peer.ID{h[0], h[2]}},
		{"the one just chosen", make(func(all []Relay) { all[1].Crowded, all[1].Reserved = true, true }), []peer.ID{h[0], h[2]}},
		{"home", make(func(all []Relay) { all[0].Crowded = true }), []peer.ID{h[0], h[1]}},
		{"the near ones", make(func(all []Relay) { all[1].Crowded, all[2].Crowded = true, true }), []peer.ID{h[0], h[3]}},
		{"near ones no longer", make(func(all []Relay) { all[1].Crowded, all[3].Reserved = true, true }), []peer.ID{h[0], h[2]}},
		{"all", make(func(all []Relay) {
			for i := range all {
				all[i].Crowded = true
			}
		}), []peer.ID{h[0], h[1]}},
	} {
		if got := Reservations("node", c.all); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	for _, c := range [][3]int{{100_000, 24, 9584}, {100_000, ManyRelays - 1, 0}, {50, 24, leastCrowded}, {1000, 9, 256}} {
		if got := Share(c[0], c[1]); got != c[2] {
			t.Errorf("share of one of %d relays with %d members: %d, want %d", c[1], c[0], got, c[2])
		}
	}
}

// Everybody works out the same homes, and the loss of a relay moves only those
// whose home it was.
func TestHomes(t *testing.T) {
	all := relayNames(4)
	count := make(map[peer.ID]int)
	for i := range 1000 {
		p := peer.ID(fmt.Sprintf("node-%d", i))
		home := Homes(p, all)
		count[home[0]]++
		shuffled := []peer.ID{all[2], all[0], all[3], all[1]}
		if !slices.Equal(Homes(p, shuffled), home) {
			t.Fatalf("homes of %s depend on the order of the membership", p)
		}
		if left := Homes(p, all[1:]); home[0] != all[0] && left[0] != home[0] {
			t.Fatalf("%s moved although its home is there", p)
		}
	}
	for r, n := range count {
		if n < 150 || n > 350 {
			t.Errorf("%s is home of %d of 1000", r, n)
		}
	}
}

func TestPause(t *testing.T) {
	for _, c := range []struct {
		away  time.Duration
		alone bool
		want  time.Duration
	}{
		{0, true, Backoff}, {10 * time.Second, false, Backoff}, {time.Minute, false, 7500 * time.Millisecond},
		{time.Hour, false, time.Minute}, {time.Hour, true, 10 * time.Second},
	} {
		if got := Pause(c.away, c.alone); got != c.want {
			t.Errorf("away for %v, alone %t: %v, want %v", c.away, c.alone, got, c.want)
		}
	}
}

// Attempts become rarer with the time that a relay is missing, and begin over when it was there again.
func TestPace(t *testing.T) {
	var p Pace
	now := time.Unix(0, 0)
	for i, want := range []time.Duration{Shortest, 2 * Shortest, 4 * Shortest, Backoff, Backoff, Backoff} {
		if got := p.Ended(now, false, true); got != want {
			t.Errorf("after attempt %d: %v, want %v", i+1, got, want)
		}
		now = now.Add(time.Second)
	}
	for range 10 {
		now = now.Add(time.Hour)
		p.Ended(now, false, false)
	}
	if got := p.Ended(now, false, false); got != time.Minute {
		t.Errorf("after hours: %v", got)
	}
	if got := p.Ended(now, true, false); got != Shortest {
		t.Errorf("lost again: %v", got)
	}
}

// A clock that jumps makes no pause longer than a minute, nor shorter than the first one.
func TestPaceWhenTheClockJumps(t *testing.T) {
	const year = 365 * 24 * time.Hour
	var p Pace
	now := time.Unix(1_700_000_000, 0)
	for _, jump := range []time.Duration{0, 40 * year, -80 * year, time.Hour, -time.Hour, 40 * year} {
		for range 20 {
			now = now.Add(jump + time.Second)
			jump = 0
			if d := p.Ended(now, false, false); d < Shortest || d > time.Minute {
				t.Fatalf("at %v: a pause of %v", now, d)
			}
		}
	}
}
