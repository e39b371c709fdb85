package socket

import (
	"math/rand/v2"
	"testing"
	"time"
)

const seconds = time.Second

// A flow fills lines of every shape, and no queue stands in front of them.
func TestLines(t *testing.T) {
	for name, c := range map[string]struct {
		line  line
		share float64       // of what the line carries
		queue time.Duration // 99th percentile
		drops float64       // share of what was sent
	}{
		"thin, deep queue":   {line{rate: steady(2 * mbit), trip: 80, buffer: 2 * mbit * 0.5}, 0.97, 80, 0},
		"thin, short queue":  {line{rate: steady(2 * mbit), trip: 150, buffer: 2 * mbit * 0.05}, 0.97, 42, 0.001},
		"DSL":                {line{rate: steady(30 * mbit), trip: 80, buffer: 30 * mbit * 0.05}, 0.97, 30, 0.01},
		"DSL with losses":    {line{rate: steady(30 * mbit), trip: 80, buffer: 30 * mbit * 0.05, loss: 0.03}, 0.96, 30, 0.01},
		"fast":               {line{rate: steady(100 * mbit), trip: 10, buffer: 100 * mbit * 0.05}, 0.97, 25, 0.01},
		"satellite":          {line{rate: steady(10 * mbit), trip: 600, buffer: 10 * mbit * 0.1}, 0.8, 50, 0.001},
		"varies":             {line{rate: varying(20 * mbit), trip: 150, buffer: 20 * mbit * 0.05}, 0.85, 130, 0.25},
		"varies, deep queue": {line{rate: varying(200 * mbit), trip: 50, buffer: 200 * mbit * 0.5}, 0.9, 900, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := c.line, newSender(&pacer{})
			l.trip *= time.Millisecond
			const warm, end = 3 * seconds, 33 * seconds
			l.run(warm, s)
			got, sent, dropped := s.got, s.sent, l.dropped
			l.run(end, s)
			var most float64
			for at := warm; at < end; at += tick {
				most += l.rate(at) * tick.Seconds()
			}
			share, queue, drops := (s.got-got)/most, l.wait(warm, 0.99), (l.dropped-dropped)/(s.sent-sent)
			t.Logf("%.3f of the line, queue %v, %.3f dropped, %d restarts", share, queue, drops, s.restarts)
			if share < c.share || queue > c.queue*time.Millisecond || drops > c.drops {
				t.Errorf("want %v, %v ms, %v", c.share, int(c.queue), c.drops)
			}
		})
	}
}

// dsl is a line that most tests use.
func dsl() *line {
	return &line{rate: steady(30 * mbit), trip: 80 * time.Millisecond, buffer: 30 * mbit * 0.2}
}

// A flow that sends less than the line carries is never held below what it sends.
func TestSlowSource(t *testing.T) {
	l, s := dsl(), newSender(&pacer{})
	s.wants = 10 * mbit
	l.run(30*seconds, s)
	if got := s.got / 30 / mbit; got < 9.5 || s.restarts > 0 {
		t.Errorf("%.1f of 10 Mbit/s, %d restarts", got, s.restarts)
	}
}

// BBR loses its rate after losses while a flow inside begins, and would regain a quarter in eight round trips.
func TestLostRateIsFound(t *testing.T) {
	l, s := dsl(), newSender(&pacer{})
	l.run(10*seconds, s)
	s.estimate, s.samples, s.starting = 1*mbit, nil, false
	if rate := l.goodput(s, 11*seconds, 13*seconds); rate < 28 {
		t.Errorf("a second later %.1f of 30 Mbit/s", rate)
	}
}

// A line that becomes slower is followed, and no queue stays; when it is faster again, that is found.
func TestLineChanges(t *testing.T) {
	rates := make([]float64, 10, 30)
	for i := range rates {
		rates[i] = 30 * mbit
	}
	for range 10 {
		rates = append(rates, 6*mbit)
	}
	l, s := dsl(), newSender(&pacer{})
	l.rate = steps(append(rates, 30*mbit)...)
	l.run(20*seconds, s)
	if queue := l.wait(13*seconds, 0.95); queue > 40*time.Millisecond {
		t.Errorf("3 s after the line has become slower the queue is %v", queue)
	}
	if rate := l.goodput(s, 22*seconds, 24*seconds); rate < 27 {
		t.Errorf("2 s after it has become faster again %.1f of 30 Mbit/s", rate)
	}
}

// A direction in which only acknowledgements went knows the rate of a faster line: the queue that this makes drains.
func TestStaleRate(t *testing.T) {
	l := &line{rate: steady(2 * mbit), trip: 50 * time.Millisecond, buffer: 2 * mbit * 0.5}
	s := l.stale(10 * mbit)
	l.run(10*seconds, s)
	if queue := l.wait(3*seconds, 0.99); queue > 80*time.Millisecond {
		t.Errorf("the queue is %v", queue)
	}
}

// A queue of others does not drain, however little is sent: it is left to them.
func TestOthersQueue(t *testing.T) {
	l, s := dsl(), newSender(&pacer{})
	s.late = func(at time.Duration) time.Duration {
		if at < 10*seconds {
			return 0
		}
		return 100 * time.Millisecond
	}
	if rate := l.goodput(s, 10*seconds, 40*seconds); rate < 26 {
		t.Errorf("%.1f of 30 Mbit/s", rate)
	}
}

// A link that stops for 5 s, at any moment, has its rate again within 5 s; so has a source.
func TestStop(t *testing.T) {
	for _, what := range []string{"link", "source"} {
		for from := 10 * seconds; from < 12*seconds; from += 130 * time.Millisecond {
			l, s := dsl(), newSender(&pacer{})
			stopped := func(at time.Duration) bool { return at >= from && at < from+5*seconds }
			if what == "source" {
				s.stopped = stopped
			} else {
				l.rate = func(at time.Duration) float64 {
					if stopped(at) {
						return 0
					}
					return 30 * mbit
				}
			}
			if rate := l.goodput(s, from+8*seconds, from+10*seconds); rate < 25 {
				t.Errorf("%s stopped at %v: 3 s later %.1f of 30 Mbit/s", what, from, rate)
			}
		}
	}
}

// A link that stops while BBR starts is no line that overflows, and what comes after it is not what it carries.
func TestStartStops(t *testing.T) {
	for from := 100 * time.Millisecond; from < 2*seconds; from += 110 * time.Millisecond {
		p := pacer{route: route{least: testRTT, base: testRTT}}
		now := time.Unix(1000, 0)
		const line = 12.5e6
		for after := tuneEvery; after < from+6*seconds; after += tuneEvery {
			arrives := min(after, from) + max(0, after-from-5*seconds)
			sent := uint64(line * (arrives + time.Second).Seconds())
			s := sight{rate: line, starting: true, rtt: testRTT, floor: testRTT, recent: testRTT, segment: testSegment,
				underWay: 20 * testSegment, unsent: true, sent: traffic{sent, uint32(sent / testSegment)}}
			s.arrived = segments(uint32(line * arrives.Seconds() / testSegment))
			if after > from+time.Second { // what was on the way
				s.resent = uint32(line * testRTT.Seconds() / testSegment)
			}
			p.decide(s, now.Add(after))
			if p.line > 0 && p.line < line/2 {
				t.Fatalf("stopped at %v: the line is %d of %d", from, p.line, int(line))
			}
		}
	}
}

// Bursts with pauses between them, as of a web server, are not held at the rate of the pauses.
func TestBursts(t *testing.T) {
	l, s := dsl(), newSender(&pacer{})
	s.stopped = func(at time.Duration) bool { return at%(4*seconds) > seconds }
	if rate := 4 * l.goodput(s, 20*seconds, 60*seconds); rate < 24 {
		t.Errorf("%.1f of 30 Mbit/s", rate)
	}
}

// A line that loses a fifth of the segments whatever is sent keeps its rate.
func TestManyLosses(t *testing.T) {
	l, s := dsl(), newSender(&pacer{})
	l.trip, l.loss = 100*time.Millisecond, 0.2
	if rate := l.goodput(s, 10*seconds, 40*seconds); rate < 20 {
		t.Errorf("%.1f of 30 Mbit/s", rate)
	}
}

// A radio link delivers in bursts, and round trips are longer than the least nearly always.
func TestJitter(t *testing.T) {
	const runs = 40
	for _, most := range []time.Duration{30 * time.Millisecond, 100 * time.Millisecond} {
		rate, slow := 0.0, 0
		for seed := range uint64(runs) {
			l, s := dsl(), newSender(&pacer{})
			r := rand.New(rand.NewPCG(3, seed))
			var late []time.Duration
			for range 10_000 {
				late = append(late, time.Duration(r.Int64N(int64(most))))
			}
			s.late = func(at time.Duration) time.Duration { return late[int(at/(20*time.Millisecond))%len(late)] }
			l.rate = func(at time.Duration) float64 { return 30 * mbit * float64(at/(30*time.Millisecond)%3) }
			one := l.goodput(s, 5*seconds, 65*seconds)
			rate += one / runs
			if one < 16 {
				slow++
				t.Logf("up to %v, %d: %.1f of 30 Mbit/s", most, seed, one)
			}
		}
		if slow > 1 {
			t.Errorf("up to %v: %d of %d below 16 Mbit/s", most, slow, runs)
		}
		if rate < 22 {
			t.Errorf("up to %v: %.1f of 30 Mbit/s", most, rate)
		} else {
			t.Logf("up to %v: %.1f of 30 Mbit/s", most, rate)
		}
	}
}

// Two flows share a line, and neither starves beside BBR alone, be it the first or the second.
func TestFairness(t *testing.T) {
	for name, c := range map[string]struct {
		first, second *pacer
		least         float64
	}{
		"two":          {&pacer{}, &pacer{}, 0.15},
		"BBR comes":    {&pacer{}, nil, 0.1},
		"BBR is there": {nil, &pacer{}, 0.15},
		"BBR alone":    {nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, a, b := dsl(), newSender(c.first), newSender(c.second)
			l.run(5*seconds, a)
			l.run(10*seconds, a, b)
			gotA, gotB := a.got, b.got
			l.run(70*seconds, a, b)
			gotA, gotB = a.got-gotA, b.got-gotB
			t.Logf("%.1f and %.1f Mbit/s, queue %v", gotA/60/mbit, gotB/60/mbit, l.wait(10*seconds, 0.5))
			if part := min(gotA, gotB) / (gotA + gotB); part < c.least {
				t.Errorf("one has %.2f, want %.2f", part, c.least)
			}
			if all := (gotA + gotB) / 60 / mbit; all < 27 {
				t.Errorf("together %.1f of 30 Mbit/s", all)
			}
		})
	}
}

const testRTT = 50 * time.Millisecond

// show shows the pacer the same sight every 10 ms, until it orders something.
func show(p *pacer, s sight, now *time.Time, d time.Duration) order {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(tuneEvery)
		if o := p.decide(s, *now); o != (order{}) {
			return o
		}
	}
	return order{}
}

// An idle connection's answers come late, since each segment is acknowledged late: that is no queue.
func TestLateAnswersAreNoQueue(t *testing.T) {
	p := pacer{line: 4e6, limit: 4e6, route: route{least: testRTT}}
	now := time.Unix(1000, 0)
	s := sight{rate: 4e6, rtt: 5 * testRTT, floor: testRTT, recent: testRTT, segment: testSegment, underWay: 2 * testSegment}
	for range 1000 {
		now = now.Add(tuneEvery)
		s.arrived = segments(s.arrived.segments + 1)
		if o := p.decide(s, now); o.limit != 0 && o.limit < 4e6 {
			t.Fatalf("after %d segments: %+v", s.arrived.segments, o)
		}
	}
}

// On a path that processors limit there is no limit, also when it was another one before, unless a long queue stands.
func TestNearPathIsLeft(t *testing.T) {
	p := pacer{line: 1e6, limit: 1e6, set: 1e6, route: route{least: testRTT}}
	now := time.Unix(1000, 0)
	near := sight{rate: 1e9, rtt: swiftRTT / 2, segment: testSegment, underWay: 1e6, unsent: true}
	if o := show(&p, near, &now, time.Second); o != (order{limit: unpaced}) {
		t.Fatalf("%+v", o)
	}
	near.rtt = 20 * swiftRTT
	if o := show(&p, near, &now, 100*time.Millisecond); o != (order{}) {
		t.Errorf("%+v", o)
	}
	near.rtt = 2 * nearQueue // of a link: little more than arrives is sent
	for range 150 {
		near.arrived = segments(near.arrived.segments + 1)
		show(&p, near, &now, tuneEvery)
	}
	if arrives := testSegment / tuneEvery.Seconds(); float64(p.set) < arrives || float64(p.set) > 1.5*arrives {
		t.Errorf("limited to %d B/s where %.0f arrive", p.set, arrives)
	}
	near.rtt = swiftRTT
	if o := show(&p, near, &now, time.Second); o.limit != unpaced {
		t.Errorf("after the queue: %+v", o)
	}
}

// A line that drops what is too much, without a queue, is not pressed for long.
func TestLineWithoutQueue(t *testing.T) {
	l, s := &line{rate: steady(10 * mbit), trip: 80 * time.Millisecond, buffer: 10 * mbit * 0.003}, newSender(&pacer{})
	l.run(5*seconds, s)
	got, sent := s.got, s.sent
	l.run(65*seconds, s)
	if rate, lost := (s.got-got)/60/mbit, 1-(s.got-got)/(s.sent-sent); rate < 9.5 || lost > 0.08 {
		t.Errorf("%.1f of 10 Mbit/s, %.3f lost", rate, lost)
	}
}

// A line that begins to lose many segments, whatever is sent, keeps its rate, whenever that is.
func TestLossesBegin(t *testing.T) {
	mean, runs := 0.0, 20
	for n := range runs {
		l, s := dsl(), newSender(&pacer{})
		begin := 10*seconds + time.Duration(n)*170*time.Millisecond
		l.run(begin, s)
		l.loss = 0.3
		rate := l.goodput(s, begin+5*seconds, begin+35*seconds)
		if mean += rate / float64(runs); rate < 10 {
			t.Errorf("from %v on %.1f of 30 Mbit/s, of which a third is lost", begin, rate)
		}
	}
	if mean < 14 {
		t.Errorf("%.1f of 30 Mbit/s, of which a third is lost", mean)
	}
}

// A queue that is too short to stand drops what is too much: the rate of a faster line does not stay.
func TestStaleRateWithoutQueue(t *testing.T) {
	l := &line{rate: steady(30 * mbit), trip: 150 * time.Millisecond, buffer: 30 * mbit * 0.004}
	s := l.stale(90 * mbit)
	l.run(3*seconds, s)
	sent, dropped := s.sent, l.dropped
	rate := l.goodput(s, 3*seconds, 10*seconds)
	if lost := (l.dropped - dropped) / (s.sent - sent); rate < 24 || lost > 0.1 {
		t.Errorf("%.1f of 30 Mbit/s, %.2f lost", rate, lost)
	}
}

// Another route carries much more: that is found soon.
func TestNewRoute(t *testing.T) {
	l, s := &line{rate: steady(2 * mbit), trip: 600 * time.Millisecond, buffer: 2 * mbit}, newSender(&pacer{})
	l.run(20*seconds, s)
	l.trip, l.rate = 150*time.Millisecond, steady(100*mbit)
	if rate := l.goodput(s, 24*seconds, 26*seconds); rate < 80 {
		t.Errorf("4 s later %.1f of 100 Mbit/s", rate)
	}
}

// BBR's start takes acknowledgements that come together for a fast line: what arrived since its queue stands tells better.
func TestStartBelievesWhatArrives(t *testing.T) {
	const line = 250e3
	p := pacer{route: route{least: testRTT, base: testRTT}}
	now := time.Unix(1000, 0)
	for after := tuneEvery; after < 2*time.Second && p.line == 0; after += tuneEvery {
		sent := uint64(line * after.Seconds())
		s := sight{rate: 4 * line, starting: true, rtt: testRTT + after/2, floor: testRTT, recent: testRTT, segment: testSegment,
			underWay: uint64(2 * line * after.Seconds()), unsent: true, sent: traffic{sent, uint32(sent / testSegment)}}
		s.arrived = s.sent
		p.decide(s, now.Add(after))
	}
	if p.line < line*9/10 || p.line > line*5/4 {
		t.Errorf("line %d of %.0f", p.line, line)
	}
}

// A start that overflows a queue too short to stand ends, whether or not data wait all of the time.
func TestStartOverflows(t *testing.T) {
	const line = 125e3
	p := pacer{route: route{least: testRTT, base: testRTT}}
	now := time.Unix(1000, 0)
	took := time.Duration(0)
	for after := tuneEvery; after < 4*time.Second && p.line == 0; after += tuneEvery {
		sent := uint64(2 * line * after.Seconds())
		s := sight{rate: 1.5 * line, starting: true, rtt: testRTT + 20*time.Millisecond, floor: testRTT, recent: testRTT,
			segment: testSegment, underWay: 20 * testSegment, unsent: after/tuneEvery%2 == 0, sent: traffic{sent, uint32(sent / testSegment)}}
		s.arrived, s.resent = segments(s.sent.segments/2), s.sent.segments/2
		p.decide(s, now.Add(after))
		took = after
	}
	if took > time.Second || p.line < line*9/10 || p.line > line*11/10 {
		t.Errorf("line %d of %.0f after %s", p.line, line, took)
	}
}

// What arrives first after BBR's start was sent without a limit: it tells the line's rate even where that is far above.
func TestStartIsNotClipped(t *testing.T) {
	p, s := busyLine(1e6)
	p.line, p.limit = 0, 0
	now := time.Unix(1000, 0)
	p.round.begin(s, now)
	for after := tuneEvery; after <= 4*testRTT; after += tuneEvery {
		sent := 4e6 * after.Seconds()
		s.sent = traffic{uint64(sent), uint32(sent / testSegment)}
		s.arrived = s.sent
		if after <= testRTT {
			s.arrived = segments(s.arrived.segments / 4)
		}
		p.decide(s, now.Add(after))
	}
	if p.line < 3.8e6 {
		t.Errorf("line %d of 4000000", p.line)
	}
}

// Where acknowledgements wait in the peer's queue, BBR's window is full and less is sent than the limit: as much arrives.
func TestFullWindowIsNoOwnQueue(t *testing.T) {
	d := hold{low: 400 * time.Millisecond}
	for range mostMisses / 2 {
		if d.own || d.misses >= mostMisses {
			t.Fatalf("too soon: %+v", d)
		}
		d.judge(300*time.Millisecond, 200e3, 195e3)
	}
	if d.own || d.misses < mostMisses {
		t.Errorf("as much arrives as is sent: %+v", d)
	}
	d = hold{low: 400 * time.Millisecond}
	if d.judge(300*time.Millisecond, 200e3, 140e3); !d.own || d.misses > 0 {
		t.Errorf("more arrives than is sent: %+v", d)
	}
}

// A flow inside that waits for its own acknowledgements, which wait in the queue that it makes, pauses for longer than round
// trips of an empty path: the queue is found, and drains, nevertheless. It does where the rate of another line is known, and
// where BBR searches it.
func TestQueueOfAFlowThatPauses(t *testing.T) {
	for name, known := range map[string]float64{"known": 27, "searched": 0} {
		l := &line{rate: steady(2 * mbit), trip: 50 * time.Millisecond, buffer: 2 * mbit * 0.5}
		s := l.stale(27 * mbit)
		s.pacer.line, s.starting = uint64(known*mbit), known == 0
		s.wants = 6 * mbit
		s.stopped = func(at time.Duration) bool { return at%(400*time.Millisecond) < 150*time.Millisecond }
		l.run(10*seconds, s)
		if first, then := l.wait(0, 0.95), l.wait(3*seconds, 0.99); first > 400*time.Millisecond || then > 50*time.Millisecond {
			t.Errorf("%s: the queue is %v, and then %v", name, first, then)
		}
	}
}

// A line that became known on another route, and has not carried its rate on this one, is no reason to doubt what arrives.
func TestOldLineIsForgotten(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		carried time.Time
		want    uint64
	}{"a moment ago": {now.Add(-time.Second), 3e6}, "never": {time.Time{}, 300e3}} {
		p := pacer{line: 3e6, limit: 3e6, probe: prober{carried: c.carried}, route: route{least: testRTT}}
		s := sight{rtt: 2 * testRTT, segment: testSegment}
		p.beginDrain(s, 300e3, now)
		if low := p.line; low > 300e3 != (c.want > 300e3) {
			t.Errorf("%s: while the queue drains the line is %d", name, low)
		}
		if p.endDrain(s, now.Add(testRTT/2)); p.line != c.want { // the queue ends by itself
			t.Errorf("%s: the line is %d, want %d", name, p.line, c.want)
		}
	}
}

// A long queue tells by a few segments that a thin line has become slower: it would be much longer until many have arrived.
func TestLongQueueTellsSoon(t *testing.T) {
	for name, c := range map[string]struct {
		queue time.Duration
		want  uint32 // segments, about
	}{"long": {100 * time.Millisecond, leastSegments / 4}, "short": {50 * time.Millisecond, 2 * leastSegments}} {
		const line, arrives, tripTime = 125e3, 50e3, 10 * time.Millisecond
		now := time.Unix(1000, 0)
		p := &pacer{line: line, limit: line, route: route{least: tripTime, base: tripTime, looked: now}, probe: prober{carried: now}}
		s := sight{rate: line, rtt: tripTime + c.queue, floor: tripTime, recent: tripTime, segment: testSegment, underWay: 20e3, unsent: true}
		p.route.sharp.look(s, 0)
		for after := tuneEvery; after < 4*time.Second && p.hold.since.IsZero(); after += tuneEvery {
			sent := arrives * after.Seconds()
			s.sent = traffic{uint64(sent), uint32(sent / testSegment)}
			s.arrived = s.sent
			p.decide(s, now.Add(after))
		}
		if p.hold.since.IsZero() || s.arrived.segments < c.want-1 || s.arrived.segments > c.want+2 {
			t.Errorf("%s: told after %d segments, want %d", name, s.arrived.segments, c.want)
		}
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
