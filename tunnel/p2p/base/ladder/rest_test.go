package ladder

import (
	"slices"
	"testing"
	"time"
)

func TestRest(t *testing.T) {
	var r rest
	now := epoch
	for i, want := range []Time{15, 30, 60, 90, 90} {
		if got := r.every(now); got != want*time.Second {
			t.Errorf("after %d silences: %v, want %v s", i, got, want)
		}
		r.answered(r.every(now))
	}
	r.lost(now, 12*time.Second)
	if got := r.every(now); got != restMost {
		t.Errorf("%v after the loss of a path that was in use", got)
	}
	r.lost(now, 60*time.Second)
	for range 10 {
		if got := r.every(now); got > 40*time.Second || got < restFirst {
			t.Fatalf("%v, after 60 s were too long", got)
		}
		r.answered(r.every(now))
	}
	for i, pause := range []Time{1, 2, 4, 8, 16, 24, 24} {
		if got := r.every(now + pause*time.Hour - 1); got > 40*time.Second {
			t.Errorf("loss %d: %v before %d hours are over", i, got, pause)
		}
		now += pause * time.Hour
		if got := r.every(now); got < 60*time.Second {
			t.Errorf("loss %d: %v after %d hours", i, got, pause)
		}
		r.lost(now, 60*time.Second)
		r.answered(30 * time.Second)
	}
}

// rested is a machine whose direct path over QUIC has been idle for so long that restMost was reached.
func rested(t *testing.T, lead bool) (*scene, *rest) {
	t.Helper()
	s := newScene(t, lead)
	s.up(1, directQUIC)
	s.up(2, relayedTCP)
	s.run(15 * time.Minute)
	r := &s.m.use.rests[QUIC]
	if r.every(s.now) != restMost || r.losses != 0 {
		t.Fatalf("%+v after fifteen idle minutes", *r)
	}
	return s, r
}

// What was learned of NATs is forgotten with the network it was learned in, also what was too long there, and a silence
// that began before teaches nothing.
func TestRestsForgotten(t *testing.T) {
	for _, e := range []Event{NetChanged{}, Nudged{}} {
		for _, lead := range []bool{false, true} {
			s, r := rested(t, lead)
			r.lost(s.now, time.Minute)
			s.run(restFirst) // the silence that the change ends
			s.react(s.tell(e))
			s.run(time.Second)
			if got := r.every(s.now); got != restFirst || r.failed != 0 || r.lead != lead {
				t.Errorf("%T: %v, %+v", e, got, *r)
			}
			s.run(10 * time.Minute)
			if got := r.every(s.now); got != restMost {
				t.Errorf("%T: %v ten minutes later: nothing is learned again", e, got)
			}
		}
	}
	s, r := rested(t, true)
	delete(s.alive, 1) // the NAT is another one, and that is seen a moment later
	for p := s.m.paths.find(1); !p.waiting; {
		s.run(100 * ms)
	}
	s.react(s.tell(NetChanged{}))
	s.run(10 * time.Second)
	if s.m.paths.find(1) != nil || r.losses != 0 {
		t.Errorf("a silence that began before the change is counted: %+v", *r)
	}
}

// A silence is to blame for a path if others answer, and not if nothing does: then the network was down.
func TestRestsInOutage(t *testing.T) {
	s, r := rested(t, true)
	delete(s.alive, 1)
	s.run(2 * restMost)
	if s.m.paths.find(1) != nil || r.losses != 1 || r.every(s.now) >= restMost {
		t.Errorf("beside a path that answers: %+v", *r)
	}
	s, r = rested(t, true)
	clear(s.alive)
	s.run(2 * restMost)
	if len(s.m.paths) > 0 {
		t.Fatal("paths are left without an answer")
	}
	s.run(blameFor)
	s.up(3, directQUIC)
	if r.losses != 0 || r.every(s.now) != restMost {
		t.Errorf("an outage is counted: %+v", *r)
	}
}

// ends are the two machines of a path through two NATs.
type ends struct {
	m      [2]*Machine
	now    Time
	forget [2]Time // what each NAT forgets a mapping after
	out    [2]Time // when each side last sent
	asked  [2]int
	lost   int
	kept   bool // one is the other's relay
	id     PathID
}

func (e *ends) up() {
	e.id++
	e.out = [2]Time{e.now, e.now}
	for i := range e.m {
		e.do(i, e.m[i].Handle(e.now, Up{Path: e.id, Link: directQUIC}))
		e.do(i, e.m[i].Handle(e.now, Ready{Path: e.id}))
	}
}

// do carries out what side i wants. What it sends opens its own NAT, and gets in if the other's still remembers.
func (e *ends) do(i int, acts []Action) {
	for _, a := range acts {
		switch a := a.(type) {
		case Probe:
			e.asked[i]++
			e.out[i] = e.now
			if j := 1 - i; e.now-e.out[j] < e.forget[j] {
				e.out[j] = e.now
				e.do(i, e.m[i].Handle(e.now, Answer{Path: a.Path, Last: true}))
			}
		case Close:
			if a.Why == Silent {
				e.lost++
			}
			for k := range e.m { // the peer is told
				e.m[k].Handle(e.now, Down{Path: a.Path})
			}
			e.up()
			return
		}
	}
}

func (e *ends) run(d time.Duration) {
	for end := e.now + d; ; {
		i := 0
		if e.m[1].Next() < e.m[0].Next() {
			i = 1
		}
		if e.m[i].Next() > end {
			break
		}
		e.now = max(e.now, e.m[i].Next())
		// Whatever the other side sent was heard, if it got in; out says so well enough.
		heard := e.now - e.out[1-i]
		e.do(i, e.m[i].Handle(e.now, Wake{Kept: e.kept, Samples: []Sample{{Path: e.id, Heard: heard, Carrier: Never, Streams: 1, Lanes: 1}}}))
	}
}

// Two ends find out how long both NATs remember an idle path, whichever forgets first, and lose it seldom for that.
func TestRestsBetweenNATs(t *testing.T) {
	const never = 100 * time.Hour
	for _, c := range []struct {
		forget     [2]Time
		lost       int // at most, in ten hours
		asks, most int // in the last hour, both together
	}{
		{[2]Time{never, never}, 0, 28, 40},
		{[2]Time{120 * time.Second, 120 * time.Second}, 0, 28, 40},
		{[2]Time{20 * time.Second, never}, 10, 180, 250},
		{[2]Time{never, 20 * time.Second}, 10, 180, 250},
		{[2]Time{45 * time.Second, 70 * time.Second}, 10, 60, 200},
	} {
		e := &ends{now: epoch, forget: c.forget, m: [2]*Machine{New(Config{Coordinator: true, Seed: 1}), New(Config{Seed: 2})}}
		e.up()
		e.run(9 * time.Hour)
		e.asked = [2]int{}
		e.run(time.Hour)
		asks := e.asked[0] + e.asked[1]
		t.Logf("%v: lost %d times, asked %v in the last hour", c.forget, e.lost, e.asked)
		if e.lost > c.lost || asks < c.asks || asks > c.most {
			t.Errorf("%v: lost %d times, want at most %d; asked %d times an hour, want %d to %d", c.forget, e.lost, c.lost, asks, c.asks, c.most)
		}
		if c.forget[0] == c.forget[1] && (e.asked[0] < asks/3 || e.asked[1] < asks/3) {
			t.Errorf("%v: asked %v: the sides do not take turns", c.forget, e.asked)
		}
	}
}

// A relay that is a member may have to reach a node at any time, and is missed when it is silent: no NAT is tried out there.
func TestRelaysAreNoRest(t *testing.T) {
	for _, c := range []struct {
		link Link
		most Time // between two probes
	}{{directQUIC, restFirst}, {directTCP, restKept}} {
		s := newScene(t, true)
		s.kept, s.bare = true, true
		s.up(1, c.link)
		s.run(10 * time.Minute)
		var longest Time
		for end, last := s.now+time.Hour, s.now; s.now < end; {
			for _, a := range s.run(time.Second) {
				if a == "Probe1" {
					longest, last = max(longest, s.now-last), s.now
				}
			}
		}
		if longest == 0 || longest > c.most*5/4+time.Second {
			t.Errorf("%+v: %v without a probe", c.link, longest)
		}
	}
	for _, forget := range [][2]Time{{20 * time.Second, 100 * time.Hour}, {100 * time.Hour, 20 * time.Second}} {
		e := &ends{now: epoch, kept: true, forget: forget, m: [2]*Machine{New(Config{Coordinator: true, Seed: 1}), New(Config{Seed: 2})}}
		e.up()
		e.run(10 * time.Hour)
		if e.lost > 0 {
			t.Errorf("%v: lost %d times", forget, e.lost)
		}
	}
}

// Paths that were made at the same moment, as after a relay's restart, are not asked at the same moment forever.
func TestRestsPart(t *testing.T) {
	at := make(map[Time]int)
	for seed := range uint64(50) {
		s := newScene(t, true)
		s.m = New(Config{Coordinator: true, Seed: seed})
		s.kept, s.bare = true, true
		s.up(1, directQUIC)
		s.run(10 * time.Minute)
		at[s.m.Next().Truncate(100*ms)]++
	}
	for next, n := range at {
		if n > 10 {
			t.Errorf("%d of 50 paths are looked at at %v", n, next)
		}
	}
}

// A circuit beside a direct path costs nothing while that answers, and is probed once it does not.
func TestReserveIsNotProbed(t *testing.T) {
	for _, direct := range []Link{directTCP, directQUIC} {
		s := newScene(t, true)
		s.up(2, relayedTCP)
		s.up(1, direct)
		s.run(BusyFor)
		if acts := s.run(30 * time.Minute); slices.Contains(acts, "Probe2") || !slices.Contains(acts, "Probe1") {
			t.Errorf("%v: the circuit was probed: %v", direct, acts)
		}
		delete(s.alive, 1)
		if acts := s.run(2 * restMost); !slices.Contains(acts, "Probe2") || s.m.State() != Relayed {
			t.Errorf("%v: %v after the direct path's loss: %v", direct, s.m.State(), acts)
		}
	}
}
