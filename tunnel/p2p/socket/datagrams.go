package socket

import "time"

const (
	// datagramTime is over how long it is told how much is sent beside a connection.
	datagramTime = 200 * time.Millisecond
	// datagramLooks are the moments remembered, for the longer one of two round trips and datagramTime.
	datagramLooks = 64
	// datagramFew is the share of the line below which a change of it is none.
	datagramFew = 1. / 32
)

// datagrams are what this node sends beside a connection to the same address, datagrams, of which the line's rate is a part: so
// the pacer sees both together, and what is left is the connection's. It counts as arrived a round trip after it was sent.
// More than half of the line is left out, since what nobody slows down may be more than arrives.
type datagrams struct {
	rate   uint64 // bytes per second
	count  uint64 // bytes, as far as they count
	total  uint64 // as told
	credit float64
	at     time.Time // of the last look; zero: none yet
	looks  [datagramLooks]look
	n      int // looks ever
}

// look is how much had been sent at a moment.
type look struct {
	at    time.Time
	count uint64
}

// add takes in how much was ever sent, and adds it to what is seen of the connection, on a line of this rate.
func (b *datagrams) add(s sight, line uint64, now time.Time) sight {
	b.take(s.datagrams, line, max(datagramTime, s.rtt), now)
	before := b.count - b.then(now.Add(-datagramTime))
	rate := uint64(float64(before) / datagramTime.Seconds())
	if change := float64(rate) - float64(b.rate); rate == 0 || max(change, -change) > datagramFew*float64(line) {
		b.rate = rate
	}
	arrived := b.then(now.Add(-s.rtt))
	s.underWay += b.count - arrived
	s.inFlight += b.count - arrived
	s.arrived.bytes += arrived
	s.sent.bytes += b.count
	if s.rate > 0 {
		s.rate += b.rate
	}
	return s
}

// take counts what was sent since the last look; looks reach back for a time at least.
func (b *datagrams) take(total, line uint64, back time.Duration, now time.Time) {
	most := float64(line) / 2
	if b.at.IsZero() || total < b.total { // a session ended
		b.total = total
	}
	b.credit = min(b.credit+most*now.Sub(b.at).Seconds(), most*datagramTime.Seconds())
	grown := min(total-b.total, uint64(b.credit))
	b.credit -= float64(grown)
	b.count += grown
	b.total, b.at = total, now
	if b.n == 0 || now.Sub(b.looks[(b.n-1)%datagramLooks].at) >= back/(datagramLooks/2) {
		b.looks[b.n%datagramLooks] = look{now, b.count}
		b.n++
	}
}

// then is how much had been sent at a moment, as far back as is remembered.
func (b *datagrams) then(at time.Time) uint64 {
	later := look{b.at, b.count}
	for i := b.n - 1; i >= max(0, b.n-datagramLooks); i-- {
		l := b.looks[i%datagramLooks]
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
func (b *datagrams) left(limit uint64) uint64 {
	if limit == unpaced {
		return limit
	}
	return max(limit-min(limit, b.rate), limit/mostFall)
}
