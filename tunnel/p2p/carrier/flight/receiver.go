package flight

const (
	ackEvery   = 0.005         // seconds between ACKs
	ackLate    = 0.025         // seconds that one packet waits for another, or for what its ACK goes with: RFC 9000's usual max_ack_delay
	ackPackets = 64            // are acknowledged immediately: a train of GSO
	ackLone    = 8             // are acknowledged soon though all are datagrams: fewer may be a request and an answer
	ackHoles   = maxRanges / 4 // so are holes: each is told four times at least
	ackTells   = 16            // times at least that an ACK tells of a packet, and
	ackTold    = 0.080         // seconds for which it does: all ACKs of these may be lost
	soon       = 0.008         // seconds that an ACK or a datagram waits for a packet to go with
)

// receiver is what arrived on a path.
type receiver struct {
	arrived window // packets
	told    window // packets that arrived or were computed, and were taken whole

	newest    uint64 // of the packets to acknowledge
	newestAt  float64
	newestGot uint64 // bytes when it arrived
	got       uint64
	pending   int     // packets to acknowledge
	repairs   bool    // the peer keeps some of them until then; of what is missing it may
	holes     int     // that appeared since the last ACK
	since     float64 // when the first of pending arrived
	acked     float64 // when an ACK was sent
	old, ago  uint64  // ACKs have had packets below old often enough, and soon those below ago:
	acks      int     // ACKs since ago was the newest,
	turned    float64 // at this time

	computed uint32
	kept     *kept
}

// Receive takes the payload of a packet that is authentic. Arrived is when the kernel had it, by the clock of now. Payload may be
// changed afterwards. First is what First says.
func (p *Path) Receive(number uint64, payload []byte, arrived, now float64) (first bool) {
	r := &p.r
	p.peer.in.expire(now)
	if !p.First(number) {
		return false
	}
	elicits, ok := p.frames(number, payload, now)
	if elicits {
		r.got += uint64(len(payload) + p.s.overhead)
	}
	if !ok {
		return true
	}
	r.take(number)
	if !elicits {
		return true
	}
	if r.newestAt == 0 || number > r.newest {
		if number > r.newest+1 && !r.told.has(number-1) {
			r.holes++
		}
		r.newest, r.newestAt, r.newestGot = number, arrived, r.got
	}
	if r.pending == 0 {
		r.since = now
	}
	r.pending++
	return true
}

// take notes that a packet was taken whole.
func (r *receiver) take(number uint64) {
	r.told.add(number)
	r.old, r.ago = min(r.old, number), min(r.ago, number)
}

// First reports whether a packet is not one that came before, which is counted.
func (p *Path) First(number uint64) bool {
	first := p.r.arrived.add(number)
	if !first {
		p.peer.refused[Repeated]++
	}
	return first
}

// frames takes all frames of a packet. It reports whether the packet wants to be acknowledged, and whether it may be.
func (p *Path) frames(number uint64, b []byte, now float64) (elicits, ok bool) {
	if len(b) > maxPayload {
		p.peer.refused[Malformed]++
		return false, false
	}
	acks, sums := 0, 0
	for len(b) > 0 {
		switch b[0] {
		case kindAck:
			var a ack
			if b, ok = a.parse(b); ok && acks == 0 {
				acks++
				p.acknowledged(&a, now)
				continue
			}
		case kindDatagram:
			var data []byte
			if data, b, ok = parseDatagram(b); ok {
				elicits = true
				p.peer.in.sink.Datagram(data)
				continue
			}
		case kindParity:
			var s sum
			if b, ok = s.parse(b); ok && sums == 0 {
				sums++
				elicits, p.r.repairs = true, true
				p.compute(number, &s, now)
				continue
			}
		case kindStream:
			p.r.repairs = true
			if !p.streams(b, now) {
				return true, false
			}
			p.r.keep(number, b)
			return true, true
		}
		p.peer.refused[Malformed]++
		return elicits, false
	}
	return elicits, true
}

// streams takes STREAM frames, which end the packet, and reports whether all could be taken.
func (p *Path) streams(b []byte, now float64) (taken bool) {
	packet := arriving{frames: b}
	defer p.peer.in.arrived(&packet)
	taken = true
	for n := 0; len(b) > 0; n++ {
		s, rest, ok := parseStream(b)
		if !ok || n == maxPieces || b[0] != kindStream {
			p.peer.refused[Malformed]++
			return false
		}
		if why, ok := p.peer.in.take(s, len(packet.frames)-len(b), &packet, now); !ok {
			p.peer.refused[why]++
			taken = false
		}
		b = rest
	}
	return taken
}

// due is in how many seconds an ACK is to be sent.
func (r *receiver) due(now float64) float64 {
	switch {
	case r.pending == 0:
		return longestWait
	case r.pending >= ackPackets || r.holes >= ackHoles:
		return 0
	case r.pending >= 2 && (r.repairs || r.holes > 0) || r.pending >= ackLone:
		return max(r.since, r.acked+ackEvery) - now
	}
	return max(r.since+ackLate, r.acked+ackEvery) - now
}

// ack is what is acknowledged now: the newest packets, and as many runs below them as an ACK has room for, down to what was told often
// enough. What lies below was in ACKs before.
func (r *receiver) ack(now float64) (a ack) {
	a = ack{newest: uint32(r.newest), arrived: uint32(int64(r.newestAt * 1e6)), delay: uint16(min(max((now-r.newestAt)*1e5, 0), 65535)),
		got: r.newestGot, computed: r.computed}
	r.pending, r.repairs, r.holes, r.acked = 0, false, 0, now
	if r.acks++; r.acks > ackTells && now-r.turned >= ackTold {
		r.old, r.ago, r.acks, r.turned = r.ago, r.newest+1, 1, now
	}
	for below := r.newest + 1; a.n < maxRanges && below > r.old; a.n++ { // below: all numbers not told yet
		missing := r.told.down(below-1, false)
		if missing == below {
			break
		}
		arrived := r.told.down(below-1-missing, true)
		if arrived == 0 { // the window's end
			break
		}
		a.runs[a.n] = run{uint16(missing), uint16(arrived)}
		below -= missing + arrived
	}
	return a
}
