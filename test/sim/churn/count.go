package churn

import (
	"slices"
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// calmAfter is how long after the last fault that concerns a node nothing is left of it.
const calmAfter = 5 * time.Minute

// Counts are what a run measures.
type Counts struct {
	// Paths are the times until data flowed again in both directions, and Reserved those until a node had all its reservations again,
	// by what had ended that.
	Paths, Reserved map[string][]time.Duration
	// PathMoves and RelayMoves are changes of a path in use, and of a reservation: all, and those that nothing explains.
	PathMoves, RelayMoves, CalmPathMoves, CalmRelayMoves int
	// WorstPath and WorstRelay are the most of those that nothing explains at one pair, and at one node.
	WorstPath, WorstRelay int

	punches, probes int
	fault           time.Duration // the last one that concerns everybody
	touched         map[*node]time.Duration
	short           map[*node]short
	path            map[*pair]int
	relay           map[*node]int
}

// short is a node that has not all its reservations.
type short struct {
	since time.Duration
	why   string
}

func newCounts() Counts {
	return Counts{Paths: map[string][]time.Duration{}, Reserved: map[string][]time.Duration{}, touched: map[*node]time.Duration{},
		short: map[*node]short{}, path: map[*pair]int{}, relay: map[*node]int{}}
}

// touch notes a fault that concerns everybody.
func (w *World) touch(why string) {
	w.fault = w.now
	for _, p := range w.pairs {
		w.touchPair(p, why)
	}
	for _, n := range w.nodes {
		w.touchReserved(n, why)
	}
}

// touchNode notes a fault of one node.
func (w *World) touchNode(n *node, why string) {
	w.touched[n] = w.now
	for _, s := range n.sides {
		w.touchPair(s.pair, why)
	}
	w.touchReserved(n, why)
}

func (w *World) touchPair(p *pair, why string) {
	p.calm = w.now
	if !p.busy {
		return
	}
	if w.flows(p) {
		return
	}
	p.broken, p.why = w.now, why
}

func (w *World) touchReserved(n *node, why string) {
	if !n.off && w.count(n) < w.wants() {
		w.short[n] = short{w.now, why}
	}
}

// wants is how many reservations a node should have.
func (w *World) wants() int {
	if len(w.relays) >= choice.ManyRelays {
		return 2
	}
	return min(choice.MaxReservations, len(w.relays))
}

func (w *World) count(n *node) (have int) {
	for r := range n.lines {
		if n.lines[r].wanted && w.serves(n, r) {
			have++
		}
	}
	return have
}

// noteReserved follows a new reservation.
func (w *World) noteReserved(n *node) {
	if s, ok := w.short[n]; ok && w.count(n) >= w.wants() {
		w.Reserved[s.why] = append(w.Reserved[s.why], w.now-s.since)
		delete(w.short, n)
	}
}

// noteMove follows a choice of another relay.
func (w *World) noteMove(n *node) {
	w.RelayMoves++
	if w.now-max(w.fault, w.touched[n]) > calmAfter && w.now > 2*calmAfter {
		w.CalmRelayMoves++
		w.relay[n]++
		w.WorstRelay = max(w.WorstRelay, w.relay[n])
	}
}

// noteMoved follows a change of a path in use.
func (w *World) noteMoved(p *pair, lost bool) {
	if !p.busy {
		return
	}
	w.PathMoves++
	if p.constant && w.now-max(w.fault, p.calm) > calmAfter {
		w.CalmPathMoves++
		w.path[p]++
		w.WorstPath = max(w.WorstPath, w.path[p])
	}
}

// flows reports whether data gets through in both directions.
func (w *World) flows(p *pair) bool {
	for _, s := range []*side{p.a, p.b} {
		if s.node.off || !w.alive(p.links[s.m.Best(ladder.StreamLane, nil)]) {
			return false
		}
	}
	return true
}

// check follows every event of a pair.
func (w *World) check(p *pair) {
	if p.broken < 0 || !w.flows(p) {
		return
	}
	w.Paths[p.why] = append(w.Paths[p.why], w.now-p.broken)
	p.broken = -1
}

// Hot is the busiest relay's reservations, of the mean of those that run.
func (w *World) Hot() float64 {
	most, sum, n := 0, 0, 0
	for _, r := range w.relays {
		if !r.off && !w.dark[r.region] {
			most, sum, n = max(most, r.held), sum+r.held, n+1
		}
	}
	return float64(most) * float64(n) / float64(sum)
}

// Broken counts the pairs that have talked for a minute without any data that gets through, although both nodes run in
// regions that have relays in reach.
func (w *World) Broken() (n int) {
	for _, p := range w.pairs {
		a, b := p.a.node, p.b.node
		if !p.busy || a.off || b.off || w.dark[a.region] || w.dark[b.region] || w.flows(p) {
			continue
		}
		if p.broken < 0 { // perhaps for a moment: one end has closed a path, and the other does not know yet
			p.broken, p.why = w.now, "a moment"
		}
		if w.now-p.broken > time.Minute {
			n++
		}
	}
	return n
}

// Short counts nodes that have run for two minutes, in a region that works, and have not all their reservations.
func (w *World) Short() (n int) {
	for _, x := range w.nodes {
		if !x.off && !w.dark[x.region] && w.now-w.touched[x] > 2*time.Minute && w.count(x) < w.wants() {
			n++
		}
	}
	return n
}

// Held are the reservations at each relay.
func (w *World) Held() (out []int) {
	for _, r := range w.relays {
		out = append(out, r.held)
	}
	return out
}

// Part is the time in which so many of all were done; sorted is what Sorted made.
func Part(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// Sorted is a copy in order.
func Sorted(all []time.Duration) []time.Duration {
	out := slices.Clone(all)
	slices.Sort(out)
	return out
}

// Run plays until end, and returns how many events that were.
func (w *World) Run(end time.Duration) int { return w.run(end) }

// Sent are the probes and the attempts to get direct paths so far.
func (w *World) Sent() (probes, punches int) { return w.probes, w.punches }
