package socket

import "time"

const (
	// extrasSpan is over how long it is told how much is sent beside a connection's data, extrasSoon where that grows by
	// more than extrasMuch of the line. A change of less than extrasFew is none.
	extrasSpan, extrasSoon = 200 * time.Millisecond, 50 * time.Millisecond
	extrasMuch, extrasFew  = 1. / 16, 1. / 32
)

// extras are what this node sends beside a connection's data: acknowledgements. The line carries them too, so the pacer sees the
// connection together with them, and what they leave of its limit is the connection's. They count as arrived a round trip after
// they were sent, and as half of the line at most. Where round trips are short they count only while the peer sends.
type extras struct {
	rate   uint64  // bytes per second
	alone  uint64  // the connection's limit, as set; 0: none
	counts history // bytes, as far as they count
	total  uint64  // bytes, as told
	credit float64
}

// add takes in what was sent, and adds it to what is seen of the connection, on a line of this rate; 0: unknown.
func (e *extras) add(s sight, r *route, line uint64, now time.Time) sight {
	if line = max(line, s.rate); !r.far() && r.peer.queue == 0 {
		line = 0 // nothing counts
	}
	e.take(s.acks, line, max(extrasSpan, s.rtt), now)
	rate := e.counts.over(extrasSpan)
	if soon := e.counts.over(extrasSoon); soon > rate+extrasMuch*float64(line) {
		rate = soon
	}
	rate = min(rate, float64(line)/2)
	if change := rate - float64(e.rate); rate == 0 || max(change, -change) > extrasFew*float64(line) {
		e.rate = uint64(rate)
	}
	sent, arrived := e.counts.count, e.counts.then(e.counts.at-s.rtt)
	s.underWay += sent - arrived
	s.inFlight += sent - arrived
	s.arrived.bytes += arrived
	s.sent.bytes += sent
	if s.rate > 0 {
		s.rate += e.rate
	}
	return s
}

// take counts what was sent since the last look; the looks reach back for a time at least.
func (e *extras) take(total, line uint64, back time.Duration, now time.Time) {
	if e.counts.began.IsZero() || total < e.total { // some were forgotten
		e.total = total
	}
	most := float64(line) / 2
	e.credit = min(e.credit+most*e.counts.since(now).Seconds(), most*extrasSpan.Seconds())
	grown := min(total-e.total, uint64(e.credit))
	e.credit -= float64(grown)
	e.total = total
	e.counts.add(e.counts.count+grown, back, now)
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
