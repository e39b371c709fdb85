package socket

import (
	"math"
	"time"
)

const (
	// standingTime is the least delay that counts as a queue.
	standingTime = 10 * time.Millisecond
	// sharpTime is over how long round trips are smoothed.
	sharpTime = 20 * time.Millisecond
	// drainedTime, and routeTrips round trips, is how long BBR's least round trip must have been longer before that is the
	// route's. BBR takes the first sample when its own has expired, queue and all; then it empties the path for a round
	// trip and 0.2 s (bbr_probe_rtt_mode_ms).
	drainedTime = 200 * time.Millisecond
	routeTrips  = 4
	// BBR believes its least round trip for expireTime (bbr_min_rtt_win_sec), then it empties the path to see it again. Where
	// it is known, BBR is restarted after sureTime: that may have to wait for the end of repairs. Where little is sent, it is
	// after restTime, so that what begins there is not stopped soon.
	restTime, sureTime, expireTime = 3 * time.Second, 7 * time.Second, 10 * time.Second
	// quietSegments on the way are little: pings.
	quietSegments = 16
	// thinTell is how long it takes at least to tell a thin line's rate.
	thinTell = 150 * time.Millisecond
	// othersTime is for how long a queue that did not drain is attributed to cross traffic; it doubles up to othersMax while they
	// follow each other.
	othersTime, othersMax = 10 * time.Second, time.Minute
)

// route is what is known of a path's round trips.
type route struct {
	// least is the shortest smoothed round trip seen on the present route. The kernel's own is too short after a
	// simultaneous open.
	least   time.Duration
	longer  time.Time     // since when BBR's own is longer; zero: it is not
	base    time.Duration // least when this route began
	segment uint32        // bytes
	looked  time.Time     // when BBR saw its own, or began with the kernel's

	foreign time.Duration // how long others' queue is
	until   time.Time     // for how long that is believed
	alone   time.Duration // for how long the last time

	peer  farEnd
	sharp sharp
}

// sharp is the round trip smoothed over sharpTime. The kernel's is smoothed over eight answers, which are a fifth of a second
// of a thin line: a queue comes and goes in it.
type sharp struct {
	rtt     time.Duration
	kernels time.Duration // then
	came    uint32        // segments, by then
	arrived uint32
}

// look takes in what came since the last time, in answers to two segments each, of which a line takes so long for one. What
// the peer sends is among what came: there are no more answers than segments that arrived.
func (r *sharp) look(s sight, each time.Duration) {
	const kernels = 1. / 8 // gain of tcp_rtt_estimator, net/ipv4/tcp_input.c
	n := float64(min(s.came-r.came, s.arrived.segments-r.arrived))
	if r.rtt == 0 || n == 0 {
		r.rtt += s.rtt - r.kernels
	} else {
		came := float64(r.kernels) + float64(s.rtt-r.kernels)/(1-math.Pow(1-kernels, n))
		gain := min(max(float64(each)/float64(sharpTime), kernels), 1./2)
		r.rtt += time.Duration((came - float64(r.rtt)) * (1 - math.Pow(1-gain, n)))
	}
	r.kernels, r.came, r.arrived = s.rtt, s.came, s.arrived.segments
}

// observe keeps the shortest round trip of the present route. It follows a longer route as soon as BBR does, which empties
// the path's queue every 10 s to look, or when the kernel's does, after 5 minutes. It reports whether round
// trips have become half as long again, or two thirds as long: the route is another one.
func (r *route) observe(s sight, line uint64, now time.Time) (another bool) {
	r.segment = s.segment
	r.sharp.look(s, r.takes(2, max(line, s.rate)))
	r.follow(s, now)
	if r.base == 0 {
		r.base, r.looked = r.least, now
	}
	if another = r.least*3 < r.base*2 || r.base*3 < r.least*2; another {
		r.base, r.foreign = r.least, 0
	}
	return another
}

func (r *route) follow(s sight, now time.Time) {
	r.peer.hear(s, now, hearEvery)
	if now.After(r.until) {
		r.foreign = 0
	}
	few := r.few()
	switch {
	case r.least == 0 || s.rtt < r.least:
		r.least = s.rtt
	case s.floor-r.least >= few:
		r.least = s.floor
	case s.recent-r.least < few:
	case r.longer.IsZero():
		r.longer = now
		return
	case now.Sub(r.longer) < drainedTime+routeTrips*s.recent:
		return
	default:
		r.least = s.recent
	}
	r.longer = time.Time{}
}

// queue is how long the connection's own is; where it is not known whose it is, that of the peer.
func (r *route) queue() time.Duration { return r.sharp.rtt - r.least - r.foreign }

// slack is how much longer than the least a round trip is without a queue, on a line of this rate in bytes per second:
// acknowledgements come for two segments, and they take a thin line its time. Eight packets fill the queue of many a thin line,
// so there is no more room than that.
func (r *route) slack(rate uint64) time.Duration {
	return max(r.takes(2, rate)+standingTime, r.few()) + r.peer.queue
}

// takes is how long a line of this rate takes for so many segments.
func (r *route) takes(segments int, rate uint64) time.Duration {
	return time.Duration(float64(segments) * float64(r.segment) / float64(max(rate, 1<<14)) * float64(time.Second))
}

// tellTime is how long it takes at least to tell a line's rate, if it is this one.
func (r *route) tellTime(rate uint64) time.Duration {
	return max(r.least, r.takes(leastSegments, rate))
}

// thin reports whether a line of this rate takes long to tell it.
func (r *route) thin(rate uint64) bool { return r.takes(leastSegments, rate) > thinTell }

// far reports whether what is seen is old when it is.
func (r *route) far() bool { return r.least >= farTrip }

// fits is how many bytes are on the way on a line of this rate that is full, where no queue of our own stands.
func (r *route) fits(rate uint64) float64 { return float64(rate) * r.least.Seconds() }

// beginsBeside reports whether the peer sends, and little of what such a line holds was on the way when a queue began: it is
// the peer's, if the line is still the same.
func (r *route) beginsBeside(s sight, underWay, line uint64, now time.Time) bool {
	if r.peer.queue == 0 { // it may have just begun
		r.peer.hear(s, now, hearEvery/3)
	}
	return r.peer.queue > 0 && float64(underWay) < r.fits(line)/2
}

// others reports whether others' queue was met last, and forgets that.
func (r *route) others() bool {
	met := r.alone > 0
	r.alone = 0
	return met
}

// few is how much longer counts, at least.
func (r *route) few() time.Duration { return min(max(standingTime, r.least/8), 2*standingTime) }

// known reports whether BBR may be restarted: it begins with the kernel's least round trip, and twice of it is the longest
// window that it allows.
func (r *route) known(s sight) bool {
	return r.least >= longPath && (s.floor == 0 || r.least <= 2*s.floor)
}

// sure reports whether BBR is about to empty the path to see its least round trip, although that is still right: round trips
// are as short, with the path full, or with little on the way. Between the two a restart would forget a rate that is not
// found again before it is needed; where little is sent the window stays as it is, and is filled at the limit.
func (r *route) sure(s sight, line uint64, now time.Time) bool {
	fits, age := r.fits(line), now.Sub(r.looked)
	full := age > sureTime && float64(s.underWay) >= fits/2 && s.keepsWindow(fits)
	quiet := age > restTime && !s.unsent && !s.repairs && float64(s.underWay) <= min(quietSegments*float64(r.segment), fits/2)
	return (full || quiet) && r.foreign == 0 && r.known(s) && r.longer.IsZero() && max(s.rtt-r.least, r.least-s.floor) < r.few()
}

// attribute attributes a queue so long to cross traffic, for a while.
func (r *route) attribute(queue time.Duration, now time.Time) {
	r.foreign = queue
	r.alone = min(max(2*r.alone, othersTime), othersMax)
	r.until = now.Add(r.alone)
}
