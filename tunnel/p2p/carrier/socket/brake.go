package socket

import "time"

const (
	// thinTell is how long it takes at least to tell a thin line's rate.
	thinTell = 150 * time.Millisecond
	// brakeTime, and brakeTrips round trips, is how long it is braked at most: the queue may be that of others.
	brakeTime, brakeTrips = 400 * time.Millisecond, 2
)

// brake sends little while more is on the way on a thin line than fits: it has become slower. What is on the way tells this
// long before so many segments have arrived that the new rate is known, and the queue keeps the line busy meanwhile. Faster
// lines tell their rate soon enough, and often have as much on the way for a moment.
type brake struct {
	since time.Time // zero: it fits
}

// on reports whether to brake on a line that carries so much, or most where more is tried, and where a queue is longer than
// slack.
func (b *brake) on(s sight, r *route, line, most uint64, slack time.Duration, now time.Time) bool {
	fits := r.fits(most) + float64(line)*(slack*3/2-r.few()/2).Seconds()
	if !s.unsent || r.foreign > 0 || r.peer.queue > 0 || r.far() || !r.thin(max(line, s.rate)) || float64(s.inFlight) <= fits {
		b.since = time.Time{}
		return false
	}
	if b.since.IsZero() {
		b.since = now
	}
	return now.Sub(b.since) < brakeTime+brakeTrips*r.least
}
