package flight

import "crypto/subtle"

const (
	keptPackets  = 128   // whose frames a receiver keeps: a sum reaches back 32, and may be late
	sumPackets   = 16    // at most, and
	sumLeast     = 4     // at least, but at the end of a burst
	sumLosses    = 0.25  // of a packet of a sum is lost: two of one sum are not repaired
	sumAfter     = 0.002 // seconds without another packet end a burst
	lossy        = 0.004 // of the packets are lost: less is not worth a sum
	spareLine    = 0.9   // of what the line holds is in flight at most where it has room
	sumReach     = 32
	maxProtected = 1536 // bytes of STREAM frames
)

// parity is the sum of packets that were sent.
type parity struct {
	newest uint64
	mask   uint32 // bit i: newest-i
	n      int
	length uint16
	most   int
	last   float64 // when one was added
	xor    [maxProtected]byte
}

func (f *parity) reset() {
	clear(f.xor[:f.most])
	f.mask, f.n, f.length, f.most = 0, 0, 0, 0
}

// add adds a packet's STREAM frames, if it is to be protected.
func (f *parity) add(number uint64, frames []byte, now float64, protects bool) {
	if !protects || len(frames) > maxProtected {
		return
	}
	if f.n > 0 && (number-f.newest >= sumReach || f.mask>>(sumReach-(number-f.newest)) != 0) {
		f.reset()
	}
	if f.n > 0 {
		f.mask <<= number - f.newest
	}
	f.mask |= 1
	f.newest, f.last = number, now
	f.n++
	f.length ^= uint16(len(frames))
	subtle.XORBytes(f.xor[:], f.xor[:len(frames)], frames)
	f.most = max(f.most, len(frames))
}

// protects says whether packets are summed up: the path loses some, and the line has room.
func (p *Path) protects() bool {
	c := p.s.control
	return c.Loss() >= lossy && p.s.inFlight < spareLine*c.BDP()
}

// sumDue says whether the sum is to be sent. Idle: nothing waits, which ends a burst.
func (p *Path) sumDue(now float64, idle bool) bool {
	f := &p.s.parity
	if f.n > 0 && f.newest < p.s.first { // what it is of has arrived, or was sent again
		f.reset()
	}
	if f.n == 0 {
		return false
	}
	group := int(min(max(sumLosses/p.s.control.Loss(), sumLeast), sumPackets))
	return f.n >= group && p.protects() || idle && now-f.last >= sumAfter
}

// sendSum makes a packet of the sum.
func (p *Path) sendSum(now float64, number uint64, dst []byte) []byte {
	f := &p.s.parity
	s := sum{newest: uint32(f.newest), mask: f.mask, length: f.length, data: f.xor[:f.most]}
	b := s.append(dst)
	f.reset()
	p.peer.count.Sums++
	p.peer.count.Packets++
	p.s.sent(now, number, len(b)-len(dst), chain{}, true, p.waits())
	return b
}

// kept is the STREAM frames of the last packets; nil until the peer sent a sum.
type kept struct {
	packets [keptPackets]struct {
		number uint64 // and 1; 0: none
		n      int
		frames [maxProtected]byte
	}
	sum [maxProtected]byte // while one is computed
}

// keep keeps a packet's STREAM frames.
func (r *receiver) keep(number uint64, frames []byte) {
	if r.kept == nil || len(frames) > maxProtected {
		return
	}
	k := &r.kept.packets[number%keptPackets]
	k.number, k.n = number+1, copy(k.frames[:], frames)
}

// compute computes the one packet that is missing of a sum.
func (p *Path) compute(number uint64, s *sum, now float64) {
	r := &p.r
	if r.kept == nil {
		r.kept = new(kept)
		return
	}
	newest, length := expand(number, s.newest), s.length
	if newest >= number || number-newest > keptPackets || len(s.data) > maxProtected {
		return
	}
	frames := &r.kept.sum
	clear(frames[copy(frames[:], s.data):])
	missing, lost := 0, uint64(0)
	for i := range uint64(sumReach) {
		if s.mask>>i&1 == 0 || i > newest {
			continue
		}
		k := &r.kept.packets[(newest-i)%keptPackets]
		if k.number != newest-i+1 {
			missing++
			lost = newest - i
			continue
		}
		length ^= uint16(k.n)
		subtle.XORBytes(frames[:], frames[:k.n], k.frames[:k.n])
	}
	if missing != 1 || int(length) > len(s.data) || length == 0 || r.told.has(lost) || !p.streams(frames[:length], now) {
		return
	}
	p.peer.count.Computed++
	r.computed++
	r.take(lost)
	r.keep(lost, frames[:length])
}
