package socket

import (
	"testing"
	"time"
)

// look shows a route the same sight every 10 ms.
func (r *route) look(s sight, now *time.Time, d time.Duration) {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(tuneEvery)
		r.observe(s, *now)
	}
}

// The shortest round trip belongs to a route: on a longer one it would look like a queue forever. It is followed when the
// kernel's is, or BBR's for long enough that no queue can be what it saw.
func TestRouteBecomesLonger(t *testing.T) {
	const long = 3 * testRTT
	for name, c := range map[string]struct {
		floor, recent time.Duration
		after         time.Duration
		least         time.Duration
		grown         bool
	}{
		"the kernel knows":        {long, testRTT, tuneEvery, long, false},
		"BBR saw a queue":         {testRTT, long, drainedTime, testRTT, false},
		"BBR knows":               {testRTT, long, drainedTime + routeTrips*long + 2*tuneEvery, long, true},
		"a queue, the same route": {testRTT, testRTT, time.Minute, testRTT, false},
		"nothing is known":        {0, 0, time.Minute, testRTT, false},
	} {
		r := route{least: testRTT}
		now := time.Unix(1000, 0)
		r.look(sight{rtt: long, floor: c.floor, recent: c.recent}, &now, c.after)
		if r.least != c.least || r.grown != c.grown {
			t.Errorf("%s: least %v, grown %v, want %v, %v", name, r.least, r.grown, c.least, c.grown)
		}
	}
}

// A queue that BBR's own look at the path still sees for a moment is no longer route.
func TestBriefQueueIsNoRoute(t *testing.T) {
	now := time.Unix(1000, 0)
	r := route{least: testRTT}
	s := sight{rtt: 2 * testRTT, floor: testRTT, recent: 2 * testRTT}
	r.look(s, &now, drainedTime)
	s.recent = testRTT
	r.observe(s, now)
	s.recent = 2 * testRTT
	r.look(s, &now, drainedTime)
	if r.least != testRTT {
		t.Errorf("least %v, want %v", r.least, testRTT)
	}
}

// BBR is not restarted with the round trip of a much shorter route, as its window would be too small.
func TestNoProbeOnALongerRoute(t *testing.T) {
	for _, c := range []struct {
		floor time.Duration
		want  bool
	}{{testRTT / 5, false}, {testRTT / 2, true}} {
		p := pacer{line: 1e6, limit: 1e6, route: route{least: testRTT, grown: true}}
		if got := p.mayProbe(sight{floor: c.floor, rate: 1e6}, 1e6, time.Unix(1000, 0)); got != c.want {
			t.Errorf("the kernel's is %v: %v", c.floor, got)
		}
	}
}
