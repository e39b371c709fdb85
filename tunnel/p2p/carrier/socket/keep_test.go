package socket

import (
	"testing"
	"time"
)

func always(share float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return share }
}

// While more is on the way than fits, even if the line carried what is tried, no more is sent than is delivered, for a while; what
// has arrived behind a hole is not on the way.
func TestCap(t *testing.T) {
	const line, delivered, once = 4e6, 1.6e6, capTime + testRTT
	for name, c := range map[string]struct {
		trip   time.Duration
		full   func(after time.Duration) float64 // what is on the way, as a share of what fits
		every  time.Duration                     // between deliveries
		change func(p *pacer)
		want   time.Duration // capped for so long
	}{
		"it fits":             {testRTT, always(1), tuneEvery, nil, 0},
		"too much":            {testRTT, always(1.5), tuneEvery, nil, once},
		"delivered in bursts": {testRTT, always(1.5), 3 * tuneEvery, nil, once},
		"it fits now and then": {testRTT, func(after time.Duration) float64 {
			return 1 + 0.5*float64(after/(2*tuneEvery)%2)
		}, tuneEvery, nil, once / 2},
		"it fits for a while": {testRTT, func(after time.Duration) float64 {
			return 1.5 - 0.5*float64(after/(4*testRTT)%2)
		}, tuneEvery, nil, once + 2*testRTT},
		"the limit was higher a moment ago": {testRTT, always(1.5), tuneEvery, func(p *pacer) {
			p.keep.most, p.keep.set = 2*line, time.Unix(1e6, 0)
		}, 0},
		"a far path":    {farTrip, always(1.5), tuneEvery, nil, 0},
		"others' queue": {testRTT, always(1.5), tuneEvery, func(p *pacer) { p.route.foreign, p.route.until = 1, time.Unix(1e6, 0) }, 0},
		"a queue that drains": {testRTT, always(1.5), tuneEvery, func(p *pacer) {
			p.hold = hold{since: time.Unix(1e6, 0), asked: time.Unix(1e6, 0), first: time.Hour}
			p.route.sharp.rtt = 2 * testRTT
		}, 0},
	} {
		now := time.Unix(1000, 0)
		p, s := busyLine(line)
		p.route.least, p.route.base, p.probe.next, p.probe.aim = c.trip, c.trip, now.Add(time.Hour), 2*line
		s.rtt, s.floor, s.recent = c.trip, c.trip, c.trip
		look := func() {
			now = now.Add(tuneEvery)
			if now.UnixNano()%int64(c.every) == 0 {
				s.arrived.bytes += uint64(delivered * c.every.Seconds())
				s.arrived.segments = uint32(s.arrived.bytes / testSegment)
			}
			p.route.looked = now // BBR is not restarted
			p.decide(s, now)
		}
		for range 100 {
			look()
		}
		if c.change != nil {
			c.change(p)
		}
		var capped time.Duration
		for after := time.Duration(0); after < 10*testRTT; after += tuneEvery {
			s.inFlight = uint64(c.full(after) * p.route.fits(max(p.limit, line)))
			if look(); p.extras.alone == p.limit {
				continue
			}
			if capped += tuneEvery; p.extras.alone < 0.8*delivered || p.extras.alone > 1.2*delivered {
				t.Errorf("%s: %d bytes per second where %.0f are delivered", name, p.extras.alone, delivered)
			}
		}
		if d := capped - c.want; d.Abs() > 2*tuneEvery {
			t.Errorf("%s: capped for %v, want %v", name, capped, c.want)
		}
	}
}

// Only times between deliveries are gaps.
func TestGaps(t *testing.T) {
	var g gaps
	now := time.Unix(1000, 0)
	look := func(came uint32, underWay uint64) {
		now = now.Add(tuneEvery)
		g.look(sight{arrived: traffic{segments: g.segments + came}, underWay: underWay}, now)
	}
	for range 5 {
		look(0, 1) // the first round trip
	}
	for range 50 {
		look(1, 1)
		look(0, 1)
		look(0, 1)
	}
	if g.longest != 2*tuneEvery {
		t.Errorf("the longest is %v", g.longest)
	}
	look(1, 0)
	for range 20 {
		look(0, 1) // the first round trip after a pause
	}
	if g.longest != 2*tuneEvery {
		t.Errorf("the longest is %v after a pause", g.longest)
	}
	for range 2 * gapWindow / tuneEvery {
		look(1, 1)
	}
	if longest := max(g.longest, g.before); longest != 0 {
		t.Errorf("%v is not forgotten", longest)
	}
}

// A queue that goes sooner than less was sent was none, unless less was to be sent.
func TestQueueThatGoesSoon(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		stand, drain int // looks at which data waited, of ten
		want         uint64
	}{
		"busy":            {10, 10, 3e6},
		"pausing":         {0, 0, 1e6},
		"pausing at last": {10, 0, 1e6},
	} {
		p := pacer{line: 3e6, limit: 3e6, probe: prober{carried: now.Add(-time.Second)}, route: route{least: testRTT},
			stand: round{since: now.Add(-testRTT), looks: 10, waiting: c.stand}}
		s := sight{rtt: 2 * testRTT, segment: testSegment}
		p.beginDrain(s, 1e6, now)
		p.round.looks, p.round.waiting = 10, c.drain
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
	for back, want := range map[time.Duration]uint64{0: 99_000, 5 * time.Millisecond: 98_500, 200 * time.Millisecond: 79_000,
		400 * time.Millisecond: 59_000} {
		if got := h.then(h.at - back); got < want-100 || got > want+100 {
			t.Errorf("%v ago: %d, want %d", back, got, want)
		}
	}
	if rate := h.over(300 * time.Millisecond); rate < 99_000 || rate > 101_000 {
		t.Errorf("%.0f per second, want 100000", rate)
	}
	if got := h.then(h.at - time.Hour); got > 59_000 {
		t.Errorf("an hour ago: %d", got)
	}
	if h.add(5, 0, now.Add(time.Second)); h.count != 99_000 || h.over(time.Second) < 0 {
		t.Errorf("it fell to %d", h.count)
	}
}
