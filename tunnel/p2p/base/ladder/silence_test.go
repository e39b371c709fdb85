package ladder

import (
	"strings"
	"testing"
	"time"
)

// life is one path that is played: traffic says whether bytes move, delay is how long answers
// take (0: none ever come), heard whether something else comes in, carrier
// whether the kernel hears the next hop.
type life struct {
	traffic, heard, carrier, relayed bool
	delay                            time.Duration
}

// play lets a path live for d and returns when it was closed, counted from the
// beginning; 0 if it lives.
func play(s *scene, l life, d time.Duration) time.Duration {
	s.t.Helper()
	start := s.now
	answers := s.due
	defer func() { s.due = answers }()
	moved := s.alive[1]
	for s.now < start+d {
		at := s.m.Next()
		if l.traffic {
			at = min(at, s.now+100*time.Millisecond)
			moved++
		}
		var acts []string
		if len(answers) > 0 && answers[0] <= at {
			s.now = max(s.now, answers[0])
			answers = answers[1:]
			acts = s.tell(Answer{Path: 1, Last: len(answers) == 0})
		} else {
			s.now = at
			smp := Sample{Path: 1, Moved: moved, Heard: s.now, Carrier: Never, Streams: 1, Lanes: 1}
			if l.heard {
				smp.Heard = 0
			}
			if l.carrier {
				smp.Carrier = 0
			}
			acts = s.tell(Wake{Samples: []Sample{smp}})
		}
		for _, a := range acts {
			switch {
			case a == "Close1":
				return s.now - start
			case a == "Probe1" && l.delay > 0:
				answers = append(answers, s.now+l.delay)
			}
		}
	}
	s.alive[1] = moved
	return 0
}

func (s *scene) one(l life) {
	s.tell(Up{1, Link{Relayed: l.relayed}})
	s.tell(Ready{1})
	if l.delay > 0 {
		s.due = []Time{s.now + l.delay}
	}
}

func TestSilence(t *testing.T) {
	for _, c := range []struct {
		name     string
		l        life
		min, max time.Duration // until it is closed; 0: it lives
	}{
		{"busy and answered", life{true, false, false, false, ms}, 0, 0},
		{"busy and answered late", life{true, false, false, false, 1100 * ms}, 0, 0},
		{"busy, answered very late, but heard", life{true, true, false, false, 10 * time.Second}, 0, 0},
		{"busy and silent", life{true, false, false, false, 0}, 1200 * ms, 1300 * ms},
		{"busy and silent, next hop heard", life{true, false, true, false, 0}, 5000 * ms, 5100 * ms},
		{"busy and silent, relay heard", life{true, false, true, true, 0}, 3000 * ms, 3100 * ms},
		{"busy and silent, relay silent", life{true, false, false, true, 0}, 1200 * ms, 1300 * ms},
		{"idle and answered", life{false, false, false, false, time.Second}, 0, 0},
		{"new and silent", life{false, false, false, false, 0}, 1200 * ms, 1300 * ms},
	} {
		s := newScene(t, true)
		s.one(c.l)
		got := play(s, c.l, 100*time.Second)
		if got < c.min || got > c.max {
			t.Errorf("%s: closed after %v, want %v to %v", c.name, got, c.min, c.max)
		}
	}
}

// TestSilenceAfterIdleness: a path that was idle for long gets the time of one
// answer, no more, and it does not matter what woke it.
func TestSilenceAfterIdleness(t *testing.T) {
	idle := life{delay: time.Millisecond}
	for _, c := range []struct {
		name     string
		wake     func(s *scene)
		l        life
		min, max time.Duration
	}{
		{"traffic, late answers", func(*scene) {}, life{traffic: true, delay: time.Second}, 0, 0},
		{"traffic, no answer", func(*scene) {}, life{traffic: true}, 1200 * time.Millisecond, 1400 * time.Millisecond},
		{"a stream is opened", func(s *scene) { s.tell(Ask{1}) }, life{}, 1200 * time.Millisecond, 1300 * time.Millisecond},
		{"the network changed", func(s *scene) { s.tell(NetChanged{}) }, life{}, 1200 * time.Millisecond, 1300 * time.Millisecond},
	} {
		s := newScene(t, true)
		s.one(idle)
		if got := play(s, idle, time.Minute); got != 0 {
			t.Fatalf("idle path closed after %v", got)
		}
		if v, _ := s.m.Path(1); !v.Quiet {
			t.Error("an idle path is not quiet")
		}
		c.wake(s)
		if c.l.traffic { // what wakes the machine of a quiet path
			s.alive[1]++
			s.tell(Wake{Samples: []Sample{{Path: 1, Moved: s.alive[1], Heard: s.now, Carrier: Never, Streams: 1, Lanes: 1}}})
			if c.l.delay > 0 {
				s.due = []Time{s.now + c.l.delay}
			}
		}
		got := play(s, c.l, 100*time.Second)
		if got < c.min || got > c.max {
			t.Errorf("%s: closed after %v, want %v to %v", c.name, got, c.min, c.max)
		}
	}
}

// TestIdleProbes: a path that has been idle for some minutes costs a probe in less than two.
func TestIdleProbes(t *testing.T) {
	const want = 6
	for _, relayed := range []bool{false, true} {
		s := newScene(t, false)
		s.one(life{relayed: relayed, delay: time.Millisecond})
		play(s, life{delay: time.Millisecond}, 3*time.Minute)
		s.log = nil
		play(s, life{delay: time.Millisecond}, 10*time.Minute)
		probes := len(s.log)
		if probes > want || probes < want-1 {
			t.Errorf("relayed %v: %d probes in 10 idle minutes, want %d: %v", relayed, probes, want, s.log)
		}
	}
}

// TestSleep: what was not heard while this process did not run says nothing.
func TestSleep(t *testing.T) {
	s := newScene(t, true)
	s.up(1, relayedTCP)
	s.up(2, directTCP)
	s.run(10 * time.Second)
	s.now += 5 * time.Minute
	acts := s.tell(Wake{Samples: s.samples()})
	for _, want := range []string{"Probe1", "Probe2"} {
		found := false
		for _, a := range acts {
			found = found || a == want
		}
		if !found {
			t.Errorf("after sleep: %v, want %s", acts, want)
		}
	}
	if s.m.State() != Direct {
		t.Errorf("after sleep: %v, want direct", s.m.State())
	}
	delete(s.alive, 2) // the direct one is dead, the relayed one answers
	s.react([]string{"Probe1"})
	start := s.now
	for s.m.State() == Direct {
		s.now = s.m.Next()
		s.react(s.tell(Wake{Samples: s.samples()}))
	}
	if s.m.State() != Relayed || s.now-start > 1300*time.Millisecond {
		t.Errorf("%v after %v, want relayed after 1.2 s", s.m.State(), s.now-start)
	}
}

// TestReplacedPath: a peer that makes a path like one that it has may have lost that one, and whoever has not must not
// wait for its silence. If both answer, the older one is used as before.
func TestReplacedPath(t *testing.T) {
	for name, links := range map[string][2]Link{
		"through one relay":  {{Relayed: true, Relay: "r"}, {Relayed: true, Relay: "r", Transport: QUIC}},
		"through two relays": {{Relayed: true, Relay: "r"}, {Relayed: true, Relay: "q", Order: 1}},
		"direct":             {{}, {}},
	} {
		for _, lives := range []bool{false, true} {
			s := newScene(t, false)
			s.up(1, links[0])
			s.run(10 * time.Second)
			if !lives {
				delete(s.alive, 1)
			}
			s.up(2, links[1])
			if got := s.m.Best(StreamLane, nil); got != 2 && !lives {
				t.Errorf("%s: path %d is used while only 2 has answered", name, got)
			}
			s.run(2 * time.Second)
			if got := s.m.Best(StreamLane, nil); (got == 1) != lives {
				t.Errorf("%s, the older one answers: %v: path %d is used", name, lives, got)
			}
		}
	}
	s := newScene(t, false)
	s.up(1, directTCP)
	s.run(10 * time.Second)
	s.up(2, Link{Relayed: true, Relay: "q"})
	if v, _ := s.m.Path(1); v.State != Proven {
		t.Errorf("a relayed path makes the direct one %v", v.State)
	}
}

// TestClockJumps: a clock that hops ahead, by seconds or decades, or is set back, costs no path.
func TestClockJumps(t *testing.T) {
	s := newScene(t, true)
	s.up(1, relayedTCP)
	s.up(2, directTCP)
	s.run(10 * time.Second)
	for _, ahead := range []Time{2 * time.Second, time.Hour, 40 * 365 * 24 * time.Hour} {
		s.now += ahead
		s.react(s.tell(Wake{Samples: s.samples()}))
		for _, back := range []Time{time.Second, ahead} {
			m := s.m
			for _, a := range m.Handle(s.now-back, Abandon{}) {
				if n := name(a); strings.HasPrefix(n, "Close") || strings.HasPrefix(n, "Moved") || n == "Lost" {
					t.Errorf("%v ahead, %v back: %s", ahead, back, n)
				}
			}
			if m.Next() <= s.now {
				t.Errorf("%v back: the machine wants to be woken in the past", back)
			}
		}
		s.run(10 * time.Second)
		if s.m.State() != Direct || s.m.Best(StreamLane, nil) != 2 {
			t.Errorf("after %v: %v, path %d is used", ahead, s.m.State(), s.m.Best(StreamLane, nil))
		}
	}
	for _, line := range s.log {
		if strings.Contains(line, "Close") {
			t.Error(line)
		}
	}
}
