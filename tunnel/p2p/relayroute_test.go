package p2p

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

func testWay(name string, f func(*way)) way {
	w := way{l: &relayLink{info: peer.AddrInfo{ID: peer.ID(name)}}}
	f(&w)
	return w
}

func wayNames(ways []way) (names []string) {
	for _, w := range ways {
		names = append(names, string(w.l.info.ID))
	}
	return names
}

func TestRoute(t *testing.T) {
	ways := []way{
		testWay("away", func(w *way) { w.failed = true }),
		testWay("third home", func(w *way) { w.known, w.home = true, 3 }),
		testWay("second home", func(w *way) { w.known, w.home = true, 2 }),
		testWay("connected, not theirs", func(w *way) { w.known, w.connected = true, true }),
		testWay("theirs, far", func(w *way) { w.known, w.theirs, w.connected, w.cost = true, true, true, 80*time.Millisecond }),
		testWay("theirs, not connected", func(w *way) { w.known, w.theirs = true, true }),
		testWay("theirs, near", func(w *way) { w.known, w.theirs, w.connected, w.cost = true, true, true, 20*time.Millisecond }),
	}
	want := []string{"theirs, near", "theirs, far", "theirs, not connected", "connected, not theirs", "second home", "third home", "away"}
	if got := wayNames(route(ways)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := route(slices.Repeat(ways, 10)); len(got) != maxRoute {
		t.Errorf("%d relays would be tried", len(got))
	}
}

func TestBestRelay(t *testing.T) {
	const ms = time.Millisecond
	near := testWay("near", func(w *way) { w.known, w.theirs, w.cost = true, true, 20*ms })
	far := testWay("far", func(w *way) { w.known, w.mine, w.connected, w.cost = true, true, true, 60*ms })
	alike := testWay("alike", func(w *way) { w.known, w.theirs, w.cost = true, true, 19*ms })
	gone := testWay("gone", func(w *way) { w.known, w.theirs, w.failed, w.cost = true, true, true, ms })
	unknown := testWay("unknown", func(w *way) { w.theirs, w.connected = true, true })
	for _, c := range []struct {
		name          string
		ways          []way
		now           string
		first, second string
	}{
		{"nothing known", []way{unknown}, "", "", ""},
		{"the nearest", []way{far, gone, near, unknown}, "", "near", "far"},
		{"not for a millisecond", []way{alike, near}, "near", "near", "alike"},
		{"for forty", []way{far, near}, "far", "near", "far"},
		{"the one in use is gone", []way{far, gone}, "gone", "far", ""},
	} {
		first, second := best(c.ways, peer.ID(c.now))
		name := func(w *way) string {
			if w == nil {
				return ""
			}
			return string(w.l.info.ID)
		}
		if name(first) != c.first || name(second) != c.second {
			t.Errorf("%s: %q and %q, want %q and %q", c.name, name(first), name(second), c.first, c.second)
		}
	}
}

func TestRace(t *testing.T) {
	spawn := func(f func()) bool { go f(); return true }
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	var ended atomic.Int32
	start := time.Now()
	err := race(t.Context(), spawn, 3, 10*time.Millisecond, func(ctx context.Context, i int) error {
		defer ended.Add(1)
		if i == 2 {
			return nil
		}
		return hang(ctx)
	})
	if err != nil || ended.Load() != 3 {
		t.Errorf("%v, %d ended: want the third to win and the others to be over", err, ended.Load())
	}
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("the third began after %v", took)
	}
	err = race(t.Context(), spawn, 3, time.Hour, func(_ context.Context, i int) error { return errors.New(string(rune('a' + i))) })
	if err == nil || err.Error() != "a; b; c" {
		t.Errorf("%v, want all causes, without waiting", err)
	}
	if err := race(t.Context(), spawn, 0, time.Hour, nil); err != nil {
		t.Errorf("nothing to try: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := race(ctx, spawn, 1, time.Hour, func(ctx context.Context, _ int) error { return hang(ctx) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := race(t.Context(), func(func()) bool { return false }, 1, 0, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// What a peer tells makes this node dial nothing, and cannot grow.
func TestParseNews(t *testing.T) {
	one, two := idOf(t, newKey(t)), idOf(t, newKey(t))
	known := func(p peer.ID) bool { return p == one }
	line := func(id peer.ID, ms float64) relayLine { return relayLine{ID: id.String(), Ms: ms, Held: true} }
	b, err := json.Marshal(relayNews{Relays: []relayLine{line(one, 12.5), line(two, 1), {ID: "rubbish"}}})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := parseNews(b, known)
	if !ok || len(got.held) != 1 || !got.held[one] || got.rtt[one] != 12500*time.Microsecond {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, ms := range []float64{-1, 0, 1e300} {
		b, _ := json.Marshal(relayNews{Relays: []relayLine{line(one, ms)}})
		if got, ok := parseNews(b, known); !ok || got.rtt[one] != 0 {
			t.Errorf("distance %v: %+v, %t", ms, got, ok)
		}
	}
	many, _ := json.Marshal(relayNews{Relays: slices.Repeat([]relayLine{line(one, 1)}, maxTold+1)})
	for _, bad := range []string{"", "[]", `{"relays":`, strings.Repeat("x", 100), string(many)} {
		if _, ok := parseNews([]byte(bad), known); ok {
			t.Errorf("%.40q is taken", bad)
		}
	}
}

func FuzzParseNews(f *testing.F) {
	f.Add([]byte(`{"relays":[{"id":"12D3KooWCHicWtBzdrK1QoJGgR8RJTkn5HYdQghawBrdfZ4D8mSf","ms":1.5,"held":true}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parseNews(b, func(peer.ID) bool { return true })
		if !ok {
			return
		}
		if len(got.held) > maxTold {
			t.Errorf("%d relays", len(got.held))
		}
		for _, d := range got.rtt {
			if d < 0 || d > maxToldRTT {
				t.Errorf("distance %v", d)
			}
		}
	})
}

// Peers learn of each other's relays, also of those that come later.
func TestRelaysAreTold(t *testing.T) {
	_, one := loopbackRelay(t)
	_, two := loopbackRelay(t)
	a, b, m := reservedPair(t, one)
	if _, err := call(a, b.ID()); err != nil {
		t.Fatal(err)
	}
	knows := func(n, other *Node, relays ...peer.AddrInfo) func() error {
		return func() error {
			for _, w := range n.relays.ways(other.ID()) {
				for _, r := range relays {
					if w.l.info.ID == r.ID && (!w.theirs || w.cost == 0) {
						return errors.New(r.ID.String() + " is not known as the peer's")
					}
				}
			}
			return nil
		}
	}
	eventually(t, 5*time.Second, "a knows", knows(a, b, one))
	eventually(t, 5*time.Second, "b knows", knows(b, a, one))
	m.Relays = append(m.Relays, two)
	a.SetMembership(m)
	b.SetMembership(m)
	eventually(t, 5*time.Second, "a knows more", knows(a, b, one, two))
	eventually(t, 5*time.Second, "b knows more", knows(b, a, one, two))
}
