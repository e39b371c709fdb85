package socket

import (
	"testing"
	"time"
)

const testRTT = 50 * time.Millisecond

// steps shows the pacer the same sight every 10 ms, until it orders something.
func steps(p *pacer, s sight, now *time.Time, d time.Duration) order {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(tuneEvery)
		if o := p.decide(s, *now); o != (order{}) {
			return o
		}
	}
	return order{}
}

// A line that became slower, as a queue showed, has lost nothing.
func TestSlowerLine(t *testing.T) {
	var p pacer
	now := time.Unix(1000, 0)
	s := sight{rate: 12e6, rtt: testRTT, unsent: true}
	p.decide(s, now)
	s.rtt, s.delivered = 2*testRTT, 1000
	steps(&p, s, &now, time.Second)
	s.rate = 4e6
	if o := steps(&p, s, &now, time.Second); o != (order{}) {
		t.Fatalf("while the queue stands: %+v", o)
	}
	s.rtt = testRTT
	if o := steps(&p, s, &now, time.Minute); o != (order{}) {
		t.Fatalf("after that: %+v", o)
	}
	s.rate = 1e6
	s.rtt = 2 * testRTT // no queue: one answer came late
	p.decide(s, now)
	s.rtt = testRTT
	if o := steps(&p, s, &now, time.Second); o != (order{limit: 4e6, restart: true}) {
		t.Fatalf("a quarter of the slower line's: %+v", o)
	}
}

// A line that was fast is not taken for a thin one because answers come late for a moment, before a flow has got going.
func TestLateAnswersOfAFastLine(t *testing.T) {
	var p pacer
	now := time.Unix(1000, 0)
	s := sight{rate: 4e6, rtt: testRTT, segment: testSegment}
	p.decide(s, now)
	s.rtt, s.underWay = 5*testRTT, 30_000
	for range 100 {
		now = now.Add(tuneEvery)
		s.delivered += 2 // 290 kB/s, 200 segments
		if o := p.decide(s, now); o != (order{}) {
			t.Fatalf("after %d segments: %+v", s.delivered, o)
		}
	}
}

// A start that fills a queue on the path is held below the rate until it is over.
func TestStartIsRestrained(t *testing.T) {
	var p pacer
	now := time.Unix(1000, 0)
	s := sight{rate: 1e6, starting: true, rtt: testRTT, underWay: 500_000, unsent: true}
	if o := steps(&p, s, &now, time.Second); o != (order{}) {
		t.Fatalf("without a queue: %+v", o)
	}
	s.rtt += 20 * time.Millisecond
	s.underWay = 100_000 // of 50 KB that fit
	if o := steps(&p, s, &now, time.Second); o != (order{}) {
		t.Fatalf("a slow answer is no queue: %+v", o)
	}
	s.underWay = 200_000
	if o := steps(&p, s, &now, time.Second); o != (order{limit: 750_000}) {
		t.Fatalf("with a queue: %+v", o)
	}
	s.starting = false
	if o := steps(&p, s, &now, time.Second); o != (order{limit: unpaced}) {
		t.Fatalf("after the start: %+v", o)
	}
}

func TestRestraintEnds(t *testing.T) {
	var p pacer
	now := time.Unix(1000, 0)
	s := sight{rate: 1e6, starting: true, rtt: testRTT}
	p.decide(s, now)
	s.rtt, s.underWay = 2*testRTT, 1e6
	steps(&p, s, &now, time.Second)
	if o := steps(&p, s, &now, 2*restrainTime); o != (order{limit: unpaced}) {
		t.Fatalf("still starting after %v: %+v", restrainTime, o)
	}
}

// A rate that collapsed is looked for again, up to the one known.
func TestLostRateIsFound(t *testing.T) {
	var p pacer
	now := time.Unix(1000, 0)
	good := sight{rate: 12e6, rtt: testRTT, unsent: true}
	p.decide(good, now)
	queue := good
	queue.rtt = 2 * testRTT
	steps(&p, queue, &now, time.Second)
	if o := steps(&p, good, &now, time.Minute); o != (order{}) {
		t.Fatalf("at the path's rate: %+v", o)
	}
	lost := sight{rate: 3e5, rtt: testRTT, unsent: true}
	began := now
	if o := steps(&p, lost, &now, time.Second); o != (order{limit: 12e6, restart: true}) {
		t.Fatalf("at a fortieth: %+v", o)
	}
	if d := now.Sub(began); d < testRTT {
		t.Errorf("restarted after %v", d)
	}
	start := lost
	start.starting = true
	if o := steps(&p, start, &now, 200*time.Millisecond); o != (order{}) {
		t.Fatalf("while it starts: %+v", o)
	}
	if o := steps(&p, good, &now, time.Second); o != (order{limit: unpaced}) {
		t.Fatalf("after the start: %+v", o)
	}
	if o := steps(&p, good, &now, time.Minute); o != (order{}) {
		t.Fatalf("the rate is there again: %+v", o)
	}
}

// The shortest round trip belongs to a route: on a longer one it would look like a queue
// forever, and a lost rate would not be found again.
func TestRouteBecomesLonger(t *testing.T) {
	for name, c := range map[string]struct {
		floor   time.Duration
		restart bool
	}{
		"a longer route": {2 * testRTT, true},
		"a queue, the same route, or the kernel does not know yet": {testRTT, false},
		"nothing is known": {0, false},
	} {
		p := pacer{least: testRTT, best: 12e6, known: true}
		now := time.Unix(1000, 0)
		lost := sight{rate: 3e5, rtt: 2*testRTT + time.Millisecond, floor: c.floor, unsent: true}
		if o := steps(&p, lost, &now, 10*time.Second); o.restart != c.restart {
			t.Errorf("%s: %+v, want a new start: %v", name, o, c.restart)
		}
	}
}

// A route that became longer is no queue: a start on it is not held, once BBR has seen it. BBR is not restarted on it as
// long as the kernel believes the shorter one.
func TestLongerRouteIsNoQueue(t *testing.T) {
	const short, long = testRTT / 5, 3 * testRTT
	now := time.Unix(1000, 0)
	p := pacer{least: short, best: 12e6, known: true}
	s := sight{rate: 1e6, starting: true, rtt: long, floor: short, recent: short, underWay: 300_000, unsent: true}
	if o := steps(&p, s, &now, time.Second); o.limit != 750_000 {
		t.Fatalf("nobody knows the route: %+v", o)
	}
	s.recent = long
	for end := now.Add(drainedTime + routeTrips*long + restrainTime); now.Before(end); {
		steps(&p, s, &now, tuneEvery)
	}
	if o := steps(&p, s, &now, time.Minute); p.least != long || o != (order{}) {
		t.Fatalf("least %v, want %v: %+v", p.least, long, o)
	}
	s.starting = false
	if o := steps(&p, s, &now, time.Minute); o.restart {
		t.Errorf("restarted with the round trip of the old route: %+v", o)
	}
	s.floor = long
	if o := steps(&p, s, &now, time.Minute); !o.restart {
		t.Errorf("the kernel knows the route: %+v", o)
	}
}

// A queue that BBR's own look at the path still sees for a moment is no longer route.
func TestBriefQueueIsNoRoute(t *testing.T) {
	now := time.Unix(1000, 0)
	p := pacer{least: testRTT}
	s := sight{rate: 1e6, rtt: 2 * testRTT, floor: testRTT, recent: 2 * testRTT}
	steps(&p, s, &now, drainedTime)
	s.recent = testRTT
	p.decide(s, now)
	s.recent = 2 * testRTT
	steps(&p, s, &now, drainedTime)
	if p.least != testRTT {
		t.Errorf("least %v, want %v", p.least, testRTT)
	}
}

// BBR is not restarted where there is no rate to find.
func TestNoNewStart(t *testing.T) {
	for name, c := range map[string]sight{
		"nothing to send":     {rate: 1e5, rtt: testRTT},
		"a queue on the path": {rate: 1e5, rtt: 2 * testRTT, unsent: true},
		"starting":            {rate: 1e5, rtt: testRTT, unsent: true, starting: true},
		"half of the rate":    {rate: 6e6, rtt: testRTT, unsent: true},
	} {
		p := pacer{least: testRTT, best: 12e6, known: true}
		now := time.Unix(1000, 0)
		if o := steps(&p, c, &now, 10*time.Second); o.restart {
			t.Errorf("%s: %+v", name, o)
		}
	}
	p := pacer{least: longPath - 1, best: 12e6, known: true}
	now := time.Unix(1000, 0)
	if o := steps(&p, sight{rate: 1e5, rtt: longPath - 1, unsent: true}, &now, 10*time.Second); o.restart {
		t.Errorf("on a short path: %+v", o)
	}
}

// On a path that has become slow the attempts become rare, and end once it is known.
func TestNewStartsBecomeRare(t *testing.T) {
	p := pacer{least: testRTT, best: 12e6, known: true}
	now := time.Unix(1000, 0)
	slow := sight{rate: 1e6, rtt: testRTT, unsent: true}
	n := 0
	for end := now.Add(time.Hour); now.Before(end); {
		if steps(&p, slow, &now, time.Minute).restart {
			n++
		}
	}
	if n < 2 || n > 70 {
		t.Errorf("%d starts in an hour", n)
	}
	queue := slow
	queue.rtt = 2 * testRTT
	steps(&p, queue, &now, time.Second)
	if o := steps(&p, slow, &now, time.Hour); o.restart {
		t.Errorf("the path is known: %+v", o)
	}
}
