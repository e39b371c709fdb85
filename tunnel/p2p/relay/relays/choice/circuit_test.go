package choice

import (
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

func names(all []Candidate) (names []string) {
	for _, c := range all {
		names = append(names, string(c.Relay))
	}
	return names
}

func TestRank(t *testing.T) {
	all := []Candidate{
		{Relay: "away", Failed: true},
		{Relay: "third home", Known: true, Home: 3},
		{Relay: "second home", Known: true, Home: 2},
		{Relay: "connected, not theirs", Known: true, Connected: true},
		{Relay: "theirs, far", Known: true, Theirs: true, Connected: true, Cost: 80 * time.Millisecond},
		{Relay: "theirs, not connected", Known: true, Theirs: true},
		{Relay: "theirs, near", Known: true, Theirs: true, Connected: true, Cost: 20 * time.Millisecond},
	}
	want := []string{"theirs, near", "theirs, far", "theirs, not connected", "connected, not theirs", "second home", "third home", "away"}
	if got := names(Rank(all)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Rank(slices.Repeat(all, 10)); len(got) != MaxTried {
		t.Errorf("%d relays would be tried", len(got))
	}
}

func TestBest(t *testing.T) {
	const ms = time.Millisecond
	near := Candidate{Relay: "near", Known: true, Theirs: true, Cost: 20 * ms}
	far := Candidate{Relay: "far", Known: true, Mine: true, Connected: true, Cost: 60 * ms}
	similar := Candidate{Relay: "similar", Known: true, Theirs: true, Cost: 19 * ms}
	gone := Candidate{Relay: "gone", Known: true, Theirs: true, Failed: true, Cost: ms}
	unknown := Candidate{Relay: "unknown", Theirs: true, Connected: true}
	for _, c := range []struct {
		name          string
		all           []Candidate
		now           string
		first, second string
	}{
		{"nothing known", []Candidate{unknown}, "", "", ""},
		{"the nearest", []Candidate{far, gone, near, unknown}, "", "near", "far"},
		{"not for a millisecond", []Candidate{similar, near}, "near", "near", "similar"},
		{"for forty", []Candidate{far, near}, "far", "near", "far"},
		{"the one in use is gone", []Candidate{far, gone}, "gone", "far", ""},
	} {
		want := slices.DeleteFunc([]string{c.first, c.second}, func(s string) bool { return s == "" })
		if got := names(Best(c.all, peer.ID(c.now))); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", c.name, got, want)
		}
	}
}
