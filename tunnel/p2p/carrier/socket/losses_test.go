package socket

import (
	"math"
	"testing"
	"time"
)

// A queue overflows where much more is lost than usual, and only for as long as sending less may help.
func TestLosses(t *testing.T) {
	const before = 1000
	l := losses{before: before}
	round := func(sent, arrived, resent uint32) (float64, uint64) {
		r := round{}
		return l.passed(&r, sight{sent: traffic{segments: sent}, arrived: traffic{segments: arrived}, resent: resent})
	}
	for i, c := range []struct {
		sent, arrived, resent uint32
		want                  float64
		least                 uint64
	}{
		{1000, 900, 100, 1, 0},    // nothing is known yet
		{1000, 970, 30, 1, 0},     // 3 %: usual
		{1000, 850, 150, 1, 0},    // not enough to tell
		{20, 5, 15, 1, 0},         // too few
		{100, 1000, 90, 1, 0},     // a pause, in which losses were repaired
		{1000, 500, 515, 0.48, 0}, // a queue half as fast
		{1000, 970, 30, 1, 0},     // it is found
		{1000, 600, 400, 0.6, 0},  // losses that are not a queue's
		{1000, 600, 400, 0.6, 0},
		{1000, 600, 400, 0.6, 0},
		{1000, 600, 400, 1, before},
		{1000, 600, 400, 1, 0},
	} {
		if got, least := round(c.sent, c.arrived, c.resent); math.Abs(got-c.want) > 0.01 || least != c.least {
			t.Errorf("round %d: %.2f passed, at least %d, want %.2f, %d", i, got, least, c.want, c.least)
		}
	}
}

// After BBR has emptied the path little is sent but what was lost before, and less arrives: that is no queue which overflows,
// and no rate of a line. A round trip later losses tell again.
func TestRepairsOfAnEmptiedPath(t *testing.T) {
	for name, c := range map[string]struct {
		emptied time.Duration // before the round; 0: it was not
		known   bool
	}{"not emptied": {0, true}, "emptied": {tuneEvery, false}, "for long": {2 * testRTT, true}} {
		p := pacer{route: route{least: testRTT, base: testRTT}}
		now := time.Unix(1000, 0)
		s := sight{rate: 1e6, starting: true, rtt: testRTT, floor: testRTT, recent: testRTT, segment: testSegment}
		if c.emptied > 0 {
			s.emptied = true
			p.decide(s, now.Add(-c.emptied))
			s.emptied = false
		}
		s.unsent, s.underWay = true, 300*testSegment
		p.round.begin(s, now)
		for after := tuneEvery; after <= testRTT+tuneEvery; after += tuneEvery {
			sent := uint32(after / time.Millisecond)
			s.sent, s.arrived, s.resent = segments(sent), segments(sent*2/3), sent/2
			p.decide(s, now.Add(after))
		}
		if known := p.line > 0; known != c.known {
			t.Errorf("%s: the line is %d", name, p.line)
		}
	}
}
