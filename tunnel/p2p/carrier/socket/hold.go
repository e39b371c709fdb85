package socket

import "time"

// The rate is lowered by these shares of the line's, the last only when the queue is known to be in our direction.
const leastCut, mostCut, ownCut = 0.1, 0.3, 0.5

// mostFall is how many times slower one measurement may find a line: links stop, and so do those who answer.
const mostFall = 4

// holdTime and holdTrips round trips bound how long the rate is held.
const (
	holdTime  = 4 * time.Second
	holdTrips = 8
)

// mostMisses is at how many rounds without success a queue is attributed to cross traffic; those in which as much arrived as
// was sent count twice.
const mostMisses = 4

// hold lowers the rate until a queue is gone. Whether it is the connection's own shows a round trip later: then more
// arrives than is sent. As much as is sent arrives where the queue is cross traffic's, or the other direction's, in which
// acknowledgements wait. Such a queue is left to them, and what was taken for the line's rate was only that of the sender.
type hold struct {
	since  time.Time     // zero: there is none
	trip   time.Duration // the round trip then
	before uint64        // the line's rate as known before
	rate   uint64        // and as it was found
	told   uint64        // where it was unknown: what arrived while the queue stood
	own    bool          // more arrived than was sent
	busy   bool          // data waited while it stood
	misses int           // rounds in which it has not, or the queue has not become shorter
	low    time.Duration // the shortest queue of a round
	asked  time.Time     // when the limit was set last
	first  time.Duration // the queue then
	most   time.Duration // the longest meanwhile
}

// beginDrain has the queue drain of a line that carries so much.
func (p *pacer) beginDrain(s sight, rate uint64, now time.Time) order {
	queue := p.route.queue()
	p.hold = hold{since: now, asked: now, trip: s.rtt, before: p.line, rate: rate, busy: p.stand.busy(), first: queue, low: queue}
	if p.probe.proven() {
		rate = max(rate, p.line/mostFall)
	}
	p.line, p.probe.open, p.probe.due = max(rate, 1), false, false
	p.round.begin(s, now)
	return p.below(s)
}

// below is a rate at which what stands in the queue drains within two round trips and a little.
func (p *pacer) below(s sight) order {
	most := mostCut
	if p.hold.own {
		most = ownCut
	}
	cut := float64(p.route.queue()) / float64(2*p.route.least+100*time.Millisecond)
	return order{limit: p.above(-min(max(cut, leastCut), most))}
}

func (p *pacer) draining(s sight, queue time.Duration, now time.Time) order {
	d := &p.hold
	d.most = max(d.most, queue)
	if d.before == 0 && p.stand.tells(s, now, max(2*leastRound, p.route.least/4)) {
		d.told = p.stand.rate(s, now) // BBR's estimate is of a start's rounds before
	}
	if now.Sub(d.since) > holdTime+holdTrips*p.route.least {
		return p.leaveQueue(s, now)
	}
	if !p.round.enough(s, now, max(p.route.least, leastRound), leastSegments/2) {
		return order{}
	}
	r, rate, sent := p.round, max(p.lost.plus(p.round.rate(s, now)), p.line/mostFall), min(p.round.sentRate(s, now), p.limit)
	p.round.begin(s, now)
	if r.since.Sub(d.asked) < s.rtt { // what arrived had been sent before
		if queue <= d.first+p.slack(s) {
			return order{}
		}
		d.first, d.low, rate = queue, queue, min(rate, p.line) // the line has become slower still
	} else {
		if !r.busy() && rate < p.limit { // nothing more is to be sent
			return p.endDrain(s, now)
		}
		if d.judge(r.queue, rate, sent); d.misses >= mostMisses {
			return p.leaveQueue(s, now)
		}
	}
	if rate > p.line || r.queue >= p.slack(s) { // else it was empty for a part of the time
		p.line = rate
	}
	d.asked = now
	return p.below(s)
}

// judge tells by a round whose queue it is, from what arrived and what was sent in it: that is less than the limit where
// BBR's window is full, because acknowledgements wait.
func (d *hold) judge(queue time.Duration, rate, sent uint64) {
	switch {
	case near(rate, sent):
		d.misses += 2
	case queue > d.low-max(2*time.Millisecond, d.low/16):
		d.misses++
	default:
		d.misses = 0
	}
	d.own = d.own || rate > sent && !near(rate, sent)
	d.low = min(d.low, queue)
}

// near reports whether as much arrives as is sent.
func near(rate, sent uint64) bool { return rate >= sent-sent/16 && rate <= sent+sent/16 }

func (p *pacer) endDrain(s sight, now time.Time) order {
	if d := p.hold; d.own {
		p.probe.carried = now
	} else {
		p.line = max(p.line, d.rate, d.told)
		if d.busy && p.round.busy() && now.Sub(d.since) < max(d.trip, leastRound) && p.probe.proven() { // not because less was sent
			p.line = max(p.line, d.before)
		}
	}
	p.route.alone = 0
	if d := p.hold; d.before == 0 && d.told == 0 && now.Sub(d.since) < d.trip { // a start's queue that went by itself tells little
		p.probe.unknown()
		return p.afterDrain(s, now)
	}
	switch {
	case p.line < p.hold.before/4*3:
		p.probe.newLine(p.hold.before, now)
	case !p.probe.since.IsZero():
		p.probe.end(p.line, p.route.tellTime(p.line), now)
	default:
		p.probe.known(p.route.tellTime(p.line))
	}
	return p.afterDrain(s, now)
}

// leaveQueue leaves the queue to others.
func (p *pacer) leaveQueue(s sight, now time.Time) order {
	if p.probe.proven() {
		p.line = max(p.line, p.hold.before)
	}
	p.route.attribute(p.hold.most, now)
	p.probe.stop()
	return p.afterDrain(s, now)
}

func (p *pacer) afterDrain(s sight, now time.Time) order {
	p.hold, p.stand = hold{}, round{}
	p.round.begin(s, now)
	return p.ceiling()
}
