package paths

import "time"

// leastWindow is for how long at least, and for how long twice at most, the shortest round trip is remembered: a path that has
// become longer has a queue for so long.
const leastWindow = time.Minute

// trip is what is known of a path's round trip.
type trip struct {
	smoothed time.Duration // 0: not known

	began       time.Time     // of the present window
	now, before time.Duration // the shortest in it and in the one before; 0: none
}

// add takes one in.
func (t *trip) add(rtt time.Duration, at time.Time) {
	if t.smoothed == 0 {
		t.smoothed = rtt
	} else {
		t.smoothed = (7*t.smoothed + rtt) / 8 // as TCP's, RFC 6298
	}
	switch age := at.Sub(t.began); {
	case age >= 2*leastWindow:
		t.began, t.now, t.before = at, 0, 0
	case age >= leastWindow:
		t.began, t.now, t.before = at, 0, t.now
	}
	if t.now == 0 || rtt < t.now {
		t.now = rtt
	}
}

// queue is how much longer the round trip is than the shortest: that time packets wait on the way, there and back.
func (t *trip) queue() time.Duration {
	least := t.now
	if t.before > 0 {
		least = min(least, t.before)
	}
	return max(0, t.smoothed-least)
}
