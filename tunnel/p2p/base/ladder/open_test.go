package ladder

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// step is one event of a stream that is being opened, and the actions that follow, those of probing and punching left out.
type step struct {
	e    Event
	want []string
}

func playOpen(t *testing.T, before func(*scene), steps ...step) *scene {
	t.Helper()
	s := newScene(t, false)
	before(s)
	for i, st := range steps {
		acts := slices.DeleteFunc(s.tell(st.e), func(a string) bool {
			return !slices.Contains([]string{"Try", "Fail", "Connect"}, a) && (len(a) < 4 || a[:3] != "Try")
		})
		if !slices.Equal(acts, st.want) {
			t.Errorf("step %d, %T: %v, want %v", i, st.e, acts, st.want)
		}
		if next := s.m.Next(); next != Never && next <= s.now+10*time.Second {
			s.now = max(s.now, min(next, s.now+time.Second))
		}
	}
	return s
}

func nothing(*scene) {}

// A stream waits for a path: the first one serves all that are pending.
func TestPendingOpenIsServed(t *testing.T) {
	s := playOpen(t, nothing,
		step{Open{ID: 1}, []string{"Connect"}},
		step{Open{ID: 2, Lane: DatagramLane}, nil}, // one round for both
		step{Up{1, relayedTCP}, []string{"Try1", "Try1"}},
		step{Opened{1}, nil},
		step{Abandon{2}, nil},
		step{Connected{}, nil})
	if len(s.m.openings) > 0 {
		t.Errorf("%d streams are remembered", len(s.m.openings))
	}
}

// A round that makes no path fails all that are pending, also those that came while it ran; the next stream begins another.
func TestPendingOpenFails(t *testing.T) {
	playOpen(t, nothing,
		step{Open{ID: 1}, []string{"Connect"}},
		step{Open{ID: 2}, nil},
		step{Connected{}, []string{"Fail", "Fail"}},
		step{Connected{}, nil})
	playOpen(t, nothing,
		step{Open{ID: 1}, []string{"Connect"}},
		step{Refuse{}, []string{"Fail"}},
		step{Open{ID: 2}, []string{"Fail"}},
		step{Admit{}, nil})
}

// A caller that gives up leaves nothing to be done.
func TestAbandonedOpenConnectsNothing(t *testing.T) {
	s := newScene(t, false)
	s.tell(Open{ID: 1})
	s.tell(Connected{}) // the next round has to wait
	if acts := s.tell(Open{ID: 2}); len(acts) > 0 || s.m.State() != Connecting {
		t.Fatalf("%v, %v: want a pause", acts, s.m.State())
	}
	s.tell(Abandon{2})
	if acts := s.run(time.Minute); len(acts) > 0 || s.m.State() != Idle {
		t.Errorf("%v, %v after the last caller gave up", acts, s.m.State())
	}
}

// A path on which a stream failed is suspected, and not tried again for that stream; where none is left, the node connects.
func TestOpenTriesNextPath(t *testing.T) {
	both := func(s *scene) { s.up(1, relayedTCP); s.up(2, directTCP) }
	playOpen(t, both,
		step{Open{ID: 1}, []string{"Try2"}},
		step{OpenFailed{1, 2}, []string{"Try1"}},
		step{OpenFailed{1, 1}, []string{"Connect"}},
		step{Answer{Path: 2, Last: true}, nil}, // this stream has failed there
		step{Open{ID: 2}, []string{"Try2"}},
		step{Up{3, relayedTCP}, []string{"Try3"}},
		step{OpenFailed{1, 3}, nil},
		step{Connected{}, []string{"Fail"}},
		step{Opened{2}, nil})
}

// A try moves to a path that becomes the best one: when the direct path is lost, the relayed one may be as dead.
func TestOpenMovesToBetterPath(t *testing.T) {
	both := func(s *scene) { s.up(1, relayedTCP); s.up(2, directTCP) }
	playOpen(t, both,
		step{Open{ID: 1}, []string{"Try2"}},
		step{Suspect{2}, []string{"Try1"}},
		step{OpenFailed{1, 2}, nil}, // the cancelled try was on its way to fail
		step{Suspect{1}, nil},
		step{Answer{Path: 2, Last: true}, nil},
		step{Opened{1}, nil})
	playOpen(t, both,
		step{Open{ID: 1}, []string{"Try2"}},
		step{Down{2}, []string{"Try1"}},
		step{Down{1}, nil}, // that try fails by itself
		step{OpenFailed{1, 1}, []string{"Connect"}},
		step{Up{4, relayedTCP}, []string{"Try4"}},
		step{Opened{1}, nil})
}

// The moves and the tries of one stream are bounded.
func TestOpenIsBounded(t *testing.T) {
	s := newScene(t, false)
	s.up(1, Link{Relayed: true, Relay: "r1", Order: 99})
	s.tell(Open{ID: 1})
	moves := 0
	for i := range 20 { // each path is better than the one before
		id := PathID(i + 2)
		s.alive[id] = 0
		s.tell(Up{id, Link{Relayed: true, Relay: fmt.Sprint("r", id), Order: 90 - i}})
		s.tell(Ready{id})
		if slices.Contains(s.tell(Answer{Path: id, Last: true}), fmt.Sprint("Try", id)) {
			moves++
		}
	}
	if moves != maxTries {
		t.Errorf("moved %d times, want %d", moves, maxTries)
	}
	failed := false
	for id := PathID(30); !failed && id < 60; id++ {
		failed = slices.Contains(s.tell(OpenFailed{1, s.m.openings.find(1).on}), "Fail")
		if !failed {
			s.up(id, directTCP)
		}
	}
	if n := len(s.m.openings); !failed || n > 0 {
		t.Errorf("failed: %v; %d streams are remembered", failed, n)
	}
}
