package socket

import "time"

const (
	// extrasSpan is over how long it is told how much is sent beside a connection.
	extrasSpan = 200 * time.Millisecond
	// extrasSoon is over how long it is told that it is much more.
	extrasSoon = 50 * time.Millisecond
	// extrasLooks are the moments remembered, for the longer one of two round trips and extrasSpan.
	extrasLooks = 64
	// extrasFew is the share of the line below which a change of it is none.
	extrasFew = 1. / 32
)

// datagrams are what this node sends beside a connection to the same address, datagrams, of which the line's rate is a part: so
// the pacer sees both together, and what is left is the connection's. It counts as arrived a round trip after it was sent.
// More than half of the line is left out, since what nobody slows down may be more than arrives.
type extras struct {
	rate   uint64 // bytes per second
	count  uint64 // bytes, as far as they count
	total  uint64 // as told
	credit float64
	at     time.Time // of the last look; zero: none yet
	looks  [extrasLooks]look
	n      int // looks ever
}

// look is how much had been sent at a moment.
type look struct {
	at    time.Time
	count uint64
}

// add takes in how much was ever sent, and adds it to what is seen of the connection, on a line of this rate.
func (e *extras) add(s sight, line uint64, now time.Time) sight {
	e.take(s.extra, line, max(extrasSpan, s.rtt), now)
	rate := e.over(extrasSpan, now)
	if soon := e.over(extrasSoon, now); soon > rate+line/16 {
		rate = soon
	}
	if change := float64(rate) - float64(e.rate); rate == 0 || max(change, -change) > extrasFew*float64(line) {
		e.rate = rate
	}
	arrived := e.then(now.Add(-s.rtt))
	s.underWay += e.count - arrived
	s.inFlight += e.count - arrived
	s.arrived.bytes += arrived
	s.sent.bytes += e.count
	if s.rate > 0 {
		s.rate += e.rate
	}
	return s
}

// over is how much was sent in the time before, bytes per second.
func (e *extras) over(span time.Duration, now time.Time) uint64 {
	return uint64(float64(e.count-e.then(now.Add(-span))) / span.Seconds())
}

// take counts what was sent since the last look; looks reach back for a time at least.
func (e *extras) take(total, line uint64, back time.Duration, now time.Time) {
	most := float64(line) / 2
	if e.at.IsZero() || total < e.total { // a session ended
		e.total = total
	}
	e.credit = min(e.credit+most*now.Sub(e.at).Seconds(), most*extrasSpan.Seconds())
	grown := min(total-e.total, uint64(e.credit))
	e.credit -= float64(grown)
	e.count += grown
	e.total, e.at = total, now
	if e.n == 0 || now.Sub(e.looks[(e.n-1)%extrasLooks].at) >= back/(extrasLooks/2) {
		e.looks[e.n%extrasLooks] = look{now, e.count}
		e.n++
	}
}

// then is how much had been sent at a moment, as far back as is remembered.
func (e *extras) then(at time.Time) uint64 {
	later := look{e.at, e.count}
	for i := e.n - 1; i >= max(0, e.n-extrasLooks); i-- {
		l := e.looks[i%extrasLooks]
		if !l.at.After(at) {
			took := later.at.Sub(l.at)
			if took <= 0 {
				return l.count
			}
			return l.count + uint64(float64(later.count-l.count)*min(1, at.Sub(l.at).Seconds()/took.Seconds()))
		}
		later = l
	}
	return later.count
}

// left is what a limit of both together leaves for the connection.
func (e *extras) left(limit uint64) uint64 {
	if limit == unpaced {
		return limit
	}
	return max(limit-min(limit, e.rate), limit/mostFall)
}
