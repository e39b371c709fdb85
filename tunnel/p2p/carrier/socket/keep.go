package socket

import "time"

const (
	// deliveredTime is over how long the delivery rate is measured, and deliveredSegments is how many it takes at least.
	deliveredTime     = 20 * time.Millisecond
	deliveredSegments = leastSegments
	// On a link that delivers in bursts it is gapTimes the longest gap, up to gapMost; a gap is forgotten after one to two
	// gapWindow.
	gapTimes  = 5
	gapWindow = 2 * time.Second
	gapMost   = 100 * time.Millisecond
	// capTime, and a round trip, is how long the rate is capped: by then a queue of our own has told the line's rate.
	capTime = 100 * time.Millisecond
)

// keeper caps the sending rate at the delivery rate while more is on the way than fits. A line that has become slower is filled
// no further then, a round trip before its queue tells the new rate. What is on the way may also be acknowledgements that wait
// in the peer's queue, so the cap ends soon, and comes back only after a round trip in which everything fitted.
type keeper struct {
	since     time.Time // the beginning of the present time in which more was on the way than fits
	over      time.Time // when it was last
	most      uint64    // the highest limit of the last round trip
	set       time.Time // when it was
	delivered history   // bytes
	gaps      gaps
}

// gaps are the times between deliveries while something was on the way.
type gaps struct {
	segments        uint32    // delivered
	last            time.Time // when some were; zero: nothing was on the way since then
	window          time.Time // the beginning of the present one
	longest, before time.Duration
}

func (g *gaps) look(s sight, now time.Time) {
	if now.Sub(g.window) > gapWindow {
		g.window, g.before, g.longest = now, g.longest, 0
	}
	came := s.arrived.segments != g.segments
	g.segments = s.arrived.segments
	switch {
	case s.underWay == 0:
		g.last = time.Time{}
	case came:
		g.last = now
	case !g.last.IsZero():
		g.longest = max(g.longest, now.Sub(g.last))
	}
}

// look takes in what has been delivered by a line of this rate.
func (k *keeper) look(s sight, r *route, line uint64, now time.Time) {
	k.gaps.look(s, now)
	k.delivered.add(s.arrived.bytes, 2*k.span(r, line), now)
}

// span is over how long the delivery rate is measured.
func (k *keeper) span(r *route, line uint64) time.Duration {
	bursts := gapTimes * max(k.gaps.longest, k.gaps.before)
	return max(deliveredTime, min(bursts, gapMost), r.takes(deliveredSegments, line))
}

// rate is the delivery rate, bytes per second.
func (k *keeper) rate(r *route, line uint64) uint64 { return uint64(k.delivered.over(k.span(r, line))) }

// caps reports whether to cap the rate: whether more is on the way than fits a line of this rate, or one that carries the highest
// limit of the last round trip.
func (k *keeper) caps(s sight, r *route, line, limit uint64, slack time.Duration, now time.Time) bool {
	if limit >= k.most || now.Sub(k.set) > s.rtt {
		k.most, k.set = limit, now
	}
	if r.foreign > 0 || !r.overfilled(s, max(k.most, line), slack) {
		return false
	}
	if now.Sub(k.over) > s.rtt {
		k.since = now
	}
	k.over = now
	return now.Sub(k.since) < capTime+r.least
}
