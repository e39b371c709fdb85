package socket

import "time"

const (
	// arrivingTime is over how long it is told what arrives, and arrivingSegments is how many it takes at least.
	arrivingTime     = 20 * time.Millisecond
	arrivingSegments = leastSegments
	// A link that delivers in bursts is looked at over gapTimes of the longest time without an arrival, of the last gapWindow at
	// least; over gapMost at most.
	gapTimes  = 5
	gapWindow = 2 * time.Second
	gapMost   = 100 * time.Millisecond
	// keepTime, and a round trip, is how long no more is sent than arrives: by then the queue has told the rate, if it is one.
	keepTime = 100 * time.Millisecond
)

// keeper has no more sent than arrives while more is on the way than fits. A line that has become slower is filled no further
// then, whatever it carries now, a round trip before its queue tells that. What is on the way may also be acknowledgements that
// wait, for as long as they do, so this ends.
type keeper struct {
	since    time.Time // zero: it fits
	most     uint64    // the highest limit of the last round trip
	set      time.Time // when it was
	arrivals history   // bytes
	gaps     gaps
}

// gaps are the times in which nothing arrived although something was on the way.
type gaps struct {
	came            time.Time // when something did last
	window          time.Time // the beginning of the present one
	longest, before time.Duration
}

func (g *gaps) look(came bool, now time.Time) {
	if now.Sub(g.window) > gapWindow {
		g.window, g.before, g.longest = now, g.longest, 0
	}
	switch {
	case came:
		g.came = now
	case !g.came.IsZero():
		g.longest = max(g.longest, now.Sub(g.came))
	}
}

// look takes in what has arrived on a line of this rate.
func (k *keeper) look(s sight, r *route, line uint64, now time.Time) {
	k.gaps.look(s.arrived.bytes > k.arrivals.count || s.underWay == 0, now)
	k.arrivals.add(s.arrived.bytes, 2*k.span(r, line), now)
}

// span is over how long it is told what arrives.
func (k *keeper) span(r *route, line uint64) time.Duration {
	bursts := gapTimes * max(k.gaps.longest, k.gaps.before)
	return max(arrivingTime, min(bursts, gapMost), r.takes(arrivingSegments, line))
}

// arrives is how much does, bytes per second.
func (k *keeper) arrives(r *route, line uint64) uint64 {
	return uint64(k.arrivals.over(k.span(r, line)))
}

// on reports whether more is on the way than fits a line of this rate, or one that carries the limit of the last round trip.
func (k *keeper) on(s sight, r *route, line, limit uint64, slack time.Duration, now time.Time) bool {
	if limit >= k.most || now.Sub(k.set) > s.rtt {
		k.most, k.set = limit, now
	}
	if r.foreign > 0 || !r.overfilled(s, max(k.most, line), slack) {
		k.since = time.Time{}
		return false
	}
	if k.since.IsZero() {
		k.since = now
	}
	return now.Sub(k.since) < keepTime+r.least
}
