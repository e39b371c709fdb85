package ladder

import (
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// detours is a busy machine with a relayed and a direct path of these round trips.
func detours(t *testing.T, relayed, direct Time) *scene {
	t.Helper()
	s := newScene(t, true)
	s.busy, s.rtt = true, map[PathID]Time{1: relayed, 2: direct, 3: direct}
	s.up(1, relayedTCP)
	s.up(2, directTCP)
	s.up(3, directQUIC)
	s.tell(Punched{})
	return s
}

// until runs until the state is that, for d at most, and returns how long it took.
func (s *scene) until(st State, d time.Duration) time.Duration {
	s.t.Helper()
	start := s.now
	for s.m.State() != st {
		if s.now-start > d {
			s.t.Fatalf("%v after %v, want %v", s.m.State(), d, st)
		}
		s.run(100 * ms)
	}
	return s.now - start
}

func TestDetourTaken(t *testing.T) {
	for _, c := range []struct {
		relayed, direct Time
		taken           bool
	}{
		{40 * ms, 62 * ms, true},
		{100 * ms, 300 * ms, true},
		{40 * ms, 58 * ms, false},   // less than 20 ms
		{100 * ms, 130 * ms, false}, // less than 30 %
		{ms, 19 * ms, false},
		{0, 200 * ms, false}, // never measured
	} {
		s := detours(t, c.relayed, c.direct)
		s.run(detourAfter - time.Second)
		if s.m.State() != Direct {
			t.Fatalf("%v: %v too soon", c, s.m.State())
		}
		s.run(20 * time.Second)
		d, on := s.m.Detour()
		if got := s.m.State() == Relayed; got != c.taken || on != c.taken || d.Taken != c.taken {
			t.Errorf("%v: %v, want taken %v", c, s.m.State(), c.taken)
		}
		if s.m.Best(DatagramLane, nil) == 1 != c.taken {
			t.Errorf("%v: the lanes differ", c)
		}
	}
}

func TestDetourLeft(t *testing.T) {
	for name, change := range map[string]func(*scene){
		"direct is shorter now": func(s *scene) { s.rtt[2], s.rtt[3] = 35*ms, 35*ms },
		"relayed is longer now": func(s *scene) { s.rtt[1] = 80 * ms },
		"direct is as long now": func(s *scene) { s.rtt[2], s.rtt[3] = 45*ms, 45*ms },
		"the relay is gone":     func(s *scene) { delete(s.alive, 1); s.tell(Down{1}) },
	} {
		s := detours(t, 40*ms, 70*ms)
		s.until(Relayed, time.Minute)
		change(s)
		s.until(Direct, time.Minute)
		// It is left for a while, longer every time.
		s.rtt = map[PathID]Time{1: 40 * ms, 2: 70 * ms, 3: 70 * ms, 9: 40 * ms}
		if s.m.paths.find(1) == nil {
			s.up(9, relayedTCP)
		}
		if took := s.until(Relayed, 3*time.Minute); took < detourPause {
			t.Errorf("%s: taken again after %v", name, took)
		}
	}
}

// A relay that is busy at times is not used.
func TestDetourLoaded(t *testing.T) {
	s := detours(t, 40*ms, 80*ms)
	for range 60 {
		s.rtt[1] = 40 * ms
		s.run(10 * time.Second)
		s.rtt[1] = 140 * ms
		s.run(10 * time.Second)
		if s.m.State() != Direct {
			t.Fatal(s.m.State())
		}
	}
}

// A relay that says it is loaded, or says nothing, is neither taken nor kept.
func TestDetourNoRoom(t *testing.T) {
	s := detours(t, 40*ms, 80*ms)
	s.loaded = true
	s.run(3 * time.Minute)
	if s.m.State() != Direct {
		t.Fatal(s.m.State())
	}
	if got, ok := s.m.Detour(); !ok || got != (Shortcut{Relayed: 40 * ms, Direct: 80 * ms, Relay: "r"}) {
		t.Errorf("%+v, %v: the reason is missing", got, ok)
	}
	s.loaded = false
	s.until(Relayed, time.Minute)
	if got, ok := s.m.Detour(); !ok || !got.Taken {
		t.Errorf("%+v, %v", got, ok)
	}
	s.loaded = true
	if took := s.until(Direct, time.Minute); took > detourLeave+tripWindow {
		t.Errorf("left after %v", took)
	}
}

// Round trips that change every minute change the path a few times, then less and less.
func TestDetourDamped(t *testing.T) {
	s := detours(t, 40*ms, 80*ms)
	moves := 0
	for i := range 6 * 60 {
		s.rtt[1] = []Time{40 * ms, 200 * ms}[i%2]
		for _, a := range s.run(time.Minute) {
			if a == "Moved" {
				moves++
			}
		}
	}
	if moves > 30 {
		t.Errorf("%d moves in six hours", moves)
	}
}

// Without traffic nothing is compared, and nothing probed for it.
func TestDetourIdle(t *testing.T) {
	s := detours(t, 40*ms, 80*ms)
	s.busy = false
	s.run(40 * time.Second)
	acts := s.run(5 * time.Minute)
	if n := len(slices.DeleteFunc(acts, func(a string) bool { return a != "Probe1" })); n > 6 {
		t.Errorf("%d probes of the relayed path in five idle minutes", n)
	}
}

// A disconnect does not end the pause of a detour that was left, nor what was learnt of how often.
func TestDetourPauseKept(t *testing.T) {
	s := detours(t, 40*ms, 70*ms)
	s.until(Relayed, time.Minute)
	s.rtt[1] = 80 * ms
	s.until(Direct, time.Minute)
	left := s.now
	s.run(inUse)
	s.tell(Wake{Samples: s.samples()})
	s.busy = false
	s.run(inUse + time.Second)
	s.tell(Disconnect{})
	if s.m.State() != Idle {
		t.Fatal(s.m.State())
	}
	s.busy, s.alive, s.rtt = true, make(map[PathID]uint64), map[PathID]Time{11: 40 * ms, 12: 70 * ms}
	s.up(11, relayedTCP)
	s.up(12, directTCP)
	s.until(Relayed, 3*time.Minute)
	if took := s.now - left; took < detourPause+detourAfter-time.Second {
		t.Errorf("taken again %v after it was left", took)
	}
	if s.m.use.left != 1 {
		t.Errorf("left %d times", s.m.use.left)
	}
}
