package socket

import (
	"testing"
	"time"
)

// look shows a route the same sight every 10 ms.
func (r *route) look(s sight, now *time.Time, d time.Duration) {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(tuneEvery)
		r.observe(s, 0, *now)
	}
}

// The shortest round trip belongs to a route: on a longer one it would look like a queue forever. It is followed when the
// kernel's is, or BBR's for long enough that no queue can be what it saw.
func TestRouteBecomesLonger(t *testing.T) {
	const long = 3 * testRTT
	for name, c := range map[string]struct {
		least, floor, recent time.Duration
		after                time.Duration
		want                 time.Duration
	}{
		"the kernel knows":        {testRTT, long, testRTT, tuneEvery, long},
		"BBR saw a queue":         {testRTT, testRTT, long, drainedTime, testRTT},
		"BBR knows":               {testRTT, testRTT, long, drainedTime + routeTrips*long + 2*tuneEvery, long},
		"a little longer":         {4 * testRTT, 4 * testRTT, 4*testRTT + 2*standingTime, time.Minute, 4*testRTT + 2*standingTime},
		"a queue, the same route": {testRTT, testRTT, testRTT, time.Minute, testRTT},
		"nothing is known":        {testRTT, 0, 0, time.Minute, testRTT},
	} {
		r := route{least: c.least}
		now := time.Unix(1000, 0)
		r.look(sight{rtt: 4 * long, floor: c.floor, recent: c.recent}, &now, c.after)
		if r.least != c.want {
			t.Errorf("%s: least %v, want %v", name, r.least, c.want)
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
	r.observe(s, 0, now)
	s.recent = 2 * testRTT
	r.look(s, &now, drainedTime)
	if r.least != testRTT {
		t.Errorf("least %v, want %v", r.least, testRTT)
	}
}

// BBR is not restarted with the round trip of a much shorter route, as its window would be too small.
func TestNoRestartOnALongerRoute(t *testing.T) {
	for _, c := range []struct {
		floor time.Duration
		want  bool
	}{{testRTT / 5, false}, {testRTT / 2, true}, {0, true}} {
		r := route{least: testRTT}
		if got := r.known(sight{floor: c.floor}); got != c.want {
			t.Errorf("the kernel's is %v: %v", c.floor, got)
		}
	}
}

// A thin line's queue that comes and goes is seen within three answers; the kernel's round trip needs more than eight.
func TestSharp(t *testing.T) {
	const short, long, each = 50 * time.Millisecond, 90 * time.Millisecond, 25 * time.Millisecond
	for peers, seen := range map[uint32]time.Duration{0: 80 * time.Millisecond, 9: 70 * time.Millisecond} { // data for each answer
		var r sharp
		s := sight{rtt: short}
		r.look(s, each)
		for _, x := range []struct {
			came     time.Duration
			from, to time.Duration
		}{{long, seen, long}, {short, short, long - seen + short}} {
			for range 3 {
				s.rtt += (x.came - s.rtt) / 8
				s.came += 1 + peers
				s.arrived = segments(s.arrived.segments + 2)
				r.look(s, each)
			}
			if r.rtt < x.from || r.rtt > x.to {
				t.Errorf("%v after three of %v", r.rtt, x.came)
			}
		}
		for range 40 { // ten at a time
			for range 10 {
				s.rtt += (long - s.rtt) / 8
				s.came += 1 + peers
				s.arrived = segments(s.arrived.segments + 2)
			}
			r.look(s, time.Millisecond)
		}
		if d := (r.rtt - s.rtt).Abs(); d > time.Millisecond {
			t.Errorf("%v on a fast line, the kernel has %v", r.rtt, s.rtt)
		}
	}
}
