package paths

import "time"

// leastWindow: the shortest round trip is remembered for one to two of these. Where a route becomes longer, the difference
// counts as a queue until then; a queue that stands for longer counts as the route's. Another route mostly has a new
// connection.
const leastWindow = 5 * time.Minute

// trip is what is known of a path's round trip.
type trip struct {
	smoothed time.Duration // 0: not known
	last     time.Duration

	began              time.Time     // of the present window
	least, leastBefore time.Duration // in it and in the one before; 0: none
}

// add records one measured round trip.
func (t *trip) add(rtt time.Duration, at time.Time) {
	if t.smoothed == 0 {
		t.smoothed = rtt
	} else {
		t.smoothed = (7*t.smoothed + rtt) / 8 // as TCP's, RFC 6298
	}
	t.last = rtt
	switch age := at.Sub(t.began); {
	case age >= 2*leastWindow:
		t.began, t.least, t.leastBefore = at, rtt, 0
	case age >= leastWindow:
		t.began, t.least, t.leastBefore = at, rtt, t.least
	default:
		t.least = min(t.least, rtt)
	}
}

// queue is the round trip minus the shortest: the time that packets wait on the path, in both directions. An idle path is
// probed seldom, so the last round trip ends a queue that the smoothed one still has.
func (t *trip) queue() time.Duration {
	return max(0, min(t.smoothed, t.last)-t.shortest())
}

// shortest is that of the window and of the one before.
func (t *trip) shortest() time.Duration {
	if t.leastBefore > 0 {
		return min(t.least, t.leastBefore)
	}
	return t.least
}
