package churn

import (
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
)

// link is a connection between two nodes, which each of them has as a path.
type link struct {
	ladder.Link
	id    ladder.PathID
	pair  *pair
	relay int    // of a relayed one, else -1
	lives [3]int // of both nodes and the relay when it was made
	gone  bool   // one end has closed it
	heard [2]time.Duration
	moved uint64
}

func (l *link) trip(w *World) time.Duration {
	if l.relay < 0 {
		return w.between(l.pair)
	}
	return w.toRelay(l.pair.a.node, l.relay) + w.toRelay(l.pair.b.node, l.relay)
}

// alive reports whether packets get through now.
func (w *World) alive(l *link) bool {
	if l == nil || l.gone || w.lives(l.pair, l.relay) != l.lives || l.pair.a.node.off || l.pair.b.node.off {
		return false
	}
	if l.relay < 0 {
		return w.open(l.pair.a.node.region, l.pair.b.node.region)
	}
	return w.reaches(l.pair.a.node, l.relay) && w.reaches(l.pair.b.node, l.relay)
}

func (w *World) lives(p *pair, relay int) [3]int {
	out := [3]int{p.a.node.conns, p.b.node.conns, 0}
	if relay >= 0 {
		out[2] = w.relays[relay].life
	}
	return out
}

// made is a new connection, which s has dialed.
func (s *side) made(of ladder.Link, relay int) {
	w := s.w
	w.paths++
	l := &link{Link: of, id: w.paths, pair: s.pair, relay: relay, lives: w.lives(s.pair, relay), heard: [2]time.Duration{w.now, w.now}}
	s.pair.links[l.id] = l
	trip := l.trip(w)
	s.arrives(l, trip)
	s.other.later(trip/2, func() { s.other.arrives(l, trip) })
}

func (s *side) arrives(l *link, trip time.Duration) {
	if l.gone {
		return
	}
	s.own[l.id] = true
	s.learn()
	s.handle(ladder.Up{Path: l.id, Link: l.Link})
	s.handle(ladder.NATs{Mine: s.node.nat, Theirs: s.other.node.nat})
	s.later(trip, func() {
		if s.own[l.id] {
			s.handle(ladder.Ready{Path: l.id})
		}
	})
}

// probe sends a probe on a path; the answer is a sign of life at both ends.
func (s *side) probe(id ladder.PathID) {
	l := s.pair.links[id]
	if !s.w.alive(l) {
		return
	}
	trip, sent := l.trip(s.w), s.w.now
	s.other.later(trip/2, func() {
		if s.w.alive(l) {
			l.heard[s.other.index()] = s.w.now
		}
	})
	s.later(trip, func() {
		if s.own[id] && s.w.alive(l) {
			l.heard[s.index()] = s.w.now
			direct := l.relay < 0 && s.node.nat == ladder.NATNone && s.other.node.nat == ladder.NATNone
			s.handle(ladder.Answer{Path: id, Last: s.w.now-sent < ladder.ProbeBusy, Direct: direct})
		}
	})
}

// close ends a connection; the other end notices where packets get through, or learns it on another path.
func (s *side) close(a ladder.Close) {
	l := s.pair.links[a.Path]
	delete(s.own, a.Path)
	if l == nil {
		return
	}
	down := func() {
		if s.other.own[a.Path] {
			delete(s.other.own, a.Path)
			s.other.handle(ladder.Down{Path: a.Path})
		}
	}
	if s.w.alive(l) {
		s.other.later(l.trip(s.w)/2, down)
	}
	l.gone = true
	if a.Over != 0 {
		s.through(a.Over, func() {
			if s.other.own[a.Path] {
				s.other.handle(ladder.Broken{Path: a.Path, Why: "the peer found it dead"})
			}
		})
	}
	if !s.other.own[a.Path] {
		delete(s.pair.links, a.Path)
	}
}

const (
	punchTimeout = 5 * time.Second
	// punchOdds are those of one transport in one attempt, where the NATs can do it.
	punchOdds = 0.85
)

// punch is one attempt to get direct paths.
func (s *side) punch(a ladder.Punch) {
	w, p := s.w, s.pair
	via := p.links[a.Via]
	if !w.alive(via) {
		s.later(punchTimeout, func() { s.handle(ladder.Punched{}) })
		return
	}
	possible := !ladder.Hopeless(s.node.nat, s.other.node.nat) && !(s.node.shut && s.other.node.shut)
	if !possible {
		s.later(punchTimeout, func() { s.handle(ladder.Punched{}) })
		return
	}
	s.later(via.trip(w)*5/2+w.between(p)*2, func() {
		for _, t := range a.Want {
			if w.open(s.node.region, s.other.node.region) && !s.other.node.off && w.rnd.Float64() < punchOdds {
				s.made(ladder.Link{Transport: t}, -1)
			}
		}
		s.handle(ladder.Punched{})
	})
}
