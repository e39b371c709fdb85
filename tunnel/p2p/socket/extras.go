package socket

import "time"

const (
	// extrasSpan is over how long it is told how much is sent beside a connection's data, extrasSoon where that grows by
	// more than extrasMuch of the line. A change of less than extrasFew is none.
	extrasSpan, extrasSoon = 200 * time.Millisecond, 50 * time.Millisecond
	extrasMuch, extrasFew  = 1. / 16, 1. / 32
	// extrasLooks are the moments remembered, for twice the longer one of a round trip and extrasSpan.
	extrasLooks = 32
)

// extras are what this node sends beside a connection's data: acknowledgements, and datagrams to the same address. The line
// carries them too, so the pacer sees the connection together with them, and what they leave of its limit is the connection's.
// They count as arrived a round trip after they were sent, and as half of the line at most: nobody slows datagrams down, so
// more may be sent than arrives. Where round trips are short a queue
// tells of datagrams soon: there only acknowledgements count, while the peer sends.
type extras struct {
	rate   uint64 // bytes per second
	alone  uint64 // the connection's limit, as set; 0: none
	count  uint64 // bytes, as far as they count
	total  uint64 // bytes, as told
	credit float64
	began  time.Time     // zero: there was no look yet
	at     time.Duration // of the last look, since then
	looks  [extrasLooks]look
	n      int // looks remembered ever
}

// look is how much had been sent at a moment.
type look struct {
	at    time.Duration
	count uint64
}

// add takes in how much was ever sent, and adds it to what is seen of the connection, on a line of this rate.
func (e *extras) add(s sight, line uint64, now time.Time) sight {
	e.take(s.extra, line, max(extrasSpan, s.rtt), now)
	rate := e.over(extrasSpan)
	if soon := e.over(extrasSoon); soon > rate+extrasMuch*float64(line) {
		rate = soon
	}
	rate = min(rate, float64(line)/2)
	if change := rate - float64(e.rate); rate == 0 || max(change, -change) > extrasFew*float64(line) {
		e.rate = uint64(rate)
	}
	arrived := e.then(e.at - s.rtt)
	s.underWay += e.count - arrived
	s.inFlight += e.count - arrived
	s.arrived.bytes += arrived
	s.sent.bytes += e.count
	if s.rate > 0 {
		s.rate += e.rate
	}
	return s
}

// take counts what was sent since the last look; the looks reach back for a time at least.
func (e *extras) take(total, line uint64, back time.Duration, now time.Time) {
	if e.began.IsZero() {
		e.began, e.total = now, total
	}
	if total < e.total { // some were forgotten
		e.total = total
	}
	most, before := float64(line)/2, e.at
	e.at = now.Sub(e.began)
	e.credit = min(e.credit+most*(e.at-before).Seconds(), most*extrasSpan.Seconds())
	grown := min(total-e.total, uint64(e.credit))
	e.credit -= float64(grown)
	e.count, e.total = e.count+grown, total
	if e.n == 0 || e.at-e.looks[(e.n-1)%extrasLooks].at >= back/(extrasLooks/2) {
		e.looks[e.n%extrasLooks] = look{e.at, e.count}
		e.n++
	}
}

// over is how much was sent in a time until now, bytes per second.
func (e *extras) over(span time.Duration) float64 {
	return float64(e.count-e.then(e.at-span)) / span.Seconds()
}

// then is how much had been sent at a moment, as far back as is remembered.
func (e *extras) then(at time.Duration) uint64 {
	later := look{e.at, e.count}
	for i := e.n - 1; i >= max(0, e.n-extrasLooks); i-- {
		l := e.looks[i%extrasLooks]
		if l.at <= at {
			part := float64(at-l.at) / float64(max(later.at-l.at, 1))
			return l.count + uint64(float64(later.count-l.count)*min(part, 1))
		}
		later = l
	}
	return later.count
}

// left is what a limit of both leaves for the connection: never so little that it stops.
func (e *extras) left(limit uint64) uint64 {
	if limit == unpaced {
		return limit
	}
	return max(limit-min(limit, e.rate), limit/mostFall)
}

// set returns the connection's limit where one of both changes it, else 0.
func (e *extras) set(limit uint64) uint64 {
	before := e.alone
	e.alone = e.left(limit)
	if e.alone == before || before == 0 && e.alone == unpaced {
		return 0
	}
	return e.alone
}
