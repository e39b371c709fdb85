package socket

import (
	"testing"
	"time"
)

// Where the other end tells whose queue it is, a flow beside the peer's keeps its line full and its own queue short, however
// long the peer's is and however it changes. Answers come every 20 ms, and some get lost.
func TestToldWhoseQueue(t *testing.T) {
	// comes and goes: it grows half as fast as time passes, and drains as fast.
	comes := func(most time.Duration) func(time.Duration) time.Duration {
		return func(at time.Duration) time.Duration {
			at %= 3 * most
			return min(at/2, 3*most-at)
		}
	}
	for name, c := range map[string]struct {
		rate, peer float64
		late       func(at time.Duration) time.Duration
	}{
		"no queue there":     {20 * mbit, 20 * mbit, nil},
		"a line as fast":     {20 * mbit, 20 * mbit, comes(40 * time.Millisecond)},
		"a slower line":      {20 * mbit, 2 * mbit, comes(300 * time.Millisecond)},
		"a faster line":      {5 * mbit, 90 * mbit, comes(40 * time.Millisecond)},
		"a queue that stays": {20 * mbit, 20 * mbit, func(time.Duration) time.Duration { return 60 * time.Millisecond }},
	} {
		l := &line{rate: steady(c.rate), trip: 50 * time.Millisecond, buffer: c.rate * 0.5}
		s := newSender(&pacer{})
		s.peer, s.told = c.peer, true
		l.run(seconds, s)
		s.late = c.late
		rate := l.goodput(s, 3*seconds, 13*seconds)
		if queue := l.wait(3*seconds, 0.5); queue > 30*time.Millisecond || rate < 0.8*c.rate/mbit {
			t.Errorf("%s: the queue is %v, at %.1f of %.0f Mbit/s", name, queue, rate, c.rate/mbit)
		}
	}
}

// What is told counts while it is fresh, if it explains the connection's own round trips, since a router may have a queue for
// each flow, and if clocks do not drift.
func TestToldIsJudged(t *testing.T) {
	const ms, trip = time.Millisecond, 50 * time.Millisecond
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		ahead, behind, least, age, longer time.Duration
		known                             bool
	}{
		"fresh":                    {30 * ms, 40 * ms, trip, 0, 70 * ms, true},
		"no queue":                 {0, 0, trip, 50 * ms, 5 * ms, true},
		"only the peer's":          {0, 200 * ms, trip, 0, 200 * ms, true},
		"old":                      {30 * ms, 40 * ms, trip, freshTime, 70 * ms, false},
		"a queue of its own":       {5 * ms, 0, trip, 0, 70 * ms, false},
		"the same, and the peer's": {0, 100 * ms, trip, 0, 200 * ms, false},
		"drifting clocks":          {0, 0, trip - standingTime - ms, 0, 0, false},
	} {
		var w waits
		w.take(c.ahead, c.behind, c.least, now.Add(-c.age))
		if w.judge(c.longer, trip, now); w.known != c.known {
			t.Errorf("%s: known %v", name, w.known)
		}
	}
	var never waits
	if never.judge(0, 0, now); never.known {
		t.Error("known although nothing was told")
	}
}

// The least delays that are known may have had a queue in them: it counts as our own, up to what round trips show.
func TestLeastDelaysWithAQueue(t *testing.T) {
	const ms = time.Millisecond
	r := route{least: 50 * ms, sharp: sharp{rtt: 120 * ms}, peer: farEnd{queue: peersQueue}}
	r.waits = waits{ahead: 10 * ms, behind: 40 * ms, least: 70 * ms, known: true}
	if q := r.queue(); q != 30*ms {
		t.Errorf("a queue of %v, want 30 ms", q)
	}
	r.waits.least = 200 * ms
	if q := r.queue(); q != 70*ms {
		t.Errorf("a queue of %v, want 70 ms", q)
	}
	r.peer.queue = 0 // nobody else sends: round trips tell
	if q := r.queue(); q != 70*ms {
		t.Errorf("alone a queue of %v, want 70 ms", q)
	}
}

// What is asked is answered alone, a connection's segments in pairs: on a thin line a shorter queue counts where it is told.
func TestSlackWhereItIsTold(t *testing.T) {
	const mbit, ms = 125000, time.Millisecond
	r := route{least: 50 * ms, segment: 1250, peer: farEnd{queue: peersQueue}}
	r.waits = waits{least: 50 * ms, known: true}
	if slack := r.slack(mbit); slack != standingTime+10*ms {
		t.Errorf("told: %v", slack)
	}
	r.peer.queue = 0
	if slack := r.slack(mbit); slack != standingTime+20*ms {
		t.Errorf("alone: %v", slack)
	}
}

// It is asked seldom while nobody else sends and no queue stands, not more often than a thin line takes for some segments, and hardly ever where
// nobody answers.
func TestAsks(t *testing.T) {
	for name, c := range map[string]struct {
		peer    time.Duration
		queue   time.Duration
		line    uint64
		answers bool
		want    int // in 30 s
	}{
		"alone":                 {0, 0, 1e7, true, 30 * 4},
		"beside the peer":       {peersQueue, 0, 1e7, true, 30 * 50},
		"in front of a queue":   {0, 2 * standingTime, 1e7, true, 30 * 50},
		"on a line of 1 Mbit/s": {peersQueue, 0, 125e3, true, 30 * 20},
		"no answers":            {peersQueue, 0, 1e7, false, 3*50 + 1 + 1},
	} {
		r, n := route{segment: testSegment, peer: farEnd{queue: c.peer}, sharp: sharp{rtt: c.queue}}, 0
		for at := time.Duration(0); at < 30*time.Second; at += tuneEvery {
			now := time.Unix(1000, 0).Add(at)
			if r.asks(c.line, now) {
				n++
			}
			if c.answers {
				r.waits.at = now
			}
		}
		if n != c.want {
			t.Errorf("%s: %d questions, want %d", name, n, c.want)
		}
	}
}

// On a far path nothing is asked, and what was told before does not count: it is old when it comes.
func TestFarPathIsNotTold(t *testing.T) {
	now := time.Unix(1000, 0)
	far := route{least: farTrip, segment: testSegment, peer: farEnd{queue: peersQueue}}
	if far.asks(1e7, now) {
		t.Error("it is asked")
	}
	far.waits.take(0, 0, farTrip, now)
	if far.waits.judge(0, farTrip, now); far.told() {
		t.Error("it counts")
	}
}

// Acknowledgements that wait for less time than before bring more in that time than the line carries; for longer, less is
// believed, as too high a rate makes a queue.
func TestRateOfAcknowledgementsThatWaited(t *testing.T) {
	now := time.Unix(1000, 0)
	for waited, want := range map[time.Duration]uint64{0: 1000e3, 25 * time.Millisecond: 800e3, -25 * time.Millisecond: 1000e3, time.Hour: 500e3} {
		var r round
		s := sight{segment: testSegment, told: true, back: time.Hour + waited}
		r.begin(s, now)
		s.arrived.bytes, s.back = 100e3, time.Hour
		if rate := r.rate(s, now.Add(100*time.Millisecond)); rate != want {
			t.Errorf("waited for %v: %d bytes/s, want %d", waited, rate, want)
		}
		if r.told = false; r.rate(s, now.Add(100*time.Millisecond)) != 1000e3 {
			t.Error("corrected although it was not known at the beginning")
		}
	}
}

// A queue that does not drain may be of what else goes to this peer, where the peer sends: it is left alone, but the
// line stays bounded. That it is gone is believed immediately.
func TestQueueAheadThatStays(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &pacer{line: 1e6, route: route{least: testRTT, base: testRTT, looked: now, peer: farEnd{queue: peersQueue, sent: now}}}
	p.route.disown(100*time.Millisecond, now)
	p.route.waits = waits{ahead: 100 * time.Millisecond, least: testRTT, at: now, known: true}
	if o := p.ceiling(); o.limit != 1.25e6 {
		t.Errorf("limit %d", o.limit)
	}
	s := sight{rtt: testRTT + 100*time.Millisecond, floor: testRTT, segment: testSegment}
	if p.route.observe(s, p.line, now); p.route.foreign == 0 {
		t.Error("the queue is forgotten while it stands")
	}
	p.route.waits.ahead, s.rtt = 0, testRTT
	if p.route.observe(s, p.line, now); p.route.foreign != 0 {
		t.Error("the queue is believed in although it is gone")
	}
	p.route.disown(100*time.Millisecond, now)
	p.route.waits.known = false
	if o := p.ceiling(); o.limit != unpaced {
		t.Errorf("not told: limit %d", o.limit)
	}
}
