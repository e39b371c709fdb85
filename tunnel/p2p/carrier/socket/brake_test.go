package socket

import (
	"testing"
	"time"
)

// While more is on the way on a thin line than fits, little is sent, for a while.
func TestThinLineIsBraked(t *testing.T) {
	const line, limit, tripTime = 125e3, 130e3, 10 * time.Millisecond
	far := func(p *pacer, s *sight, trip time.Duration) {
		p.route.least, p.route.base, s.rtt, s.floor, s.recent = trip, trip, trip, trip, trip
	}
	for name, c := range map[string]struct {
		change func(p *pacer, s *sight)
		braked time.Duration // 0: it is not
	}{
		"it fits":        {func(_ *pacer, s *sight) { s.inFlight = 4 * testSegment }, 0},
		"too much":       {func(*pacer, *sight) {}, brakeTime + brakeTrips*tripTime},
		"it fits again":  {func(_ *pacer, s *sight) { s.inFlight -= min(s.inFlight, testSegment/8) }, 260 * time.Millisecond},
		"no data wait":   {func(_ *pacer, s *sight) { s.unsent = false }, 0},
		"BBR knows more": {func(_ *pacer, s *sight) { s.rate = 1e6 }, 0},
		"it may carry more": {func(p *pacer, s *sight) {
			far(p, s, 100*time.Millisecond)
			p.probe.open, p.limit, s.inFlight = true, 2*line, 20e3
		}, 0},
		"the peer sends": {func(p *pacer, s *sight) {
			s.inFlight = 20e3
			p.route.peer.queue, p.route.peer.sent = peersQueue, time.Unix(1e6, 0)
		}, 0},
		"others' queue": {func(p *pacer, _ *sight) { p.route.foreign, p.route.until = time.Second, time.Unix(1e6, 0) }, 0},
		"a far path": {func(p *pacer, s *sight) {
			far(p, s, farTrip)
			s.inFlight = 60e3
		}, 0},
		"a line of 4 Mbit/s": {func(p *pacer, s *sight) { p.line, p.limit, s.inFlight = 4*line, 4*limit, 32*testSegment }, 0},
	} {
		now := time.Unix(1000, 0)
		p := &pacer{line: line, limit: limit, route: route{least: tripTime, base: tripTime, looked: now}}
		p.probe.next, p.probe.aim = now.Add(time.Hour), 2*line
		s := sight{rate: line, rtt: tripTime, floor: tripTime, recent: tripTime, segment: testSegment, inFlight: 8 * testSegment,
			underWay: 8 * testSegment, unsent: true}
		p.round.begin(s, now)
		var braked time.Duration
		for range 100 {
			c.change(p, &s)
			now = now.Add(tuneEvery)
			if p.decide(s, now); p.limit <= p.line/mostFall {
				braked += tuneEvery
			}
		}
		if braked < c.braked-2*tuneEvery || braked > c.braked+2*tuneEvery {
			t.Errorf("%s: braked for %v, want %v", name, braked, c.braked)
		}
		if p.limit < p.line {
			t.Errorf("%s: the limit stays at %d", name, p.limit)
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
