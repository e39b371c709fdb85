package socket

import (
	"testing"
	"time"
)

// While more is on the way than fits, even if the line carried what is tried, no more is sent than arrives, for a while; what has
// arrived behind a hole is not on the way.
func TestNoMoreIsSentThanArrives(t *testing.T) {
	const line, limit, arrives = 4e6, 4.8e6, 1.6e6
	for name, c := range map[string]struct {
		trip  time.Duration
		full  float64 // what is on the way, as a share of what fits
		every time.Duration
		was   float64 // the limit a moment ago
		want  float64
		keeps time.Duration // for so long
	}{
		"it fits":                    {testRTT, 1, tuneEvery, limit, limit, 0},
		"too much":                   {testRTT, 1.2, tuneEvery, limit, arrives, keepTime + testRTT},
		"in bursts":                  {testRTT, 1.2, 3 * tuneEvery, limit, arrives, keepTime + testRTT},
		"as much as was sent before": {testRTT, 1.2, tuneEvery, 2 * limit, limit, 0},
		"a far path":                 {farTrip, 1.2, tuneEvery, limit, limit, 0},
	} {
		now := time.Unix(1000, 0)
		p, s := busyLine(line)
		p.route.least, p.route.base = c.trip, c.trip
		s.rtt, s.floor, s.recent = c.trip, c.trip, c.trip
		arrive := func() sight {
			now = now.Add(tuneEvery)
			if now.UnixNano()%int64(c.every) == 0 {
				s.arrived.bytes += uint64(arrives * c.every.Seconds())
			}
			return s
		}
		for range 100 {
			p.keep.look(arrive(), &p.route, line, now)
		}
		s.inFlight = uint64(c.full * limit * c.trip.Seconds())
		p.keep.on(s, &p.route, line, uint64(c.was), 0, now)
		p.keep.since = time.Time{}
		began, kept := now, time.Duration(0)
		for now.Sub(began) < c.trip/2 || c.keeps > 0 && now.Sub(began) < time.Second {
			p.keep.look(arrive(), &p.route, line, now)
			p.limit = limit
			p.set(s, order{}, now)
			if p.extras.alone == limit {
				continue
			}
			if kept += tuneEvery; float64(p.extras.alone) < 0.8*c.want || float64(p.extras.alone) > 1.2*c.want {
				t.Errorf("%s: limit %d, want %.0f", name, p.extras.alone, c.want)
			}
		}
		if d := kept - c.keeps; d.Abs() > 2*tuneEvery {
			t.Errorf("%s: for %v, want %v", name, kept, c.keeps)
		}
	}
}

// A queue that goes sooner than less was sent was none, unless nothing more was to be sent.
func TestQueueOfAPause(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		waiting int // looks at which data waited, of ten
		want    uint64
	}{"busy": {10, 3e6}, "pausing": {0, 1e6}} {
		p := pacer{line: 3e6, limit: 3e6, probe: prober{carried: now.Add(-time.Second)}, route: route{least: testRTT},
			stand: round{since: now.Add(-testRTT), looks: 10, waiting: c.waiting}}
		s := sight{rtt: 2 * testRTT, segment: testSegment}
		p.beginDrain(s, 1e6, now)
		if p.endDrain(s, now.Add(testRTT/2)); p.line != c.want {
			t.Errorf("%s: the line is %d, want %d", name, p.line, c.want)
		}
	}
}

// The past is told between looks, too, as far back as was asked for.
func TestHistory(t *testing.T) {
	var h history
	now := time.Unix(1000, 0)
	for i := range uint64(100) {
		h.add(i*1000, 400*time.Millisecond, now.Add(time.Duration(i)*tuneEvery))
	}
	for back, want := range map[time.Duration]uint64{0: 99_000, 5 * time.Millisecond: 98_500, 200 * time.Millisecond: 79_000, 400 * time.Millisecond: 59_000} {
		if got := h.then(h.at - back); got < want-100 || got > want+100 {
			t.Errorf("%v ago: %d, want %d", back, got, want)
		}
	}
	if rate := h.over(300 * time.Millisecond); rate < 99_000 || rate > 101_000 {
		t.Errorf("%.0f per second, want 100000", rate)
	}
	if h.add(5, 0, now.Add(time.Second)); h.count != 99_000 || h.over(time.Second) < 0 {
		t.Errorf("it fell to %d", h.count)
	}
}
