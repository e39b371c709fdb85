package flows

import (
	"math"

	"edgemesh/tunnel/p2p/carrier/control"
)

// bbr is the kernel's BBR v1: the rate of a sample is the lower of the send and the ack rate, the window has the kernel's quanta,
// its recovery conserves packets for a round.
type bbr struct {
	max10                      [10]float64
	round, state, phase, fullN int
	mark, recMark              uint64
	full, phaseT, endPR        float64
	minRTT, minT               float64
	sent                       []sample
	conserve, inRec            bool
	startedPR                  bool
	cwnd                       float64
	seed                       uint32
}

type sample struct {
	next               uint64
	got, at, firstSent float64
}

func newBBR(seed uint32) *bbr { return &bbr{minRTT: math.Inf(1), cwnd: 10 * packetBytes, seed: seed} }

func (b *bbr) bw() (m float64) {
	for _, x := range b.max10 {
		m = max(m, x)
	}
	return m
}

func (b *bbr) Acked(a control.Ack) {
	if a.RTT <= b.minRTT {
		b.minRTT, b.minT = a.RTT, a.Now
	}
	newRound := false
	if a.Number >= b.mark {
		b.mark, newRound = a.Next, true
		b.round++
		b.max10[b.round%10] = 0
	}
	for len(b.sent) > 1 && b.sent[1].next <= a.Number {
		b.sent = b.sent[1:]
	}
	if len(b.sent) > 0 && b.sent[0].next <= a.Number {
		s := b.sent[0]
		d := max(a.Now-s.at, a.Sent-s.firstSent)
		if d >= b.minRTT*0.99 {
			b.max10[b.round%10] = max(b.max10[b.round%10], (a.Got-s.got)/d)
		}
	}
	b.sent = append(b.sent, sample{a.Next, a.Got, a.Now, a.Sent})
	if newRound && b.state == 0 {
		if m := b.bw(); m > 1.25*b.full {
			b.full, b.fullN = m, 0
		} else if b.fullN++; b.fullN >= 3 {
			b.state = 1
		}
	}
	bdp := b.bw() * b.minRTT
	if b.state == 1 && a.InFlight <= bdp {
		b.seed = b.seed*1664525 + 1013904223
		b.state, b.phase, b.phaseT = 2, 2+int(b.seed>>16)%6, a.Now
	}
	if b.state == 2 {
		long := a.Now-b.phaseT > b.minRTT
		switch b.phase {
		case 0:
			if long && (a.Lost > 0 || a.InFlight >= 1.25*bdp) {
				b.phase, b.phaseT = 1, a.Now
			}
		case 1:
			if long || a.InFlight <= bdp {
				b.phase, b.phaseT = 2, a.Now
			}
		default:
			if long {
				b.phase, b.phaseT = (b.phase+1)%8, a.Now
			}
		}
	}
	if b.state != 3 && a.Now-b.minT > 10 {
		b.state, b.startedPR = 3, false
		b.minRTT = a.RTT
		b.minT = a.Now
	}
	if b.state == 3 {
		if !b.startedPR && a.InFlight <= 4*packetBytes {
			b.startedPR, b.endPR = true, a.Now+0.2
		}
		if b.startedPR && a.Now > b.endPR {
			b.minT = a.Now
			b.seed = b.seed*1664525 + 1013904223
			b.state, b.phase, b.phaseT = 2, 2+int(b.seed>>16)%6, a.Now
			if b.fullN < 3 {
				b.state = 0
			}
		}
	}
	// recovery
	if a.Lost > 0 && !b.inRec {
		b.inRec, b.conserve, b.recMark = true, true, a.Next
		b.cwnd = a.InFlight + a.Acked
	} else if b.inRec && a.Number >= b.recMark {
		if b.conserve && a.Lost > 0 {
			b.conserve, b.recMark = false, a.Next
		} else if a.Lost > 0 {
			b.recMark = a.Next
		} else {
			b.inRec, b.conserve = false, false
		}
	}
	target := b.gainW() * bdp
	if b.bw() == 0 {
		target = 10 * packetBytes
	}
	target += 6 * packetBytes
	if b.state == 2 && b.phase == 0 {
		target += 2 * packetBytes
	}
	switch {
	case b.conserve:
		b.cwnd = max(b.cwnd, a.InFlight+a.Acked)
	case b.fullN >= 3:
		b.cwnd = min(b.cwnd+a.Acked, target)
	case b.cwnd < target || a.Got < 20*packetBytes:
		b.cwnd += a.Acked
	}
	b.cwnd = max(b.cwnd, 4*packetBytes)
}

func (b *bbr) gainW() float64 {
	if b.state < 2 {
		return 2.885
	}
	return 2
}

func (b *bbr) Rate(float64) float64 {
	m := b.bw()
	if m == 0 {
		return 2.885 * 10 * packetBytes / min(b.minRTT, 0.1)
	}
	switch b.state {
	case 0:
		return 2.885 * m
	case 1:
		return 0.35 * m
	case 2:
		return 0.99 * []float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}[b.phase] * m
	}
	return m
}

func (b *bbr) Window() float64 {
	if b.state == 3 {
		return 4 * packetBytes
	}
	return b.cwnd
}

// cubic is the kernel's cubic: C 0.4, beta 0.7, fast convergence, the friendly region, HyStart's delay half, NewReno-like one
// reduction a round.
type cubic struct {
	w, ss, wmax, k, t0, rtt, minRTT float64
	origin, friendly                float64
	mark                            uint64
	roundMark                       uint64
	roundMin                        float64
	samples                         int
}

func newCubic() *cubic { return &cubic{w: 10, ss: 1e9, minRTT: math.Inf(1), roundMin: math.Inf(1)} }

func (c *cubic) loss(now float64, next uint64) {
	if c.w < c.wmax {
		c.wmax = c.w * 0.85
	} else {
		c.wmax = c.w
	}
	c.w = max(0.7*c.w, 2)
	c.ss, c.mark, c.t0 = c.w, next, 0
}

func (c *cubic) Acked(a control.Ack) {
	c.rtt = a.RTT
	c.minRTT = min(c.minRTT, a.RTT)
	if a.Number >= c.roundMark {
		c.roundMark, c.roundMin, c.samples = a.Next, math.Inf(1), 0
	}
	c.roundMin = min(c.roundMin, a.RTT)
	c.samples++
	if a.Lost > 0 && a.Number >= c.mark {
		c.loss(a.Now, a.Next)
		return
	}
	n := a.Acked / packetBytes
	if a.InFlight+a.Acked < 0.9*c.w*packetBytes-3*packetBytes { // not limited by the window
		return
	}
	if c.w < c.ss {
		c.w += n
		if c.samples >= 8 && c.w >= 16 && c.roundMin > c.minRTT+min(max(c.minRTT/8, 0.004), 0.016) {
			c.ss = c.w
		}
		return
	}
	if c.t0 == 0 {
		c.t0, c.friendly = a.Now, c.w
		if c.w < c.wmax {
			c.k, c.origin = math.Cbrt((c.wmax-c.w)/0.4), c.wmax
		} else {
			c.k, c.origin = 0, c.w
		}
	}
	t := a.Now - c.t0 + c.minRTT - c.k
	target := c.origin + 0.4*t*t*t
	c.friendly += 0.53 * n / c.w
	if target > c.w {
		c.w += min((target-c.w)/c.w*n, n/2)
	} else {
		c.w += n / (100 * c.w)
	}
	c.w = max(c.w, c.friendly)
}
func (c *cubic) Rate(float64) float64 {
	g := 1.2
	if c.w < c.ss/2 {
		g = 2
	}
	return g * c.w * packetBytes / max(c.rtt, 0.01)
}
func (c *cubic) Window() float64 { return c.w * packetBytes }

// inner is one cubic flow inside a tunnel, behind its queue with CoDel.
type inner struct {
	c      *cubic
	above  float64 // since when the queue's wait is above CoDel's target
	number uint64
}

func newInner() *inner { return &inner{c: newCubic()} }

// waits is how many bytes wait for the carrier.
func (i *inner) waits(inFlight float64) float64 { return max(0, i.c.w*packetBytes-inFlight) }

// acked passes on what came back.
func (i *inner) acked(a control.Ack, inFlight float64, c Controller) {
	i.number += uint64(a.Acked / packetBytes)
	wait := i.waits(inFlight) / c.Rate(inFlight)
	trip := a.RTT
	if own, ok := c.(*control.Control); ok {
		trip = own.SRTT()
	}
	lost := 0.0
	target, interval := min(max(0.6*trip, 0.005), 0.1), min(max(2*trip, 0.15), 1)
	if wait < target {
		i.above = 0
	} else if i.above == 0 {
		i.above = a.Now
	} else if a.Now-i.above > interval {
		lost, i.above = packetBytes, a.Now
	}
	total := i.c.w * packetBytes
	i.c.Acked(control.Ack{Now: a.Now, RTT: a.RTT + wait, Acked: a.Acked, Lost: lost, InFlight: total - a.Acked, Number: i.number, Next: i.number + uint64(i.c.w)})
}
