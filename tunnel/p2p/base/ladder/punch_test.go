package ladder

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Where bytes are paid for, direct paths are made for bulk alone.
func TestThrifty(t *testing.T) {
	s := newScene(t, true)
	s.up(1, relayedTCP)
	punched := func(moved uint64) bool {
		s.now += time.Second
		acts := s.tell(Wake{Samples: []Sample{{Path: 1, Moved: moved, Carrier: Never}}, Thrifty: true})
		return slices.ContainsFunc(acts, func(a string) bool { return strings.HasPrefix(a, "Punch") })
	}
	s.tell(Wake{Samples: []Sample{{Path: 1, Carrier: Never}}, Thrifty: true})
	s.tell(Punched{})
	s.run(10 * time.Second)
	s.tell(Punched{})
	for range 20 {
		if punched(s.m.paths.find(1).moved + 500) {
			t.Fatal("punched for a few packets")
		}
	}
	if !punched(s.m.paths.find(1).moved + 2*bulkBytes) {
		t.Error("not punched for bulk")
	}
}

// What is missing is told with what the next attempt waits for.
func TestPlan(t *testing.T) {
	s := newScene(t, true)
	if _, ok := s.m.Plan(s.now); ok {
		t.Error("something is missing of a peer without paths")
	}
	s.up(1, relayedTCP)
	if p, ok := s.m.Plan(s.now); !ok || !p.Running || !p.Mine {
		t.Errorf("%+v, %v while the first attempt runs", p, ok)
	}
	s.tell(Punched{})
	if p, ok := s.m.Plan(s.now); !ok || p.Running || p.Traffic || p.Next <= s.now {
		t.Errorf("%+v, %v after it has failed", p, ok)
	}
	if p, _ := s.m.Plan(s.now + demandFor); !p.Traffic {
		t.Errorf("%+v without traffic", p)
	}
	s.up(2, directTCP)
	s.up(3, directQUIC)
	if p, ok := s.m.Plan(s.now); ok {
		t.Errorf("%+v with both", p)
	}
	s = newScene(t, false)
	s.up(1, relayedTCP)
	s.run(time.Second)
	if p, ok := s.m.Plan(s.now); !ok || p.Mine || p.Running {
		t.Errorf("%+v, %v where the peer begins", p, ok)
	}
}
