package p2p

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
	return homes("node", all)
}

func TestChooseRelays(t *testing.T) {
	h := relayNames(5) // h[0] is home
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		all  []candidate
		want []peer.ID
	}{
		{"none", nil, nil},
		{"as many as are held at most", []candidate{{id: h[2], failed: true}, {id: h[1]}, {id: h[0]}}, []peer.ID{h[2], h[1], h[0]}},
		{"nothing known: home and the first ones", []candidate{{id: h[4]}, {id: h[3]}, {id: h[2]}, {id: h[0]}}, []peer.ID{h[0], h[4], h[3]}},
		{"home and the nearest", []candidate{{id: h[0], rtt: 90 * ms}, {id: h[1], rtt: 50 * ms}, {id: h[2], rtt: 10 * ms}, {id: h[3], rtt: 20 * ms}, {id: h[4]}},
			[]peer.ID{h[0], h[2], h[3]}},
		{"home is away: the next home", []candidate{{id: h[0], failed: true}, {id: h[1], rtt: 90 * ms}, {id: h[2], rtt: 10 * ms}, {id: h[3], rtt: 20 * ms}, {id: h[4], rtt: 30 * ms}},
			[]peer.ID{h[1], h[2], h[3]}},
		{"a little nearer is not enough", []candidate{{id: h[0], rtt: 9 * ms, held: true}, {id: h[1], rtt: 40 * ms, held: true}, {id: h[2], rtt: 30 * ms, held: true}, {id: h[3], rtt: 29 * ms}},
			[]peer.ID{h[0], h[2], h[1]}},
		{"much nearer is", []candidate{{id: h[0], rtt: 9 * ms, held: true}, {id: h[1], rtt: 40 * ms, held: true}, {id: h[2], rtt: 30 * ms, held: true}, {id: h[3], rtt: 25 * ms}},
			[]peer.ID{h[0], h[2], h[3]}},
		{"all away: homes", []candidate{{id: h[4], failed: true}, {id: h[3], failed: true}, {id: h[2], failed: true}, {id: h[0], failed: true}},
			[]peer.ID{h[0], h[2], h[3]}},
	} {
		if got := chooseRelays("node", c.all); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
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
		home := homes(p, all)
		count[home[0]]++
		shuffled := []peer.ID{all[2], all[0], all[3], all[1]}
		if !slices.Equal(homes(p, shuffled), home) {
			t.Fatalf("homes of %s depend on the order of the membership", p)
		}
		if left := homes(p, all[1:]); home[0] != all[0] && left[0] != home[0] {
			t.Fatalf("%s moved although its home is there", p)
		}
	}
	for r, n := range count {
		if n < 150 || n > 350 {
			t.Errorf("%s is home of %d of 1000", r, n)
		}
	}
}

func TestOutagePause(t *testing.T) {
	for _, c := range []struct {
		away  time.Duration
		alone bool
		want  time.Duration
	}{
		{0, true, relayBackoff}, {10 * time.Second, false, relayBackoff}, {time.Minute, false, 7500 * time.Millisecond},
		{time.Hour, false, time.Minute}, {time.Hour, true, 10 * time.Second},
	} {
		if got := outagePause(c.away, c.alone); got != c.want {
			t.Errorf("away for %v, alone %t: %v, want %v", c.away, c.alone, got, c.want)
		}
	}
}
