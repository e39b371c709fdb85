package socket

import (
	"math"
	"time"
)

// round is what happened since its beginning.
type round struct {
	since     time.Time
	delivered uint32 // segments, at the beginning
	sent      traffic
	resent    uint32
	looks     int
	waiting   int           // looks at which data waited
	queue     time.Duration // the shortest
}

func (r *round) begin(s sight, now time.Time) {
	*r = round{since: now, delivered: s.delivered, sent: s.sent, resent: s.resent, queue: time.Hour}
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

// segments is how many have arrived.
func (r *round) segments(s sight) uint32 { return s.delivered - r.delivered }

// lost is the share of segments that had to be sent again, of so many: those sent, or those that arrived, where they were
// more, because the flow paused while losses were repaired.
func (r *round) lost(s sight) (share float64, of uint32) {
	of = max(s.sent.segments-r.sent.segments, r.segments(s), 1)
	return min(float64(s.resent-r.resent)/float64(of), 1), of
}

// lossy reports whether a quarter had to be sent again.
func (r *round) lossy(s sight) bool {
	share, _ := r.lost(s)
	return share > 0.25
}

// rate is how much arrived, in bytes per second. The kernel counts segments; they are taken to be as large as those sent.
func (r *round) rate(s sight, now time.Time) uint64 {
	size := float64(s.segment)
	if n := s.sent.segments - r.sent.segments; n > 0 && s.sent.bytes > r.sent.bytes {
		size = min(size, float64(s.sent.bytes-r.sent.bytes)/float64(n))
	}
	return uint64(float64(r.segments(s)) * size / now.Sub(r.since).Seconds())
}

const (
	// lossRounds is how many rounds the least share of losses is remembered for, at least.
	lossRounds = 16
	// excess is by how much more than that is lost where a queue overflows, and three standard errors.
	excess = 0.15
	// In so many rounds on end a line is found; what is lost still is what it loses.
	overflowRounds = 3
)

// losses are the shares of segments that a line loses whatever is sent: the least of some rounds.
type losses struct {
	least, next float64 // of these rounds and those before, of these alone
	rounds      int
	times       int // rounds on end in which a queue overflowed
	lowered     time.Time
	before      uint64 // the line's rate before that, in the first of these rounds
}

// look takes in a round on a line. It returns the share of what was sent that passed a queue which overflowed, 1 if none did,
// and what the line carries at least, as these were losses that sending less does not help.
func (l *losses) look(r *round, s sight, line uint64, trip time.Duration, now time.Time) (passed float64, least uint64) {
	if !l.telling(r, s, line, trip, now) {
		return 1, 0
	}
	times := l.times
	if passed = l.passed(r, s); times == overflowRounds && passed == 1 && l.least > excess {
		least = l.before
	}
	return passed, least
}

// lower notes that the losses lower a line.
func (l *losses) lower(line uint64, now time.Time) {
	if l.lowered = now; l.times == 1 {
		l.before = line
	}
}

// telling reports whether a round's losses tell of a queue: not those of a link that has stopped, nor of what was sent before
// the line was lowered.
func (l *losses) telling(r *round, s sight, line uint64, trip time.Duration, now time.Time) bool {
	send := time.Duration(leastSegments * float64(s.segment) / float64(max(line, 1)) * float64(time.Second))
	return now.Sub(r.since) < longTrips*max(trip, leastRound)+2*send && r.since.Sub(l.lowered) >= s.rtt
}

// passed takes in a round, and returns the share of what was sent that passed a queue which overflowed; 1: none did.
func (l *losses) passed(r *round, s sight) float64 {
	share, n := r.lost(s)
	if n < leastSegments {
		return 1
	}
	if l.rounds%lossRounds == 0 {
		l.least, l.next = l.next, share
	}
	l.rounds++
	l.least, l.next = min(l.least, share), min(l.next, share)
	if share-l.least < excess+3*math.Sqrt(share/float64(n)) {
		l.times = 0
		return 1
	}
	if l.times++; l.times > overflowRounds {
		l.least, l.next, l.times = share, share, 0
		return 1 // the line loses so much
	}
	return (1 - share) / (1 - l.least)
}
