package socket

import (
	"math"
	"testing"
	"time"
)

// sendBeside has acknowledgements of so many bytes sent every so often for a while, with a look every 10 ms.
func sendBeside(e *extras, s *sight, line, bytes uint64, every, d time.Duration, now *time.Time) (seen sight) {
	for after := tuneEvery; after <= d; after += tuneEvery {
		*now = now.Add(tuneEvery)
		if after%every == 0 {
			s.acks += bytes
		}
		seen = e.add(*s, &route{least: farTrip}, line, *now)
	}
	return seen
}

// What is sent beside is told as a rate, is on the way for a round trip, and has arrived then.
func TestExtras(t *testing.T) {
	const line = 125_000
	for _, trip := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 600 * time.Millisecond} {
		e, s, now := &extras{}, sight{rate: line, rtt: trip, acks: 1 << 40}, time.Unix(1000, 0)
		e.add(s, &route{least: farTrip}, line, now)
		seen := sendBeside(e, &s, line, 500, 20*time.Millisecond, 2*time.Second, &now) // 25 kB/s
		near := func(what string, got, want, within float64) {
			t.Helper()
			if math.Abs(got-want) > within {
				t.Errorf("trip %v: %s %.0f, want %.0f", trip, what, got, want)
			}
		}
		under := 25_000 * trip.Seconds()
		near("rate", float64(e.rate), 25_000, 5_000)
		near("sent", float64(seen.sent.bytes), 50_000, 0)
		near("arrived", float64(seen.arrived.bytes), 50_000-under, 1_000)
		near("on the way", float64(seen.underWay), under, 1_000)
		near("BBR's and theirs", float64(seen.rate), line+float64(e.rate), 0)
		near("left", float64(e.left(line)), line-float64(e.rate), 0)
		sendBeside(e, &s, line, 0, time.Hour, time.Second, &now)
		near("rate after the end", float64(e.rate), 0, 0)
	}
}

// Much more is told sooner than a little.
func TestExtrasGrow(t *testing.T) {
	const line = 250_000
	e, s, now := &extras{}, sight{rtt: 50 * time.Millisecond}, time.Unix(1000, 0)
	e.add(s, &route{least: farTrip}, line, now)
	sendBeside(e, &s, line, 800, 10*time.Millisecond, 60*time.Millisecond, &now)
	if e.rate < 70_000 {
		t.Errorf("%d of 80000 bytes per second after 60 ms", e.rate)
	}
}

// What does not arrive takes half of the line at most, one whose counter falls nothing, and the connection has the rest.
func TestExtrasThatDoNotArrive(t *testing.T) {
	const line = 125_000
	e, s, now := &extras{}, sight{rtt: 50 * time.Millisecond}, time.Unix(1000, 0)
	e.add(s, &route{least: farTrip}, line, now)
	sendBeside(e, &s, line, 1e6, 10*time.Millisecond, 2*time.Second, &now)
	if e.rate < line/2-100 || e.rate > line/2+100 {
		t.Errorf("a flood counts as %d of %d", e.rate, line)
	}
	if left := e.left(line / 4); left != line/4/mostFall {
		t.Errorf("%d of a limit of %d are left", left, line/4)
	}
	if left := e.left(unpaced); left != unpaced {
		t.Errorf("%d of no limit", left)
	}
	count := e.counts.count
	s.acks = 0
	sendBeside(e, &s, line, 0, time.Hour, time.Second, &now)
	if e.counts.count != count || e.rate != 0 {
		t.Errorf("%d bytes and %d per second after the counter fell, from %d", e.counts.count, e.rate, count)
	}
}

// The connection's limit falls by what is sent beside it, without a round, and comes back.
func TestLimitBesideAcknowledgements(t *testing.T) {
	p := pacer{line: 125_000, limit: 125_000, extras: extras{alone: 125_000}, route: route{least: 300 * time.Millisecond}}
	s, now := sight{rate: 125_000, rtt: 300 * time.Millisecond, segment: testSegment, unsent: true}, time.Unix(1000, 0)
	p.decide(s, now)
	send := func(bytes uint64) uint64 {
		for range 25 {
			now = now.Add(tuneEvery)
			s.acks += bytes
			p.decide(s, now)
		}
		return p.extras.alone
	}
	if got := send(250); got > p.limit-22_000 || got < p.limit-28_000 {
		t.Errorf("%d of %d beside 25000 bytes per second", got, p.limit)
	}
	if got := send(0); got != p.limit {
		t.Errorf("%d of %d after them", got, p.limit)
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
