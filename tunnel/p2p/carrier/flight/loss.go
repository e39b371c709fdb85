package flight

import (
	"math"

	"edgemesh/tunnel/p2p/carrier/control"
)

const (
	reorderShare   = 1.0 / 16 // of a round trip: packets may arrive so much out of order
	leastReorder   = 0.002    // seconds; timers of both ends
	mostReorder    = 0.050    // seconds, and half of a round trip: RFC 8985 6.2 has at most a round trip
	reorderKept    = 16       // times that losses are found without a spurious repair, until less is allowed: RFC 8985 6.2.4
	spuriousRTTs   = 2        // for so many round trips a repair may prove to be spurious
	timeoutNoise   = 0.020    // seconds
	leastVariation = 0.010    // seconds; RFC 9002 6.2.1 has a timer's granularity
	maxBackoff     = 8
	timeoutPackets = 2 // sent again by a probe timeout, RFC 9002 6.2.4
	clockNoise     = 0.001
	clockWindow    = 5.0   // seconds, once to three times, in which two clocks
	clockDrift     = 0.015 // may drift so far apart: two that are slewed, each by the usual 500 ppm
	addressDiff    = 20    // bytes that IPv6's header is longer than IPv4's: behind NAT64 each end counts its own
)

// losses is what acknowledgements say of a path, and what they do not.
type losses struct {
	any               bool
	newest            uint64  // acknowledged
	newestSent        float64 // when that was sent
	srtt, rttvar, rtt float64
	shift             float64    // from own clock to the peer's, and the delay
	arrivedLast       float64    // by the peer's clock
	ahead             [2]float64 // the peer's clock is by more than this, now and in the window before,
	aheadSince        float64

	reorder  float64 // how much later than those behind it a packet may arrive, as spurious repairs show
	calm     int     // times that losses were found since
	lossAt   float64 // when the oldest in flight is taken for lost; 0: not before something happens
	progress float64 // when something was acknowledged, or a probe timeout sent
	heard    float64 // when something was acknowledged
	backoff  float64
	acked    float64 // bytes, not yet told to the controller
	lost     float64
	computed uint32 // packets, as told
}

// acknowledged takes an ACK. What it says of packets that were not sent, of more bytes than were sent, or of impossible times is
// counted, and not believed. Who acknowledges what was not sent acknowledges what did not arrive, too: the path begins again.
func (p *Path) acknowledged(a *ack, now float64) {
	s := &p.s
	n := expand(s.next-1, a.newest)
	if s.next == 0 || n >= s.next {
		p.lied()
		return
	}
	if n < s.base {
		return // late
	}
	r := s.record(n)
	fresh := r.state == flying && (!s.any || n > s.newest)
	if r.state == never || !p.runs(a, n, now) {
		p.lied()
		return
	}
	if fresh && a.got > r.total+addressDiff*(n+1) {
		p.peer.refused[TooManyBytes]++
		fresh = false
	}
	if !fresh {
		p.findLost(now)
		return
	}
	sent, waited, size, arrived := r.sent, r.waited, r.size, p.arrival(a, r.sent, now)
	rtt := now - sent - float64(a.delay)*1e-5
	if rtt <= 0 {
		p.peer.refused[WrongTime]++
		rtt = now - sent
	}
	s.measure(max(rtt, 1e-5))
	s.any, s.newest, s.newestSent = true, n, sent
	p.findLost(now)
	s.control.Acked(control.Ack{Now: now, Sent: sent, Arrived: arrived, Got: float64(a.got), Size: float64(size), Number: n, Next: s.next, RTT: s.rtt, Waited: waited,
		Acked: max(s.acked, 0), Lost: s.lost, InFlight: s.inFlight})
	s.acked, s.lost = 0, 0
}

// lied is for an ACK of what was not sent.
func (p *Path) lied() {
	p.peer.refused[NeverSent]++
	p.s.control = control.New()
}

// runs takes the packets that an ACK names, newest first, and reports false if it names one that was not sent.
func (p *Path) runs(a *ack, newest uint64, now float64) (ok bool) {
	s := &p.s
	acked, late, size, below := 0, 0, 0.0, newest+1
	ok = true
	for _, r := range a.runs[:a.n] {
		if ok = ok && uint64(r.missing)+uint64(r.arrived) <= below; !ok {
			break
		}
		below -= uint64(r.missing)
		for n := below - 1; ok && n+1 > max(below-uint64(r.arrived), s.base); n-- {
			switch x := s.record(n); x.state {
			case never:
				ok = false
			case flying:
				acked++
				size += float64(x.size)
				p.peer.out.acknowledged(x.pieces)
				x.pieces, x.state = chain{}, arrived
			case lost:
				late++
				x.state = arrived
			}
		}
		below -= uint64(r.arrived)
	}
	if acked > 0 {
		s.progress, s.heard, s.backoff = now, now, 1
	}
	s.inFlight -= size
	computed := 0 // of them
	if n := int(int32(a.computed - s.computed)); n > 0 {
		s.computed, computed = a.computed, min(n, acked+late)
	}
	if late > computed { // they had arrived
		p.peer.count.Spurious += uint64(late - computed)
		s.reorder, s.calm = min(2*s.window(), max(s.rtt/2, leastReorder), mostReorder), 0
	} else if computed > late { // the line lost them
		lost := size * float64(computed-late) / float64(acked)
		size -= lost
		s.lost += lost
	}
	s.acked += size
	return ok
}

// arrival is when the newest packet arrived by the peer's clock, whose 32 bits of microseconds wrap: next to when it would have
// with the delay of the one before it. It arrived after it was sent and before now, so the peer's clock is ahead of the own one by
// at-sent at most and by at-now at least. Where that contradicts what was so just before, a clock stood still for a while, or the peer's
// is slow or leaps: rates by it would be too high. Then the controller begins again.
func (p *Path) arrival(a *ack, sent, now float64) float64 {
	s := &p.s
	at, known := float64(a.arrived)/1e6, s.any
	if known {
		expected := int64((sent + s.shift) * 1e6)
		at = float64(expected+int64(int32(a.arrived-uint32(expected)))) / 1e6
		known = now-s.aheadSince <= 2*clockWindow // else the clocks may have drifted apart
	}
	slow := at-sent < max(s.ahead[0], s.ahead[1])-clockNoise-clockDrift
	leaps := at-sent-s.shift > now-sent+clockNoise
	if known && (slow || leaps) {
		p.peer.refused[WrongTime]++
		s.control, known = control.New(), false
	} else if known && at < s.arrivedLast-clockNoise {
		p.peer.refused[WrongTime]++ // the controller forgets the delays it knows
	}
	switch {
	case !known:
		s.ahead, s.aheadSince = [2]float64{at - now, at - now}, now
	case now-s.aheadSince > clockWindow:
		s.ahead, s.aheadSince = [2]float64{at - now, s.ahead[0]}, now
	}
	s.ahead[0] = max(s.ahead[0], at-now)
	s.shift, s.arrivedLast = at-sent, at
	return at
}

// measure takes a round trip, RFC 9002 5.3.
func (l *losses) measure(rtt float64) {
	l.rtt = rtt
	if !l.any {
		l.srtt, l.rttvar = rtt, rtt/2
		return
	}
	l.rttvar += (math.Abs(rtt-l.srtt) - l.rttvar) / 4
	l.srtt += (rtt - l.srtt) / 8
}

// window is how much a packet may be late.
func (l *losses) window() float64 { return max(l.reorder, l.srtt*reorderShare, leastReorder) }

// findLost finds what was sent well before a packet that has arrived: RACK, RFC 8985.
func (p *Path) findLost(now float64) {
	s := &p.s
	s.lossAt = 0
	late, found := s.window(), false
	for n := s.first; s.any && n < s.newest; n++ {
		r := s.record(n)
		if r.state != flying {
			continue
		}
		if r.sent >= s.newestSent-late && now < r.sent+s.rtt+late {
			s.lossAt = r.sent + s.rtt + late
			break
		}
		p.lose(r)
		found = true
	}
	if found {
		s.calm++
	}
	if s.calm > reorderKept {
		s.reorder, s.calm = s.reorder/2, 0
	}
	s.advance(now)
}

// lose has a packet's pieces sent again.
func (p *Path) lose(r *record) {
	s := &p.s
	r.state = lost
	s.inFlight -= float64(r.size)
	s.lost += float64(r.size)
	p.peer.out.lost(r.pieces)
	r.pieces = chain{}
}

// timeouts finds losses that no ACK tells of.
func (p *Path) timeouts(now float64) {
	s := &p.s
	if s.inFlight == 0 {
		return
	}
	if s.lossAt > 0 && now >= s.lossAt {
		p.findLost(now)
	}
	if now >= s.progress+s.probeTimeout() {
		p.peer.count.Probes++
		s.progress = now
		s.backoff = min(2*s.backoff, maxBackoff)
		for n, left := s.first, timeoutPackets; n < s.next && left > 0; n++ {
			if r := s.record(n); r.state == flying {
				p.lose(r)
				left--
			}
		}
	}
	s.advance(now)
}

// probeTimeout is RFC 9002's, 6.2.1.
func (l *losses) probeTimeout() float64 {
	return (l.srtt + max(4*l.rttvar, leastVariation) + ackLate + timeoutNoise) * l.backoff
}

// timeout is in how many seconds timeouts is to be called.
func (s *sender) timeout(now float64) float64 {
	if s.inFlight == 0 {
		return longestWait
	}
	wait := s.progress + s.probeTimeout() - now
	if s.lossAt > 0 {
		wait = min(wait, s.lossAt-now)
	}
	return wait
}

// advance forgets records. Those of lost packets stay, so that a spurious repair is noticed.
func (s *sender) advance(now float64) {
	for s.first < s.next && s.record(s.first).state != flying {
		s.first++
	}
	for s.base < s.first && (s.record(s.base).state != lost || now-s.record(s.base).sent > spuriousRTTs*s.srtt+leastReorder) {
		s.base++
	}
}
