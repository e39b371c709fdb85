package socket

import (
	"math"
	"testing"
	"time"
)

// busyLine is a pacer on a line, and what is seen while data wait and arrive at its rate, which BBR takes for another one.
func busyLine(estimate uint64) (*pacer, sight) {
	const line = 4e6
	return &pacer{line: line, limit: line, route: route{least: testRTT, base: testRTT, looked: time.Unix(1000, 0)}},
		sight{rate: estimate, rtt: testRTT, floor: testRTT, recent: testRTT, segment: testSegment, underWay: line, unsent: true}
}

// restart runs the line until BBR is restarted, and returns when; 0: not within 2 s.
func restart(p *pacer, s sight, now time.Time, every func(after time.Duration, s *sight)) time.Duration {
	p.round.begin(s, now)
	for after := tuneEvery; after < 2*time.Second; after += tuneEvery {
		sent := 4e6 * after.Seconds()
		s.sent = traffic{uint64(sent), uint32(sent / testSegment)}
		s.arrived = s.sent
		if every != nil {
			every(after, &s)
		}
		if p.decide(s, now.Add(after)).restart {
			return after
		}
	}
	return 0
}

// While losses are repaired a restart would leave BBR what is in flight, so it waits for their end, a round at most.
func TestRestartWaitsForRepairs(t *testing.T) {
	now := time.Unix(1000, 0)
	p, s := busyLine(1e6)
	first := restart(p, s, now, nil)
	if first == 0 {
		t.Fatal("no restart")
	}
	for name, c := range map[string]struct {
		inFlight uint64
		end      time.Duration
		from, to time.Duration
	}{
		"they end soon":       {4 * testSegment, first + 30*time.Millisecond, first + 30*time.Millisecond, first + 40*time.Millisecond},
		"they do not":         {4 * testSegment, time.Hour, first + testRTT/2, 3 * first},
		"the window is large": {4e6, time.Hour, first, first},
	} {
		p, s := busyLine(1e6)
		got := restart(p, s, now, func(after time.Duration, s *sight) { s.repairs, s.inFlight = after < c.end, c.inFlight })
		if got < c.from || got > c.to {
			t.Errorf("%s: restart after %s, not %s to %s; %s without repairs", name, got, c.from, c.to, first)
		}
	}
}

// BBR that believes in more than is tried needs no restart, which would make it forget that.
func TestNoRestartWhereMoreIsKnown(t *testing.T) {
	p, s := busyLine(20e6)
	if after := restart(p, s, time.Unix(1000, 0), nil); after != 0 {
		t.Errorf("restart after %s", after)
	}
	if p.limit < 4e6*1.05 {
		t.Errorf("limit %d: nothing was tried", p.limit)
	}
}

// BBR is restarted before it empties the path to see a round trip that is known, at the line's rate.
func TestKnownRoundTripIsNotLookedFor(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(after time.Duration, s *sight)
		from, to time.Duration // 0: never
	}{
		"full":            {nil, sureTime, sureTime + 100*time.Millisecond},
		"after a look":    {func(after time.Duration, s *sight) { s.emptied = after == 4*time.Second }, 4*time.Second + sureTime, 12 * time.Second},
		"a queue":         {func(_ time.Duration, s *sight) { s.rtt += 3 * standingTime }, 0, 0},
		"little to send":  {func(_ time.Duration, s *sight) { s.underWay = 20 * testSegment }, 0, 0},
		"pings":           {func(_ time.Duration, s *sight) { s.underWay, s.unsent = quietSegments*testSegment, false }, restTime, restTime + 100*time.Millisecond},
		"a pause":         {func(_ time.Duration, s *sight) { s.underWay, s.unsent, s.paused = 0, false, time.Second }, restTime, restTime + 100*time.Millisecond},
		"losses":          {func(_ time.Duration, s *sight) { s.repairs = true }, 0, 0},
		"losses of a few": {func(_ time.Duration, s *sight) { s.repairs, s.inFlight = true, s.underWay }, sureTime, sureTime + 100*time.Millisecond},
		"another route":   {func(_ time.Duration, s *sight) { s.floor = testRTT / 3 }, 0, 0},
		"a longer one":    {func(_ time.Duration, s *sight) { s.floor = testRTT / 3 * 2 }, 0, 0},
	} {
		p, s := busyLine(20e6)
		var got time.Duration
		for after := tuneEvery; after < 15*time.Second && got == 0; after += tuneEvery {
			seen := s
			sent := 4e6 * after.Seconds()
			seen.sent = traffic{uint64(sent), uint32(sent / testSegment)}
			seen.arrived = seen.sent
			if c.change != nil {
				c.change(after, &seen)
			}
			if o := p.decide(seen, time.Unix(1000, 0).Add(after)); o.restart {
				if got = after; p.limit != p.line {
					t.Errorf("%s: limit %d on a line of %d", name, p.limit, p.line)
				}
			}
		}
		if got < c.from || got > c.to {
			t.Errorf("%s: restart after %s, not %s to %s", name, got, c.from, c.to)
		}
	}
}

// Nor while more is tried: what is tried stays.
func TestKnownRoundTripIsNotLookedForWhileProbing(t *testing.T) {
	now := time.Unix(1000, 0)
	p, s := busyLine(20e6)
	p.limit, p.probe = 8e6, prober{since: now, from: 4e6, aim: 6e6, step: 1}
	p.round.begin(s, now)
	for after, want := range map[time.Duration]bool{sureTime - time.Second: false, sureTime + time.Second: true} {
		q := *p
		q.route.looked = now.Add(-after)
		if o := q.decide(s, now.Add(tuneEvery)); o.restart != want || q.limit != 8e6 || q.probe.since.IsZero() {
			t.Errorf("%v after the last look: restart %v, limit %d", after, o.restart, q.limit)
		}
	}
}

// Where a few segments are always lost, a small step succeeds as well.
func TestStepOnALossyLine(t *testing.T) {
	for lost, want := range map[float64]uint64{0: 4e6, 0.05: 4.2e6} {
		now := time.Unix(1000, 0)
		p := &pacer{line: 4e6, limit: 4.2e6, tried: 4.2e6, stood: now, lost: losses{least: lost, rounds: 20},
			route: route{least: testRTT, base: testRTT, looked: now}, probe: prober{since: now, from: 4e6, aim: 4.1e6, step: 0.05}}
		var s sight
		s.rtt, s.floor, s.recent, s.segment, s.underWay, s.unsent = testRTT, testRTT, testRTT, testSegment, 1e6, true
		p.round.begin(s, now)
		for after := tuneEvery; after <= 200*time.Millisecond; after += tuneEvery {
			sent := 4.2e6 * after.Seconds()
			s.sent = traffic{uint64(sent), uint32(sent / testSegment)}
			s.arrived = segments(uint32(0.95 * sent / testSegment))
			s.resent = uint32(0.05 * sent / testSegment)
			p.decide(s, now.Add(after))
		}
		if p.line < want/100*98 || p.line > want/100*102 {
			t.Errorf("%.0f %% lost: %d, want %d", 100*lost, p.line, want)
		}
	}
}

// A queue that stands while much more than the line's rate is tried ends that before the rate is known.
func TestHighStepIsTakenBack(t *testing.T) {
	now := time.Unix(1000, 0)
	p, s := busyLine(4e6)
	p.probe.open, p.probe.step, p.limit = true, 1, 8e6
	p.round.begin(s, now)
	s.rtt += 3 * standingTime
	for i := range fewLooks {
		if now = now.Add(tuneEvery); p.limit != 8e6 {
			t.Fatalf("%d looks at a queue: limit %d", i, p.limit)
		}
		p.decide(s, now)
	}
	if p.limit > 4e6*(1+newStep) || !p.hold.since.IsZero() {
		t.Errorf("limit %d", p.limit)
	}
}

// A queue that the limit of an open line has made tells what the line carries: the next step is a small one.
func TestQueueOfAnOpenLine(t *testing.T) {
	now := time.Unix(1000, 0)
	p, s := busyLine(4e6)
	p.probe.open, p.probe.step, p.stood = true, 1, now
	p.beginDrain(s, 4e6, now)
	p.endDrain(s, now.Add(time.Second))
	if o := p.beginProbe(s, now.Add(2*time.Second)); o.limit > 4e6*(1+newStep) {
		t.Errorf("limit %d on a line of 4000000", o.limit)
	}
}

// On a thin line a queue grows for longer until its rate is told, so steps are smaller.
func TestStepOfAThinLine(t *testing.T) {
	for line, want := range map[uint64]float64{250e3: 0.05, 4e6: 0.25} {
		p := &pacer{line: line, route: route{least: 10 * time.Millisecond, segment: testSegment}}
		if got := float64(p.ceiling().limit)/float64(line) - 1; math.Abs(got-want) > 0.01 {
			t.Errorf("%d bytes/s: %.2f more, want %.2f", line, got, want)
		}
	}
}

// A line that was faster a moment ago is tried with that as soon as it carries a little more.
func TestFormerRateIsTried(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &pacer{line: 5e6, route: route{least: testRTT, base: testRTT}}
	p.probe.newLine(20e6, now)
	p.probe.newLine(8e6, now.Add(time.Second)) // on the way down
	p.probe.from, p.probe.step = 4e6, 0.25
	for after, want := range map[time.Duration]uint64{2 * time.Second: 15e6, fallTime + time.Second: 7.5e6} {
		q := *p
		if o := q.probing(sight{rtt: testRTT}, round{}, 5e6, 6e6, now.Add(after)); o.limit != want {
			t.Errorf("%v after the fall: %d, want %d", after, o.limit, want)
		}
	}
}

// Pauses between probes that find nothing double.
func TestPauses(t *testing.T) {
	var b prober
	now := time.Unix(1000, 0)
	for i, want := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
		if b.backOff(now); b.next.Sub(now) != want {
			t.Errorf("pause %d: %v, want %v", i, b.next.Sub(now), want)
		}
	}
}

// What BBR believes is not taken for the line's rate while a queue stands that may be the peer's: acknowledgements that waited
// in it come together.
func TestSamplesWhileAcknowledgementsWait(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		p, s := busyLine(6e6)
		p.doubt, p.limit = doubt, p.line
		p.probe = prober{since: time.Unix(1000, 0), from: p.line, step: 1, fresh: true, rounds: leastRounds}
		p.probing(s, round{}, p.line, 8e6, time.Unix(1000, 0))
		if more := p.line > 4e6; more == doubt {
			t.Errorf("doubt %v: %d bytes/s of 4000000", doubt, p.line)
		}
	}
}

// A round in which acknowledgements came together makes the line look faster: it becomes what BBR and later rounds say.
func TestLineIsNotTooHighForLong(t *testing.T) {
	const line = 4e6
	for name, c := range map[string]struct{ estimate, least, most uint64 }{
		"BBR knows less":    {line, line * 99 / 100, line * 102 / 100},
		"BBR knows as much": {line * 9 / 8, line * 9 / 8, line * 9 / 8},
	} {
		now := time.Unix(1000, 0)
		p, s := busyLine(c.estimate)
		p.line, p.limit, p.stood, p.probe.next, p.probe.aim = line*9/8, line*10/8, now, now.Add(time.Hour), line*2
		p.round.begin(s, now)
		for after := tuneEvery; after < 2*time.Second; after += tuneEvery {
			sent := line * after.Seconds()
			s.sent = traffic{uint64(sent), uint32(sent / testSegment)}
			s.arrived = s.sent
			p.decide(s, now.Add(after))
		}
		if p.line < c.least || p.line > c.most {
			t.Errorf("%s: the line is %d, want %d to %d", name, p.line, c.least, c.most)
		}
	}
}

// BBR's estimate, when a start's queue begins, is of the rounds before, in which less was sent: what arrives while the queue
// drains tells an unknown line, also if acknowledgements come together at first. Of a known one it may be what had been sent
// before the line changed.
func TestLineOfAStart(t *testing.T) {
	const estimate, arrives = 1.5e6, 425 * 4 * testSegment
	for before, want := range map[uint64]float64{0: arrives, 3e6: estimate} {
		now := time.Unix(1000, 0)
		p := pacer{line: before, limit: 6e6, route: route{least: 600 * time.Millisecond}}
		s := sight{rtt: 650 * time.Millisecond, segment: testSegment}
		p.beginDrain(s, estimate, now)
		p.stand.begin(s, now)
		for _, n := range []uint32{170, 170, 28, 28, 29} {
			now = now.Add(50 * time.Millisecond)
			s.arrived = segments(s.arrived.segments + n)
			p.draining(s, 50*time.Millisecond, now)
		}
		p.stand = round{} // the queue is gone
		p.draining(s, 15*time.Millisecond, now)
		if p.endDrain(s, now); float64(p.line) < want*0.99 || float64(p.line) > want*1.01 {
			t.Errorf("from %d: the line is %d, want %.0f", before, p.line, want)
		}
	}
}

// A flow that grows, with pauses, does not meet a limit that only stems from what it sent before, whatever the moment at which
// its line is found.
func TestGrowingFlow(t *testing.T) {
	const runs = 20
	rate := 0.0
	for run := range runs {
		known := (1.2 + 0.03*float64(run)) * mbit
		l, s := &line{rate: steady(200 * mbit), trip: 100 * time.Millisecond, buffer: 200 * mbit * 0.05}, newSender(&pacer{line: uint64(known), limit: uint64(1.06 * known)})
		s.stopped = func(at time.Duration) bool { return at%(500*time.Millisecond) > 400*time.Millisecond }
		for at := 200 * time.Millisecond; at < 4*seconds; at += 200 * time.Millisecond {
			s.wants = min(1*mbit*float64(uint64(1)<<(at/(200*time.Millisecond))), 150*mbit)
			l.run(at, s)
		}
		one := l.goodput(s, 4*seconds, 8*seconds)
		if rate += one / runs; one < 20 { // some find the line late
			t.Errorf("from %.0f bytes/s: %.1f of 150 Mbit/s", known, one)
		}
	}
	if rate < 107 { // it sends for four fifths of the time
		t.Errorf("%.1f of 150 Mbit/s", rate)
	}
}

// A far line that loses about as much as a step of too much would is not sent that step.
func TestOvershot(t *testing.T) {
	for name, c := range map[string]struct {
		step, always float64
		lost, of     uint32
		want         bool
	}{
		"nothing lost":               {0.4, 0, 0, 60, false},
		"as much as the step":        {0.4, 0, 17, 60, true},
		"a few":                      {0.4, 0, 3, 60, false},
		"a line that loses so much":  {0.4, 0.2, 17, 60, false},
		"a small step":               {0.1, 0, 6, 60, true},
		"a small step, one":          {0.1, 0, 1, 60, false},
		"a small step, two, by luck": {0.05, 0, 2, 60, false},
	} {
		if got := new(round).overshot(sight{resent: c.lost, sent: traffic{segments: c.of}}, c.step, c.always); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
