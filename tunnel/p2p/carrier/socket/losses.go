package socket

import (
	"math"
	"time"
)

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
	times       int       // rounds on end in which a queue overflowed
	lowered     time.Time // when the line was, or BBR emptied the path
	before      uint64    // the line's rate before that, in the first of these rounds
}

// look takes in a round on a line. It returns the share of what was sent that passed a queue which overflowed, 1 if none did,
// and what the line carries at least, as these were losses that sending less does not help.
func (l *losses) look(r *round, s sight, line uint64, trip time.Duration, now time.Time) (passed float64, least uint64) {
	if !l.telling(r, s, line, trip, now) {
		return 1, 0
	}
	return l.passed(r, s)
}

// plus adds what the line loses always to what arrived, in bytes per second: so much it carries.
func (l *losses) plus(arrived uint64) uint64 {
	return uint64(float64(arrived) / (1 - min(l.least, 0.5)))
}

// lower notes that the losses lower a line.
func (l *losses) lower(line uint64, now time.Time) {
	if l.lowered = now; l.times == 1 {
		l.before = line
	}
}

// telling reports whether a round's losses tell of a queue: not those of a link that has stopped, nor of what was sent before
// the line was lowered, or the path emptied.
func (l *losses) telling(r *round, s sight, line uint64, trip time.Duration, now time.Time) bool {
	send := time.Duration(leastSegments * float64(s.segment) / float64(max(line, 1)) * float64(time.Second))
	return now.Sub(r.since) < longTrips*max(trip, leastRound)+2*send && r.since.Sub(l.lowered) >= s.rtt
}

// passed is look for a round that tells of a queue.
func (l *losses) passed(r *round, s sight) (share float64, least uint64) {
	lost, n := r.lost(s)
	if n < leastSegments {
		return 1, 0
	}
	if l.rounds%lossRounds == 0 {
		l.least, l.next = l.next, lost
	}
	l.rounds++
	l.least, l.next = min(l.least, lost), min(l.next, lost)
	if lost-l.least < excess+3*math.Sqrt(lost/float64(n)) {
		l.times = 0
		return 1, 0
	}
	if l.times++; l.times > overflowRounds { // the line loses so much
		l.least, l.next, l.times = lost, lost, 0
		return 1, l.before
	}
	return (1 - lost) / (1 - l.least), 0
}
