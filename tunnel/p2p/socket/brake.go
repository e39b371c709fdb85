package socket

import "time"

const (
	// thinTell is how long it takes at least to tell a thin line's rate.
	thinTell = 150 * time.Millisecond
	// brakeTime, and brakeTrips round trips, is how long it is braked at most: the queue may be that of others.
	brakeTime, brakeTrips = 400 * time.Millisecond, 2
)

// brakes reports whether to send little, because more is on the way on a thin line than fits: it has become slower. What is
// on the way tells this long before so many segments have arrived that the new rate is known, and little before does no harm,
// as the queue keeps the line busy. Faster lines tell their rate soon enough, and often have as much on the way for a moment.
func (p *pacer) brakes(s sight, now time.Time) bool {
	r, most := &p.route, p.line
	if p.open {
		most = max(p.line, p.limit)
	}
	thin := r.takes(leastSegments, max(p.line, s.rate)) > thinTell
	if !thin || !s.unsent || r.foreign > 0 || r.peer.queue > 0 || !r.overfilled(s, most, p.slack(s)*3/2) {
		p.braked = time.Time{}
		return false
	}
	if p.braked.IsZero() {
		p.braked = now
	}
	return now.Sub(p.braked) < brakeTime+brakeTrips*r.least
}
