package choice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// Measurements that differ by up to a fifth from hour to hour move neither reservations nor circuits.
func TestNoiseMovesNothing(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var relays []Relay
		var candidates []Candidate
		real := make(map[peer.ID]time.Duration)
		for i := range 4 + r.IntN(20) {
			id := peer.ID(fmt.Sprintf("relay-%d", i))
			real[id] = time.Duration(1+r.IntN(150)) * time.Millisecond
			relays = append(relays, Relay{ID: id, RTT: real[id]})
			candidates = append(candidates, Candidate{Relay: id, Known: true, Theirs: true, Cost: real[id]})
		}
		held := Reservations("node", relays)
		best := Best(candidates, "")[0].Relay
		for hour := range 20 {
			noise := func(d time.Duration) time.Duration { return d + time.Duration(r.Float64()*float64(d)/5) }
			for i := range relays {
				id := relays[i].ID
				relays[i].Reserved = slices.Contains(held, id)
				relays[i].RTT, candidates[i].Cost = noise(real[id]), noise(real[id])
			}
			if now := Reservations("node", relays); !sameSet(now, held) {
				t.Fatalf("seed %d, hour %d: reservations move from %q to %q", seed, hour, held, now)
			}
			if now := Best(candidates, best)[0].Relay; now != best {
				t.Fatalf("seed %d, hour %d: circuits move from %s to %s", seed, hour, best, now)
			}
		}
	}
}

func sameSet(a, b []peer.ID) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// Whatever the relays are like: as many reservations as there can be, each once; every relay is tried, each once.
func TestEveryWorld(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		n := r.IntN(16)
		var relays []Relay
		var candidates []Candidate
		for i := range n {
			id := peer.ID(fmt.Sprintf("relay-%d", i))
			rtt := time.Duration(r.IntN(3)) * time.Duration(r.IntN(100)) * time.Millisecond
			some := func() bool { return r.IntN(2) == 0 }
			relays = append(relays, Relay{ID: id, RTT: rtt, Failed: some(), Reserved: some()})
			candidates = append(candidates, Candidate{Relay: id, Connected: some(), Mine: some(), Theirs: some(), Known: some(),
				Cost: rtt, Home: i, Failed: some()})
		}
		held := Reservations("node", relays)
		want := min(n, MaxReservations)
		if n >= ManyRelays {
			want = 2
		}
		if len(held) != want || len(slices.Compact(slices.Sorted(slices.Values(held)))) != len(held) {
			t.Fatalf("seed %d: reservations at %q of %d relays", seed, held, n)
		}
		ranked := Rank(candidates)
		if len(slices.Compact(slices.Sorted(slices.Values(names(ranked))))) != min(n, MaxTried) {
			t.Fatalf("seed %d: %q tried of %d relays", seed, names(ranked), n)
		}
		for i, c := range ranked[:max(0, len(ranked)-1)] {
			if next := ranked[i+1]; !(c.Connected && c.Theirs) && next.Connected && next.Theirs {
				t.Fatalf("seed %d: %+v is tried before %+v, which both ends use", seed, c, next)
			}
		}
	}
}
