package ladder

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is a peer at random: connections come and go, die silently, and answer
// or do not. It holds what must be true whatever happens.
type world struct {
	*scene
	rnd     *rand.Rand
	next    PathID
	links   map[PathID]Link
	opens   OpenID // the last stream that was to be opened
	tries   map[OpenID]PathID
	died    map[PathID]Time // silent since then
	used    PathID          // and since when
	since   Time
	woke    Time // when this side last woke from sleep
	blocked bool // no direct path gets through
	later   bool // nor will any before another peer's turn is over

	rounds, punches, probes, moves int
}

func newWorld(t *testing.T, seed uint64) *world {
	return &world{scene: newScene(t, true), rnd: rand.New(rand.NewPCG(seed, 1)),
		links: make(map[PathID]Link), tries: make(map[OpenID]PathID), died: make(map[PathID]Time)}
}

// do carries out actions; each may fail.
func (w *world) do(acts []Action) {
	w.t.Helper()
	for _, a := range acts {
		switch a := a.(type) {
		case Try:
			if !w.has(a.Path) {
				w.t.Fatalf("a stream is tried on path %d, which does not exist", a.Path)
			}
			w.tries[a.Open] = a.Path // see endTries
		case Fail:
			delete(w.tries, a.Open)
			if v := w.m.openings.find(a.Open); v != nil {
				w.t.Fatalf("stream %d failed, and is remembered", a.Open)
			}
		case Connect:
			w.rounds++
			if w.rnd.IntN(4) > 0 {
				w.add(relayedTCP)
			}
			w.handle(Connected{})
		case Standby:
			w.rounds++
			w.add(relayedTCP)
			w.handle(StandbyDone{})
		case Punch:
			w.punches++
			if !w.has(a.Via) {
				w.t.Fatalf("punch over path %d, which is none", a.Via)
			}
			for _, tr := range a.Want {
				if !w.blocked && w.rnd.IntN(3) > 0 {
					w.add(Link{Transport: tr})
				}
			}
			w.handle(Punched{Later: w.later})
		case Probe:
			w.probes++
			if !w.has(a.Path) {
				w.t.Fatalf("probe on path %d, which is none", a.Path)
			}
			if _, dead := w.died[a.Path]; !dead {
				w.handle(Answer{Path: a.Path, Last: true})
			}
		case Close:
			if !w.has(a.Path) {
				w.t.Fatalf("path %d is closed twice, or never came", a.Path)
			}
			delete(w.links, a.Path)
			delete(w.died, a.Path)
		case Moved:
			w.moves++
		}
	}
}

func (w *world) has(id PathID) bool { _, ok := w.links[id]; return ok }

func (w *world) add(l Link) {
	w.next++
	id := w.next
	w.links[id] = l
	w.handle(Up{Path: id, Link: l})
	w.handle(Ready{Path: id})
}

func (w *world) handle(e Event) {
	w.t.Helper()
	acts := w.m.Handle(w.now, e)
	if next := w.m.Next(); next <= w.now {
		w.t.Fatalf("%T at %v: wants to be woken at %v: livelock", e, w.now-epoch, next)
	}
	w.do(acts)
}

// open begins to open a stream.
func (w *world) open() {
	w.opens++
	w.handle(Open{ID: w.opens})
}

// endTries ends most tries of streams: on dead paths they fail.
func (w *world) endTries() {
	for _, id := range slices.Sorted(maps.Keys(w.tries)) {
		if w.rnd.IntN(4) == 0 {
			continue
		}
		on := w.tries[id]
		delete(w.tries, id)
		if _, dead := w.died[on]; dead || !w.has(on) {
			w.handle(OpenFailed{id, on})
		} else {
			w.handle(Opened{id})
		}
	}
}

// step lets the next thing happen: the machine's wake-up or a quarter of a second.
func (w *world) step(traffic bool) {
	w.t.Helper()
	w.now = min(w.m.Next(), w.now+250*time.Millisecond)
	w.endTries()
	var samples []Sample
	best := w.m.Best(StreamLane, nil)
	for id := range w.links {
		s := Sample{Path: id, Heard: w.now, Carrier: Never}
		if traffic && id == best {
			s.Moved = uint64(w.now)
			s.Streams, s.Lanes = 1, 1
			if _, dead := w.died[id]; !dead {
				s.Heard = 0
			}
		}
		samples = append(samples, s)
	}
	slices.SortFunc(samples, func(a, b Sample) int { return int(a.Path) - int(b.Path) })
	w.handle(Wake{Samples: samples})
	w.check()
}

// check holds that a path is not used for 2 s while it is dead and another one
// lives.
func (w *world) check() {
	w.t.Helper()
	used := w.m.Best(StreamLane, nil)
	if used != w.used {
		w.used, w.since = used, w.now
	}
	at, dead := w.died[used]
	if used == 0 || !dead || w.now-max(at, w.woke, w.since) < 2*time.Second {
		return
	}
	for id := range w.links {
		if v, _ := w.m.Path(id); id != used && v.State == Proven {
			if _, dead := w.died[id]; !dead {
				w.t.Fatalf("at %v path %d is used, dead for %v, while path %d lives", w.now-epoch, used, w.now-at, id)
			}
		}
	}
}

// fault is one thing that goes wrong, or right.
func (w *world) fault() {
	ids := w.m.Ranked(StreamLane)
	if len(ids) == 0 {
		w.open()
		return
	}
	id := ids[w.rnd.IntN(len(ids))]
	switch w.rnd.IntN(12) {
	case 0, 1, 2:
		if _, dead := w.died[id]; !dead {
			w.died[id] = w.now
		}
	case 3:
		delete(w.links, id)
		delete(w.died, id)
		w.handle(Down{Path: id})
	case 4:
		w.handle(Suspect{Path: id})
	case 5:
		w.handle(Broken{Path: id, Why: "it says so"})
	case 6:
		w.blocked = !w.blocked
	case 7:
		w.handle(NetChanged{})
	case 8:
		w.handle(NATs{Mine: NAT(w.rnd.IntN(5)), Theirs: NAT(w.rnd.IntN(5))})
	case 9:
		w.now += Time(w.rnd.IntN(60)) * time.Second // asleep
		w.woke = w.now
	case 10:
		w.handle(Nudged{})
	default:
		w.handle(Abandon{})
	}
}

// TestRandomWalk plays an hour of faults under traffic, again and again.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, seed)
		w.open()
		faults := 0
		for w.now < epoch+time.Hour {
			w.step(true)
			if w.rnd.IntN(60) == 0 { // every 10 s or so
				w.fault()
				faults++
			}
		}
		minutes := int((w.now - epoch) / time.Minute)
		// Two paths and a half are probed twice a second; everything else follows a fault.
		if w.probes > 60*2*4*minutes || w.punches > 12*faults || w.moves > 8*faults || w.rounds > 8*faults {
			t.Errorf("seed %d: %d faults in %d min: %d probes, %d punches, %d moves, %d rounds", seed, faults, minutes, w.probes, w.punches, w.moves, w.rounds)
		}
		// Without faults, the best there is comes within a minute.
		w.blocked = false
		clear(w.died)
		w.handle(NATs{})
		for end := w.now + 90*time.Second; w.now < end; {
			if w.m.Best(StreamLane, nil) == 0 {
				w.open()
			}
			w.step(true)
		}
		if w.m.State() != Direct {
			t.Errorf("seed %d: %v 90 s after the last fault", seed, w.m.State())
		}
		// Without traffic it is disconnected.
		for end := w.now + idleTimeout + restMost; w.now < end; {
			w.step(false)
		}
		if w.m.State() != Idle {
			t.Errorf("seed %d: %v after %v without traffic", seed, w.m.State(), idleTimeout)
		}
	}
}

// TestFlapping: a direct path that dies whenever it was there for a second is left
// alone more and more.
func TestFlapping(t *testing.T) {
	w := newWorld(t, 1)
	w.rnd = rand.New(rand.NewPCG(3, 3))
	w.add(relayedTCP)
	before := 0
	var perMinute []int
	for minute := range 10 {
		for end := epoch + Time(minute+1)*time.Minute; w.now < end; {
			w.step(true)
			for id, l := range w.links {
				if _, dead := w.died[id]; !l.Relayed && !dead && w.m.Best(StreamLane, nil) == id {
					w.died[id] = w.now
				}
			}
		}
		perMinute = append(perMinute, w.moves-before)
		before = w.moves
	}
	t.Logf("moves per minute: %v", perMinute)
	if perMinute[0] > 24 || perMinute[9] > 14 {
		t.Errorf("moves per minute: %v", perMinute)
	}
}

// TestWaitsForTurn: an attempt that waits for another peer's turn is made again soon, and does not count; a peer that always
// says so gains a few minutes.
func TestWaitsForTurn(t *testing.T) {
	w := newWorld(t, 1)
	w.blocked, w.later = true, true
	w.add(relayedTCP)
	w.handle(NATs{NATStable, NATRandom})
	for w.now < epoch+2*time.Minute {
		w.step(true)
	}
	if most := int(2 * time.Minute / laterPause); w.punches < most/2-1 || w.punches > most+1 {
		t.Errorf("%d attempts in two minutes", w.punches)
	}
	before := w.punches
	w.later = false
	for w.now < epoch+4*time.Minute {
		w.step(true)
	}
	if n := w.punches - before; n != doubtfulTries {
		t.Errorf("%d attempts after the turn, want %d", n, doubtfulTries)
	}
	w.later = true
	for w.now < epoch+5*time.Hour {
		w.step(true)
	}
	if most := laterTries + doubtfulTries + 5*6 + 6; w.punches > most {
		t.Errorf("%d attempts in five hours, want at most %d", w.punches, most)
	}
}

// TestBlockedForGood: where no direct path gets through, attempts become rare, and
// where the NATs promise nothing, almost none are made.
func TestBlockedForGood(t *testing.T) {
	for _, c := range []struct {
		nats     NATs
		from, to int // attempts in an hour
	}{
		{NATs{NATStable, NATStable}, 60, 110},
		{NATs{NATRandom, NATRandom}, hopelessTries, hopelessTries + 6},
		{NATs{NATStable, NATRandom}, doubtfulTries, doubtfulTries + 6},
	} {
		w := newWorld(t, 1)
		w.blocked = true
		w.add(relayedTCP)
		w.handle(c.nats)
		for w.now < epoch+time.Hour {
			w.step(true)
		}
		if w.punches < c.from || w.punches > c.to {
			t.Errorf("%v: %d attempts in an hour, want %d to %d", c.nats, w.punches, c.from, c.to)
		}
		before := w.punches
		w.handle(NetChanged{})
		if w.punches != before+1 {
			t.Errorf("%v: no new attempt after a change of addresses", c.nats)
		}
		w.handle(Nudged{})
		w.handle(Nudged{})
		w.handle(Nudged{})
		if w.punches > before+2 {
			t.Errorf("%v: %d attempts for three nudges", c.nats, w.punches-before-1)
		}
	}
}

// TestRoundsArePaced: who asks for a path all the time does not get one round of
// dialing after the other.
func TestRoundsArePaced(t *testing.T) {
	s := newScene(t, true)
	rounds := 0
	for end := s.now + 10*time.Second; s.now < end; s.now += time.Millisecond {
		for _, a := range s.tell(Open{ID: 1}) {
			if a == "Connect" {
				rounds++
				s.tell(Connected{}) // without a path
			}
		}
	}
	if rounds < 20 || rounds > 40 {
		t.Errorf("%d rounds in 10 s of constant requests, want 20 to 40", rounds)
	}
	if acts := s.tell(NetChanged{}); len(acts) != 1 || acts[0] != "Connect" {
		t.Errorf("after a change of addresses: %v, want a round without a pause", acts)
	}
}

// TestWhatWorkedIsTriedAgain: where there was a direct path, the NATs' kinds do not
// keep it from being made again when it was cut for some minutes.
func TestWhatWorkedIsTriedAgain(t *testing.T) {
	for _, nats := range []NATs{{NATStable, NATRandom}, {NATRandom, NATRandom}} {
		w := newWorld(t, 1)
		w.handle(nats)
		w.blocked = true
		w.add(relayedTCP)
		w.add(directTCP)
		w.died[2] = w.now
		for end := w.now + 5*time.Minute; w.now < end; {
			w.step(true)
		}
		if w.m.State() != Relayed {
			t.Fatalf("%v: %v, want relayed", nats, w.m.State())
		}
		w.blocked = false
		start := w.now
		for w.m.State() != Direct && w.now < start+5*time.Minute {
			w.step(true)
		}
		if w.now-start > time.Minute {
			t.Errorf("%v: direct again after %v, want a minute at most", nats, w.now-start)
		}
	}
}
