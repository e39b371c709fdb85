package churn

import (
	"time"

	"edgemesh/tunnel/p2p/base/ladder"
)

// pair is two nodes that talk: all the time, or for a while now and then. a has the smaller peer ID.
type pair struct {
	a, b     *side
	constant bool
	busy     bool
	longer   float64 // the distance between them, as a part of the shortest
	links    map[ladder.PathID]*link
	broken   time.Duration // since when data does not get through; -1: it does
	calm     time.Duration // no fault has touched it since
	why      string        // that fault
}

// side is one end of a pair.
type side struct {
	w     *World
	pair  *pair
	node  *node
	other *side
	m     *ladder.Machine
	opens ladder.OpenID // the last stream that was to be opened
	life  int           // of the machine: what was ordered before it was made is void
	wakes int           // the last wake-up that was planned
	own   map[ladder.PathID]bool
	circuits
}

const (
	talksFor, restsFor = 10 * time.Second, 10 * time.Minute
	// openTimeout is how long a stream is being opened on one path, improveEvery how often relays are compared.
	openTimeout  = 2 * time.Second
	improveEvery = time.Second
	quietFor     = 800 * time.Millisecond
	// wantAgain is how soon the next packet wants a path where there is none.
	wantAgain = 50 * time.Millisecond
)

func (w *World) newPair(x, y *node, constant bool) {
	if x.id > y.id {
		x, y = y, x
	}
	p := &pair{constant: constant, longer: 0.9 + w.rnd.Float64()*w.rnd.Float64(), links: map[ladder.PathID]*link{}, broken: -1}
	p.a, p.b = &side{w: w, pair: p, node: x}, &side{w: w, pair: p, node: y}
	p.a.other, p.b.other = p.b, p.a
	x.sides, y.sides = append(x.sides, p.a), append(y.sides, p.b)
	w.pairs = append(w.pairs, p)
	w.forget(p.a)
	w.forget(p.b)
	first := 2*time.Minute + w.upTo(time.Minute)
	if !constant {
		first = 2*time.Minute + w.upTo(restsFor)
	}
	w.after(first, func() { w.talk(p) })
}

// forget makes another machine for a side: its agent has started.
func (w *World) forget(s *side) {
	s.life++
	s.wakes++
	s.own = map[ladder.PathID]bool{}
	for id := range s.pair.links {
		if !s.other.own[id] {
			delete(s.pair.links, id)
		}
	}
	s.circuits = circuits{}
	s.m = ladder.New(ladder.Config{Coordinator: s == s.pair.a, Seed: w.rnd.Uint64()})
	if s.pair.busy && !s.node.off {
		w.begin(s)
	}
}

// talk makes data flow in both directions, for a while.
func (w *World) talk(p *pair) {
	p.busy, p.broken = true, w.now
	p.calm, p.why = w.now, "beginning"
	w.begin(p.a)
	w.begin(p.b)
	if !p.constant {
		w.after(talksFor+w.upTo(talksFor), func() {
			p.busy, p.broken = false, -1
			w.after(restsFor/2+w.upTo(restsFor), func() { w.talk(p) })
		})
	}
}

// begin is what a first packet, and the stream opened for it, do on one side.
func (w *World) begin(s *side) {
	if s.node.off {
		return
	}
	s.open()
	s.look()
	w.improve(s)
}

// open opens a stream.
func (s *side) open() {
	s.opens++
	s.handle(ladder.Open{ID: s.opens})
}

// try opens the stream on a path.
func (s *side) try(a ladder.Try) {
	s.handle(ladder.Ask{Path: a.Path})
	if l := s.pair.links[a.Path]; s.own[a.Path] && s.w.alive(l) {
		s.handle(ladder.Opened{ID: a.Open})
		return
	}
	s.later(openTimeout, func() { s.handle(ladder.OpenFailed{ID: a.Open, Path: a.Path}) })
}

// later plans f for as long as the machine lives.
func (s *side) later(d time.Duration, f func()) {
	life := s.life
	s.w.after(d, func() {
		if s.life == life && !s.node.off {
			f()
		}
	})
}

// handle passes an event to the machine and carries out what it orders.
func (s *side) handle(e ladder.Event) {
	if s.node.off {
		return
	}
	life := s.life
	acts := s.m.Handle(s.w.now, e)
	if s.life == life {
		for _, a := range acts {
			s.do(a)
		}
	}
	s.plan()
	s.w.check(s.pair)
}

// plan wakes the machine when it wants to be woken.
func (s *side) plan() {
	next := s.m.Next()
	if s.pair.busy && s.m.State() == ladder.Idle { // a packet wants a path
		next = min(next, s.w.now+wantAgain)
	}
	if next == ladder.Never {
		return
	}
	s.wakes++
	wakes := s.wakes
	s.w.at(next, func() {
		if s.wakes != wakes || s.node.off {
			return
		}
		s.look()
		if s.pair.busy && s.m.State() == ladder.Idle {
			s.open()
		}
	})
}

// netChanged notifies the machine that the node has another address.
func (s *side) netChanged() { s.handle(ladder.NetChanged{}) }

// look is package peers': the machine gets samples of all paths.
func (s *side) look() {
	var samples []ladder.Sample
	mine, theirs := s.m.Best(ladder.StreamLane, nil), s.other.m.Best(ladder.StreamLane, nil)
	for id := ladder.PathID(0); len(samples) < len(s.own); { // in order, or runs would differ
		if id = s.nextOwn(id); id == 0 {
			break
		}
		l := s.pair.links[id]
		x := ladder.Sample{Path: id, Moved: l.moved, Carrier: ladder.Never}
		if s.pair.busy && (mine == id || theirs == id) {
			if mine == id {
				x.Streams = 1
			}
			if s.w.alive(l) && !s.other.node.off {
				l.heard[s.index()] = s.w.now
			}
			l.moved++
			x.Moved = l.moved
		}
		x.Heard = s.w.now - l.heard[s.index()]
		if l.relay >= 0 {
			x.Order = s.order(s.w.relays[l.relay].id, l.relay)
			if x.Streams > 0 && x.Heard > quietFor {
				s.w.doubt(s.node, l.relay)
			}
		}
		samples = append(samples, x)
	}
	s.handle(ladder.Wake{Samples: samples})
}

// nextOwn is the next higher path; 0 if there is none.
func (s *side) nextOwn(after ladder.PathID) (next ladder.PathID) {
	for id := range s.own {
		if id > after && (next == 0 || id < next) {
			next = id
		}
	}
	return next
}

func (s *side) index() int {
	if s == s.pair.a {
		return 0
	}
	return 1
}

// do carries out an action.
func (s *side) do(a ladder.Action) {
	w, p := s.w, s.pair
	switch a := a.(type) {
	case ladder.Try:
		s.later(0, func() { s.try(a) })
	case ladder.Fail:
		if p.busy {
			s.later(0, s.open)
		}
	case ladder.Connect:
		s.connect(func(bool) { s.handle(ladder.Connected{}) })
	case ladder.Standby:
		s.connect(func(bool) { s.handle(ladder.StandbyDone{}) })
	case ladder.Punch:
		w.punches++
		s.punch(a)
	case ladder.Probe:
		w.probes++
		s.probe(a.Path)
	case ladder.Close:
		s.close(a)
	case ladder.Moved:
		w.noteMoved(p, a.Lost)
	case ladder.Nudge:
		s.through(a.Via, func() { s.other.handle(ladder.Nudged{}) })
	}
}

// through has f happen at the other end, if the path gets it there.
func (s *side) through(id ladder.PathID, f func()) {
	l := s.pair.links[id]
	if l == nil || !s.w.alive(l) {
		return
	}
	s.other.later(l.trip(s.w)/2, func() {
		if s.w.alive(l) {
			f()
		}
	})
}
