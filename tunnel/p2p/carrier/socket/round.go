package socket

import (
	"math"
	"time"
)

// round is what happened since its beginning.
type round struct {
	since    time.Time
	arrived  traffic // at the beginning
	sent     traffic
	resent   uint32
	underWay uint64 // bytes, at the beginning
	looks    int
	waiting  int           // looks at which data waited
	queue    time.Duration // the shortest
}

func (r *round) begin(s sight, now time.Time) {
	*r = round{since: now, arrived: s.arrived, sent: s.sent, resent: s.resent,
		underWay: s.underWay, queue: time.Hour}
}

func (r *round) look(s sight, queue time.Duration) {
	r.looks++
	if s.unsent {
		r.waiting++
	}
	r.queue = min(r.queue, queue)
}

// busy reports whether data waited nearly all of the time.
func (r *round) busy() bool { return r.waiting*8 >= r.looks*7 }

// waits reports whether data waited often: a flow inside that meets the limit now and then becomes slower.
func (r *round) waits() bool { return r.waiting*4 >= r.looks }

// full reports whether it is over.
func (r *round) full(s sight, now time.Time) bool {
	return r.enough(s, now, max(s.rtt, leastRound), leastSegments)
}

// enough reports whether so many segments have arrived in so much time, or a few in much more, as on a very slow line.
func (r *round) enough(s sight, now time.Time, least time.Duration, segments uint32) bool {
	took, n := now.Sub(r.since), r.segments(s)
	return took >= least && (n >= segments || n >= fewSegments && took >= max(longRound, longTrips*least))
}

// tells reports whether it has lasted so long, and enough has arrived, that acknowledgements that came together or late
// matter little.
func (r *round) tells(s sight, now time.Time, least time.Duration) bool {
	return !r.since.IsZero() && now.Sub(r.since) >= least && r.segments(s) >= sparse
}

// segments is how many have arrived.
func (r *round) segments(s sight) uint32 { return s.arrived.segments - r.arrived.segments }

// lost is the share of segments that had to be sent again, of so many: those sent, or those that arrived, where they were
// more, because the flow paused while losses were repaired.
func (r *round) lost(s sight) (share float64, of uint32) {
	of = max(s.sent.segments-r.sent.segments, r.segments(s), 1)
	return min(float64(s.resent-r.resent)/float64(of), 1), of
}

// overshot reports whether half as much or more was lost, beside what is lost always, as of a line that carries nothing of a
// step, and not by chance.
func (r *round) overshot(s sight, step, always float64) bool {
	share, of := r.lost(s)
	over := share - always
	return over > step/(1+step)/2 && over > 2*math.Sqrt(share/float64(of))
}

// lossy reports whether a quarter had to be sent again.
func (r *round) lossy(s sight) bool {
	share, _ := r.lost(s)
	return share > 0.25
}

// rate is how much arrived, in bytes per second.
func (r *round) rate(s sight, now time.Time) uint64 {
	return uint64(float64(s.arrived.since(r.arrived)) / now.Sub(r.since).Seconds())
}

// sentRate is how much was sent, in bytes per second.
func (r *round) sentRate(s sight, now time.Time) uint64 {
	return uint64(float64(s.sent.bytes-r.sent.bytes) / now.Sub(r.since).Seconds())
}
