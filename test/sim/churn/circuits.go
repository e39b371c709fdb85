package churn

import (
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/relay/relays/choice"
)

// These are package reach's.
const (
	relayStagger = 150 * time.Millisecond
	improveAgain = 10 * time.Second
)

// circuits are what a side knows of relays to the other.
type circuits struct {
	best     peer.ID
	tried    time.Duration
	ticks    bool
	known    bool // the other side has reported its relays
	held     map[peer.ID]bool
	away     map[peer.ID]time.Duration // their round trips from there
	improved bool
}

// learn is the exchange of reports that follows a new connection, or a change of reservations.
func (s *side) learn() {
	s.known, s.held, s.away = true, s.w.holds(s.other.node), map[peer.ID]time.Duration{}
	for r := range s.other.node.lines {
		if l := &s.other.node.lines[r]; l.rtt > 0 {
			s.away[s.w.relays[r].id] = l.rtt
		}
	}
}

// announce reports a node's reservations to the peers it is connected to.
func (w *World) announce(n *node) {
	for _, s := range n.sides {
		if best := s.m.Best(ladder.StreamLane, nil); best != 0 {
			s.through(best, s.other.learn)
		}
	}
}

// candidates are package relays' (Reports.Candidates).
func (s *side) candidates() []choice.Candidate {
	w := s.w
	out := make([]choice.Candidate, len(w.relays))
	for r, relay := range w.relays {
		id := relay.id
		l := &s.node.lines[r]
		x := choice.Candidate{Relay: id, Connected: l.up, Mine: l.up, Known: s.known, Cost: l.rtt, Home: slices.Index(s.other.node.homes, id), Failed: l.failed}
		if s.known {
			x.Theirs = s.held[id]
			if x.Cost > 0 {
				x.Cost += s.away[id]
			}
		}
		out[r] = x
	}
	return out
}

// circuitIn is how long a circuit takes; it fails where packets do not get through, or the peer has no reservation.
func (s *side) circuitIn(r int) (d time.Duration, ok bool) {
	w, to := s.w, s.other.node
	if !s.node.lines[r].up {
		d = 3 * w.toRelay(s.node, r)
	}
	if l := &s.node.lines[r]; l.up && !w.serves(s.node, r) {
		w.life(s.node, relayStagger, func() { w.doubt(s.node, r) })
		return 0, false
	}
	return d + 2*w.toRelay(s.node, r) + w.toRelay(to, r), w.reaches(s.node, r) && w.serves(to, r)
}

// connect makes a circuit through one relay after the other.
func (s *side) connect(then func(ok bool)) {
	w := s.w
	ranked := choice.Rank(s.candidates())
	best, in := -1, dialTimeout
	for i, c := range ranked {
		r := w.ids[c.Relay]
		if d, ok := s.circuitIn(r); ok && d+time.Duration(i)*relayStagger < in {
			best, in = r, d+time.Duration(i)*relayStagger
		}
	}
	s.later(in, func() {
		ok := best >= 0 && w.serves(s.other.node, best) && w.reaches(s.node, best)
		if ok {
			s.made(ladder.Link{Relayed: true, Relay: string(w.relays[best].id), Order: s.order(w.relays[best].id, best)}, best)
		}
		then(ok)
	})
}

// order is the rank of a relayed path.
func (s *side) order(id peer.ID, r int) int {
	if id == s.best {
		return 0
	}
	return r + 1
}

// improve is package reach's: while a busy peer is reached through relays, the best of them are used.
func (w *World) improve(s *side) {
	if s.ticks {
		return
	}
	s.ticks = true
	s.later(improveEvery, func() {
		s.ticks = false
		if !s.m.InDemand(w.now) {
			return
		}
		if l := s.pair.links[s.m.Best(ladder.StreamLane, nil)]; l != nil && l.relay >= 0 {
			w.better(s)
		}
		w.improve(s)
	})
}

// better looks for a better circuit once.
func (w *World) better(s *side) {
	best := choice.Best(s.candidates(), s.best)
	if len(best) == 0 {
		return
	}
	if best[0].Relay != s.best {
		s.best = best[0].Relay
		s.look()
	}
	have := map[peer.ID]bool{}
	for id := range s.own {
		if l := s.pair.links[id]; l.relay >= 0 {
			have[w.relays[l.relay].id] = true
		}
	}
	i := slices.IndexFunc(best, func(c choice.Candidate) bool {
		return !have[c.Relay] && c.Theirs && !(c.Mine && s.node.id > s.other.node.id)
	})
	if i < 0 || s.improved && w.now < s.tried+improveAgain {
		return
	}
	s.tried, s.improved = w.now, true
	r := w.ids[best[i].Relay]
	if d, ok := s.circuitIn(r); ok {
		s.later(d, func() {
			if w.serves(s.other.node, r) && w.reaches(s.node, r) {
				s.made(ladder.Link{Relayed: true, Relay: string(w.relays[r].id), Order: s.order(w.relays[r].id, r)}, r)
			}
		})
	}
}
