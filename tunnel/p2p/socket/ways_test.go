package socket

import (
	"testing"
	"time"
)

// Where the other end tells whose queue it is, a flow beside the peer's keeps its line full and its own queue short, however
// long the peer's is and however it changes.
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
		if queue := l.wait(3*seconds, 0.99); queue > 40*time.Millisecond || rate < 0.9*c.rate/mbit {
			t.Errorf("%s: the queue is %v, at %.1f of %.0f Mbit/s", name, queue, rate, c.rate/mbit)
		}
	}
}

// What is told counts while it is fresh, and if it explains the connection's own round trips: a router may have a queue for
// each flow.
func TestToldIsJudged(t *testing.T) {
	const ms = time.Millisecond
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		ahead, behind, age, longer time.Duration
		known                      bool
	}{
		"fresh":              {30 * ms, 40 * ms, 0, 70 * ms, true},
		"no queue":           {0, 0, 50 * ms, 5 * ms, true},
		"old":                {30 * ms, 40 * ms, 200 * ms, 70 * ms, false},
		"a queue of its own": {5 * ms, 0, 0, 70 * ms, false},
	} {
		w := ways{every: askOften}
		w.take(c.ahead, c.behind, 50*ms, now.Add(-c.age))
		if w.judge(c.longer, now); w.known != c.known {
			t.Errorf("%s: known %v", name, w.known)
		}
	}
	var never ways
	if never.judge(0, now); never.known {
		t.Error("known although nothing was told")
	}
}

// The least delays that are known may have had a queue in them: it counts as our own, up to what round trips show.
func TestLeastDelaysWithAQueue(t *testing.T) {
	const ms = time.Millisecond
	r := route{least: 50 * ms, sharp: sharp{rtt: 120 * ms}, peer: farEnd{queue: peersQueue}}
	r.ways = ways{ahead: 10 * ms, behind: 40 * ms, least: 70 * ms, known: true}
	if q := r.queue(); q != 30*ms {
		t.Errorf("a queue of %v, want 30 ms", q)
	}
	r.ways.least = 200 * ms
	if q := r.queue(); q != 70*ms {
		t.Errorf("a queue of %v, want 70 ms", q)
	}
	r.peer.queue = 0 // nobody else sends: round trips tell
	if q := r.queue(); q != 70*ms {
		t.Errorf("alone a queue of %v, want 70 ms", q)
	}
}

// It is asked seldom while nobody else sends, and not more often than a thin line takes for some segments.
func TestAsks(t *testing.T) {
	for name, c := range map[string]struct {
		peer time.Duration
		line uint64
		want int
	}{
		"alone":                 {0, 1e7, 4},
		"beside the peer":       {peersQueue, 1e7, 50},
		"on a line of 1 Mbit/s": {peersQueue, 125e3, 20},
	} {
		r, n := route{segment: testSegment, peer: farEnd{queue: c.peer}}, 0
		for at := time.Duration(0); at < time.Second; at += tuneEvery {
			if r.asks(c.line, time.Unix(1000, 0).Add(at)) {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%s: %d questions a second, want %d", name, n, c.want)
		}
	}
}

// Acknowledgements that wait for less time than before bring more in that time than the line carries.
func TestRateOfAcknowledgementsThatWaited(t *testing.T) {
	now := time.Unix(1000, 0)
	for waited, want := range map[time.Duration]uint64{0: 1000e3, 25 * time.Millisecond: 800e3, -25 * time.Millisecond: 1333333, time.Hour: 500e3, -time.Hour: 2000e3} {
		var r round
		s := sight{segment: testSegment, back: time.Hour + waited}
		r.begin(s, now)
		s.arrived.bytes, s.back = 100e3, time.Hour
		if rate := r.rate(s, now.Add(100*time.Millisecond)); rate != want {
			t.Errorf("waited for %v: %d bytes/s, want %d", waited, rate, want)
		}
	}
}
