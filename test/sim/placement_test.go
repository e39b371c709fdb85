package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// regions is how many regions the relays stand in, the same number in each.
const regions = 6

// place is one node: where it is, and how far each relay is from there.
type place struct {
	id   peer.ID
	rtts []time.Duration
	held []peer.ID
}

// places makes n nodes, a share of them in each region. Inside of a region relays are 4 to 8 ms away, others 60 to 200 ms,
// and all of them as far again as the node's access line is slow, with a tenth of noise.
func places(n int, relays []peer.ID, shares [regions]float64, r *rand.Rand) []*place {
	distance := [regions][regions]float64{}
	for a := range regions {
		for b := range a {
			distance[a][b] = 60 + r.Float64()*140
			distance[b][a] = distance[a][b]
		}
	}
	out := make([]*place, n)
	for i := range out {
		region, at := 0, r.Float64()
		for at > shares[region] && region < regions-1 {
			at -= shares[region]
			region++
		}
		p := &place{id: PeerID(r)}
		line := 2 + r.ExpFloat64()*15
		for k := range relays {
			d := 4 + r.Float64()*4
			if k%regions != region {
				d = distance[region][k%regions]
			}
			p.rtts = append(p.rtts, time.Duration((d+line)*(1+r.Float64()/10)*float64(time.Millisecond)))
		}
		out[i] = p
	}
	return out
}

// choose has every node choose as agents do, one after the other, and returns how many hold a reservation at each relay. What
// a node holds now counts as reserved, and relays say when they are crowded.
func choose(all []*place, relays []peer.ID, lost peer.ID) (load map[peer.ID]int, moved int) {
	load = map[peer.ID]int{}
	for _, p := range all {
		for _, id := range p.held {
			if id != lost {
				load[id]++
			}
		}
	}
	share := choice.Share(len(all), len(relays))
	for _, p := range all {
		measured := make([]choice.Relay, len(relays))
		for k, id := range relays {
			measured[k] = choice.Relay{ID: id, RTT: p.rtts[k], Failed: id == lost, Reserved: slices.Contains(p.held, id),
				Crowded: load[id] >= share && !slices.Contains(p.held, id)}
		}
		was := p.held
		p.held = choice.Reservations(p.id, measured)
		for _, id := range p.held {
			if slices.Contains(was, id) {
				continue
			}
			load[id]++
			if was != nil {
				moved++
			}
		}
		for _, id := range was {
			if id != lost && !slices.Contains(p.held, id) {
				load[id]--
			}
		}
	}
	return load, moved
}

func spread(load map[peer.ID]int) (most int, ratio float64) {
	sum := 0
	for _, n := range load {
		most = max(most, n)
		sum += n
	}
	return most, float64(most) * float64(len(load)) / float64(sum)
}

// TestPlacement: nodes spread over relays, also when one of these is lost, and only those move that were there.
func TestPlacement(t *testing.T) {
	n := 2400
	if full() {
		n = 100_000
	}
	for _, c := range []struct {
		name   string
		shares [regions]float64
		most   float64 // of the busiest relay over the mean
	}{
		{"as many nodes in each region", [regions]float64{1. / 6, 1. / 6, 1. / 6, 1. / 6, 1. / 6, 1. / 6}, 1.3},
		{"half as many again in one", [regions]float64{.25, .15, .15, .15, .15, .15}, 1.3},
		{"half of them in one", [regions]float64{.5, .1, .1, .1, .1, .1}, 1.5},
	} {
		r := rand.New(rand.NewPCG(1, 0))
		var relays []peer.ID
		for range 24 {
			relays = append(relays, PeerID(r))
		}
		all := places(n, relays, c.shares, r)
		load, _ := choose(all, relays, "")
		most, ratio := spread(load)
		t.Logf("%d nodes, %d relays, %s: %d at the busiest, %.2f of the mean", n, len(load), c.name, most, ratio)
		if ratio > c.most || len(load) != len(relays) {
			t.Errorf("%s: the busiest has %.2f of the mean, want at most %.2f; %d relays are used", c.name, ratio, c.most, len(load))
		}
		if _, moved := choose(all, relays, ""); moved != 0 {
			t.Errorf("%s: %d reservations move although nothing happened", c.name, moved)
		}
		worst, where, ratioAfter := 0, peer.ID(""), 0.0
		for _, lost := range relays[:map[bool]int{true: 6, false: 2}[full()]] {
			before := make([][]peer.ID, n)
			for i, p := range all {
				before[i] = p.held
			}
			had := load[lost]
			after, moved := choose(all, relays, lost)
			if after[lost] != 0 || moved != had {
				t.Errorf("%s: %d of %d reservations move after a loss, %d stay with it", c.name, moved, had, after[lost])
			}
			most, ratio := spread(after)
			if most > worst {
				worst, where, ratioAfter = most, lost, ratio
			}
			if ratio > c.most {
				t.Errorf("%s: after a loss the busiest has %.2f of the mean, want at most %.2f", c.name, ratio, c.most)
			}
			for i, p := range all {
				p.held = before[i]
			}
		}
		t.Logf("%s: %d at the busiest after one is lost, %.2f of the mean (%s)", c.name, worst, ratioAfter, fmt.Sprint(slices.Index(relays, where)))
	}
}
