package flight

import "edgemesh/tunnel/p2p/carrier/control"

// Path is one path to a peer: a number space, keys and a controller of its own.
type Path struct {
	peer  *Peer
	rests bool // only ACKs leave
	s     sender
	r     receiver
}

// NewPath makes a path. Overhead is what a packet has beside its payload, with all headers.
func (p *Peer) NewPath(overhead int) *Path {
	return &Path{peer: p, s: sender{control: control.New(), overhead: overhead, records: make([]record, firstRecords),
		losses: losses{backoff: 1, srtt: firstRTT, rtt: firstRTT, rttvar: firstRTT / 2}}}
}

// Close ends a path. What it had in flight is sent again on the next one.
func (p *Path) Close() { p.giveBack() }

// giveBack has what is in flight sent again, and forgets the records: what is acknowledged of it teaches nothing.
func (p *Path) giveBack() {
	for n := p.s.first; n < p.s.next; n++ {
		if r := p.s.record(n); r.state == flying {
			p.peer.out.lost(r.pieces)
			r.pieces = chain{}
		}
	}
	p.s.base, p.s.first, p.s.inFlight = p.s.next, p.s.next, 0
}

// Rest has nothing but ACKs leave, or ends that: of all paths to a peer one carries. What is in flight is repaired on that one.
func (p *Path) Rest(rests bool) { p.rests = rests }

// Afresh forgets what is known of the line, as packets take another one from now on. What is in flight counts neither for the new
// line's window nor for its round trip (RFC 9000, 9.4), and may well be lost: it is sent again.
func (p *Path) Afresh() {
	p.giveBack()
	p.s.control = control.New()
	p.s.parity.reset()
	p.s.lossAt, p.s.acked, p.s.lost = 0, 0, 0
	p.s.any, p.s.srtt, p.s.rtt, p.s.rttvar, p.s.backoff = false, firstRTT, firstRTT, firstRTT/2, 1
}

// Silent is for how many seconds nothing was acknowledged though something is in flight.
func (p *Path) Silent(now float64) float64 {
	if p.s.inFlight == 0 {
		return 0
	}
	return now - p.s.heard
}

// InFlight is how much was sent and not acknowledged, with all headers.
func (p *Path) InFlight() float64 { return p.s.inFlight }

// Control is the path's controller, to be read.
func (p *Path) Control() *control.Control { return p.s.control }

// Next appends the payload of the next packet, of at most room bytes, to dst, if one may leave now. Number is what it will be sealed
// with: above all those before. If there is none, wait is for how many seconds at most not to ask again, unless something happens.
func (p *Path) Next(now float64, number uint64, dst []byte, room int) (payload []byte, wait float64) {
	s, out := &p.s, &p.peer.out
	out.expire(now)
	p.peer.in.expire(now)
	p.timeouts(now)
	rate := s.refill(now)
	due := p.r.due(now)
	p.reserve(number)
	open := s.inFlight < s.control.Window()
	waits, datagram := out.waits()
	idle := !waits && !datagram
	stream := open && !p.rests && waits
	datagram = datagram && !p.rests && (open || !s.control.SlowStart())
	pace := s.pace(rate)
	if s.parity.most > room-parityHeader { // packets are smaller from now on
		s.parity.reset()
	}
	if open && !p.rests && s.tokens > 0 && p.sumDue(now, idle) {
		return p.sendSum(now, number, dst), 0
	}
	rides := stream && pace <= soon // a datagram goes with what leaves soon
	if stream && s.tokens > 0 || datagram && !rides && s.tokens > -datagramDebt {
		if b := p.build(now, number, dst, room, due <= 0, stream && s.tokens > 0); len(b) > len(dst) {
			return b, 0
		}
		stream, datagram = false, false // it does not fit
	}
	if due <= 0 && (!(stream || datagram) || pace > soon) {
		p.peer.count.Acks++
		a := p.r.ack(now)
		b := a.append(dst)
		s.sent(now, number, len(b)-len(dst), chain{}, false, false)
		return b, 0
	}
	if !stream && !datagram {
		pace = due
	}
	return dst, p.until(now, pace, idle)
}

// until is for how many seconds nothing is due: of losses, of parity, or soon.
func (p *Path) until(now, soon float64, idle bool) float64 {
	wait := min(longestWait, p.s.timeout(now), soon)
	s := &p.s
	if s.parity.n > 0 && idle && !p.rests && s.inFlight < s.control.Window() {
		wait = min(wait, max(s.parity.last+sumAfter-now, -s.tokens/s.control.Rate(s.inFlight)))
	}
	return max(wait, leastWait)
}

// Quiet reports that nothing that has arrived lets anything leave now, on any path. Wait is as Next has it.
func (p *Path) Quiet(now float64) (wait float64, quiet bool) {
	stream, datagram := p.peer.out.waits()
	due := p.r.due(now)
	if stream || datagram || due <= 0 {
		return 0, false
	}
	return p.until(now, due, true), true
}

// build makes a packet of what waits.
func (p *Path) build(now float64, number uint64, dst []byte, room int, acks, stream bool) []byte {
	out := &p.peer.out
	b, end := dst, len(dst)+room
	if acks && room >= ackHeader+4*maxRanges { // first, or datagrams of full size would leave it no room for as long as they wait
		a := p.r.ack(now)
		b = a.append(b)
	}
	began := len(b)
	for {
		d := out.source.Datagram(now, end-len(b)-datagramHeader)
		if d == nil {
			break
		}
		b = appendDatagram(b, d)
	}
	elicits, waits := len(b) > began, p.waits()
	if elicits && !acks && !waits && p.r.pending > 0 && end-len(b) >= ackHeader+4*maxRanges { // an echo's answer: the ACK rides
		a := p.r.ack(now)
		b = a.append(b)
	}
	streams := len(b)
	var in chain
	if stream {
		left := end - len(b)
		if p.protects() {
			left = min(left, room-parityHeader)
		}
		if b, in = out.fill(b, left, now); in.first != nil {
			elicits, waits = true, p.waits()
			p.s.parity.add(number, b[streams:], now, p.protects())
		}
	}
	if len(b) == len(dst) {
		return b
	}
	if !elicits { // what waits does not fit behind the ACK
		p.peer.count.Acks++
	}
	p.peer.count.Packets++
	p.s.sent(now, number, len(b)-len(dst), in, elicits, waits)
	return b
}

// waits says whether something waits to be sent, so that rate or window limit.
func (p *Path) waits() bool {
	stream, datagram := p.peer.out.waits()
	return stream || datagram
}
