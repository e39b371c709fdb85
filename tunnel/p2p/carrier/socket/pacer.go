package socket

import "time"

const (
	// leastRound and leastSegments are the least time and data by which a rate is told; sparse are more segments, for where
	// no data wait, and sure still more, where that would halve a rate.
	leastRound    = 40 * time.Millisecond
	leastSegments = 32
	sparse, sure  = 64, 256
	// standingQueue is by how many bytes more than fit a start has to be ahead.
	standingQueue = 64 << 10
	// farTrip is from which round trip on what is seen is old when it is: rounds that carried less do not lower the line there, and
	// a thin one is exceeded by little.
	farTrip = 200 * time.Millisecond
	// fewLooks at a queue are no spike.
	fewLooks = 2
	// A round with fewSegments is over after longRound, or longTrips round trips.
	fewSegments, longTrips = 4, 4
	longRound              = 500 * time.Millisecond
	// doubtCut is the share of the line's rate that is left out while a queue stands that may be the peer's: it drains then, if
	// it is not.
	doubtCut = 0.05
	// idleTime without data, or two round trips with one's own queue, end what was being found out.
	idleTime = 100 * time.Millisecond
	// nearQueue is longer than processors make packets wait.
	nearQueue = 100 * time.Millisecond
	// unpaced is SO_MAX_PACING_RATE's "no limit".
	unpaced = ^uint64(0)
)

// sight is what the kernel reports of a BBR connection at one moment.
type sight struct {
	rate     uint64 // BBR's estimate of the path's rate, bytes per second
	starting bool   // BBR searches the rate with its high gain
	emptied  bool   // BBR empties the path for a moment, to see its round trip (PROBE_RTT)
	rtt      time.Duration
	floor    time.Duration // least round trip of the last 5 minutes (net.ipv4.tcp_min_rtt_wlen)
	recent   time.Duration // BBR's least round trip, of the last 10 s or so; 0: unknown
	underWay uint64        // bytes sent and not acknowledged
	inFlight uint64        // of them, those neither known to be lost nor to have arrived
	repairs  bool          // segments were lost, and are repaired
	paused   time.Duration // since when nothing had been written
	unsent   bool          // bytes waited in the socket nevertheless
	segment  uint32        // bytes
	arrived  traffic       // there
	came     uint32        // segments, acknowledgements among them
	sent     traffic
	resent   uint32 // segments of them
	received traffic
}

// traffic is the data that went one way.
type traffic struct {
	bytes    uint64
	segments uint32
}

// since is how many bytes there were since then. A segment that is short counts as a full one as long as others before it are
// missing, so there may seem to be less.
func (t traffic) since(then traffic) uint64 {
	if t.bytes < then.bytes {
		return 0
	}
	return t.bytes - then.bytes
}

// order is what to do with the connection.
type order struct {
	limit   uint64 // SO_MAX_PACING_RATE, 0: as it is
	restart bool   // BBR forgets everything and starts again
}

// pacer keeps a BBR connection (v1, net/ipv4/tcp_bbr.c) at the rate of its line, with no queue in front of it. BBR alone
// does not, because a flow inside the tunnel, clocked by its own acknowledgements, does not use a carrier as a file transfer
// would: BBR's start does not end, it loses its rate after losses and finds it slowly, and keeps one that is too high, as
// lower ones count only while data wait in the socket.
//
// So the rate is found here. While a queue stands, what arrives is the line's rate; it is held below that until the queue
// has drained (hold.go), then a little above. From time to time, and without a pause after the line has changed, more is
// tried: BBR is restarted, which takes it to the limit soon (probe.go). BBR repairs losses, spaces segments and bounds what
// is on the way.
type pacer struct {
	route route
	line  uint64 // what the line carries, bytes per second; 0: unknown
	limit uint64 // bytes per second
	tried uint64 // the highest limit since a round ended
	round round  // of the rate
	stand round  // since a queue stands; zero: none does
	hold  hold
	probe prober
	stood time.Time // when a queue stood or overflowed last
	doubt bool      // a queue stands that may be the peer's
	set   uint64    // the limit that the kernel has
	lost  losses
}

// decide returns what to do now.
func (p *pacer) decide(s sight, now time.Time) order {
	s.rate = p.lost.plus(s.rate)
	if p.route.observe(s, p.line, now) && p.line > 0 {
		p.probe.newRoute(p.route.others(), now)
		p.lost = losses{}
		p.hold.own, p.hold.before, p.hold.told = false, p.line, 0 // another route's
	}
	idle := s.paused > max(idleTime, 2*(s.rtt-p.route.foreign))
	if p.route.least < swiftRTT {
		return p.near(s, idle, now)
	}
	if idle || s.emptied {
		p.round.begin(s, now)
		p.stand = round{}
		p.probe.stop()
		if s.emptied || now.Sub(p.route.looked) > expireTime { // after a pause BBR takes the first round trip
			p.route.looked = now
		}
	}
	if s.emptied {
		p.lost.lowered = now // what was lost before is repaired, and little else is sent
		return order{}
	}
	queue := p.route.queue()
	p.round.look(s, queue)
	doubted := p.doubt
	p.doubt = p.route.peer.queue > 0 && queue >= p.slack(s)-p.route.peer.queue && !p.slight(s)
	switch {
	case queue < p.slack(s) || p.slight(s):
		p.stand = round{}
	case p.stand.since.IsZero():
		p.stand.begin(s, now)
	}
	if !p.stand.since.IsZero() {
		p.stand.look(s, queue)
		p.stood = now
	}
	var o order
	switch {
	case p.line == 0:
		o = p.search(s, queue, now)
	case p.hold.since.IsZero():
		o = p.cruise(s, queue, now)
	case idle || queue < p.slack(s)/3*2 || p.slight(s):
		o = p.endDrain(s, now)
	default:
		o = p.draining(s, queue, now)
	}
	free := p.line > 0 && p.hold.since.IsZero() // no queue drains
	steady := free && p.probe.since.IsZero()
	if o == (order{}) && steady && p.doubt != doubted {
		o = p.ceiling()
	}
	switch {
	case o.restart:
		p.route.looked = now
	case free && p.route.sure(s, p.line, now):
		p.route.looked, o.restart = now, true
		if steady {
			if !p.probe.open {
				o.limit = p.line
			}
			p.round.begin(s, now)
		}
	}
	return p.carryOut(o)
}

// near leaves a connection alone that processors limit, not a link with a queue. A queue longer than theirs is a link's after all, whose
// first bytes passed immediately: what they told BBR it believes for ten round trips. Sent at that rate, repairs would be lost again and again.
func (p *pacer) near(s sight, idle bool, now time.Time) order {
	p.round.look(s, 0)
	switch {
	case idle || p.route.queue() < nearQueue:
		return p.leave()
	case p.round.since.IsZero():
		p.round.begin(s, now)
	case p.round.enough(s, now, longRound, fewSegments):
		rate, waited := max(p.round.rate(s, now), leastSegments*uint64(s.segment)), p.round.busy()
		if p.round.begin(s, now); waited {
			return p.carryOut(order{limit: rate + rate/4})
		}
	}
	return order{}
}

// leave leaves the connection alone, and forgets its line.
func (p *pacer) leave() order {
	*p = pacer{route: p.route, limit: p.limit, set: p.set}
	return p.carryOut(order{limit: unpaced})
}

// carryOut leaves out what is set already.
func (p *pacer) carryOut(o order) order {
	if o.limit != 0 {
		p.limit = o.limit
	}
	p.tried = max(p.tried, p.limit)
	if p.limit == 0 { // what arrives first was sent without one
		p.tried = unpaced
	}
	o.limit = 0
	if before := p.set; p.limit != before && (before != 0 || p.limit != unpaced) {
		o.limit = p.limit
	}
	p.set = p.limit
	return o
}

// slack is how much longer than the least a round trip is without a queue.
func (p *pacer) slack(s sight) time.Duration {
	rate := p.line
	if rate == 0 {
		rate = s.rate
	}
	return p.route.slack(rate)
}

// above is the line's rate and a share of it.
func (p *pacer) above(share float64) uint64 { return uint64(float64(p.line) * (1 + share)) }

// beside leaves the search to BBR, as long as others use the line: it finds its share.
func (p *pacer) beside(s sight, r round, rate uint64, now time.Time) order {
	o := p.ceiling()
	if r.busy() && s.rate < p.line/2 && p.probe.may(s, p.line, rate, now) { // but not a lost rate
		o.restart = p.beginProbe(s, now).restart
		p.probe.end(0, p.route.tellTime(p.line), now)
	}
	if r.busy() {
		p.line = max(rate, p.line/8*7)
	}
	return o
}

// ceiling is the limit while nothing is looked for: BBR's own search goes a little higher than the line. A flow that grows
// below it must not meet it before the line's end, unless a queue stands that may be the peer's.
func (p *pacer) ceiling() order {
	step := leastStep(p.route.tellTime(p.line))
	if p.route.far() && p.route.thin(p.line) {
		step = min(step, farStep)
	}
	switch {
	case p.route.foreign > 0:
		return order{limit: unpaced}
	case p.doubt:
		step = -doubtCut
	case p.probe.open:
		step = max(step, p.probe.step)
	}
	return order{limit: p.above(step)}
}

// slight reports whether too little is on the way to fill the line: answers come late then, as each segment is acknowledged
// late.
func (p *pacer) slight(s sight) bool {
	return !s.unsent && float64(s.underWay) < max(4*float64(s.segment), p.route.fits(max(p.line, s.rate))/8)
}

// stands reports whether a queue has stood for long enough to tell the line's rate by what arrived. Where no data wait, the
// round trip may be long because little is sent: each segment is acknowledged late then.
func (p *pacer) stands(s sight, queue time.Duration, now time.Time) bool {
	r := &p.stand
	took := now.Sub(r.since)
	if r.since.IsZero() || took < max(leastRound, p.route.least/4) {
		return false
	}
	least, rate := uint32(leastSegments), r.rate(s, now)
	// A flow's slow start makes one of a round trip, for a moment.
	long := queue >= 2*p.slack(s) && (r.busy() || queue >= p.route.least)
	switch {
	case !r.busy() && !long && rate < max(p.line, s.rate)/2 && float64(s.underWay) < p.route.fits(max(p.line, s.rate)):
		least = sure
	case !r.busy():
		least = sparse
	}
	if long {
		least /= 2
	}
	if rate < p.line/4*3 { // arrivals may have paused
		if took < max(2*leastRound, p.route.least/2) {
			return false
		}
		if p.probe.proven() {
			least = min(2*least, sure)
		}
	}
	if r.busy() && queue >= 3*p.slack(s) && !p.route.far() && p.route.thin(max(p.line, s.rate)) { // it becomes much longer until more has arrived
		least = leastSegments / 4
	}
	if r.segments(s) < least {
		return false
	}
	lately := now.Sub(p.probe.carried) < carriedTime && took < besideTime
	return r.busy() || rate >= p.line/2 || !lately || !p.route.beginsBeside(s, r.underWay, p.line, now)
}

// search waits for BBR's start to show the line's rate. It ends by itself, if enough data wait, or fills a queue.
func (p *pacer) search(s sight, queue time.Duration, now time.Time) order {
	full := p.route.fits(s.rate) + standingQueue
	// A start has stopped growing in its own queue; in that of cross traffic it does not.
	ended := !s.starting ||
		now.Sub(p.stand.since) > 4*p.route.least && (p.stand.rate(s, now) > s.rate/4*3 || queue > 2*p.slack(s))
	switch {
	case p.route.foreign == 0 && s.starting && s.rate > 0 && queue >= p.slack(s) && float64(s.underWay) >= full &&
		now.Sub(p.stand.since) >= p.route.least/16: // one late answer is none
		rate := s.rate // high, if acknowledgements came together
		if p.stand.enough(s, now, leastRound, leastSegments/2) {
			rate = min(rate, p.stand.rate(s, now))
		}
		return p.beginDrain(s, rate, now)
	case p.route.foreign == 0 && p.stands(s, queue, now) && ended:
		return p.beginDrain(s, max(p.stand.rate(s, now), s.rate/mostFall), now)
	case !p.round.full(s, now):
		return order{}
	}
	r := p.round
	p.round.begin(s, now)
	switch {
	case r.lossy(s) && r.segments(s) >= leastSegments && p.lost.telling(&r, s, s.rate/mostFall, p.route.least, now):
		// A queue too short to stand overflows: what arrives is all that the line carries.
		p.line, p.stood = max(r.rate(s, now), s.rate/mostFall), now
		p.lost.lower(p.line, now)
		if !r.busy() { // it overflowed by what came together
			p.probe.unknown()
		}
	case !r.busy() || s.starting:
		return order{}
	default:
		p.line = max(r.rate(s, now), s.rate)
		if p.stand.since.IsZero() && p.route.foreign == 0 { // with no queue: the line may carry much more
			p.probe.unknown()
		}
	}
	return p.ceiling()
}

// cruise sends at the line's rate.
func (p *pacer) cruise(s sight, queue time.Duration, now time.Time) order {
	if p.route.foreign == 0 && !p.stand.since.IsZero() {
		if p.stands(s, queue, now) {
			return p.beginDrain(s, p.lost.plus(p.stand.rate(s, now)), now)
		}
		if p.stand.looks >= fewLooks && p.stand.busy() && p.limit > p.above(newStep) { // it does not grow meanwhile
			p.probe.step = min(p.probe.step, newStep)
			return order{limit: p.above(leastStep(p.route.tellTime(p.line)))}
		}
	}
	keeps := s.starting || s.keepsWindow(p.route.fits(p.line)) // a start is not begun again
	if p.probe.due && keeps {
		p.round.begin(s, now)
		return p.beginProbe(s, now)
	}
	if !p.round.full(s, now) {
		return order{}
	}
	r, due := p.round, p.probe.due
	p.probe.due = false
	p.round.begin(s, now)
	passed, line := p.lost.look(&r, s, p.line, p.route.least, now)
	rate := min(p.lost.plus(r.rate(s, now)), p.tried) // more than was sent did not arrive in that time
	if rate > lostRate(p.line) {
		p.probe.carried = now
	}
	tried := p.tried
	p.line, p.tried = max(p.line, rate, line), p.limit
	if p.route.foreign > 0 {
		return p.beside(s, r, rate, now)
	}
	if passed < 1 {
		return p.overflowed(passed, rate, tried, now)
	}
	if !p.probe.since.IsZero() {
		return p.probing(s, r, rate, tried, now)
	}
	// Acknowledgements that arrive together make a round look faster than it was; BBR's estimate does not have this error.
	if most := max(rate, s.rate); most < p.line && most > lostRate(p.line) && r.busy() && !p.probe.open && !p.doubt && !p.route.far() {
		p.line -= (p.line - most) / 8 // as it may be the estimate that is wrong
	}
	if r.waits() && p.probe.may(s, p.line, rate, now) {
		if due || keeps {
			return p.beginProbe(s, now)
		}
		p.probe.due = true
	}
	return p.ceiling()
}

// overflowed lowers the line after a round in which much more was lost than usual: the queue is too short to stand, or what
// is sent comes in bursts.
func (p *pacer) overflowed(passed float64, rate, tried uint64, now time.Time) order {
	before := p.line
	p.lost.lower(before, now)
	carried := min(p.line, uint64(passed*float64(min(tried, 2*p.line))))
	p.line, p.stood, p.probe.open = max(rate, carried, p.line/mostFall), now, false
	switch {
	case p.line < before/4*3:
		p.probe.newLine(before, now)
	case !p.probe.since.IsZero():
		p.probe.end(p.line, p.route.tellTime(p.line), now)
	}
	return p.ceiling()
}
