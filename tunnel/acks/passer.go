package acks

import (
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/tunnel/inet"
)

const (
	// passFlows flows are distinguished by their hash. The table has sets of passPlaces.
	passFlows, passPlaces = 32, 4
	// passData is the least packet that counts as data, bytes: acknowledgements wait behind each other, too.
	passData = 1 << 10
	// passLoad is how long a direction counts as loaded after data had to wait in it, nanoseconds.
	passLoad = int64(time.Second)
	// The datagrams take one passShare-th of what the data of their direction take, with some passBytes each.
	passShare, passBytes = 16, 130
	// A shorter gap between them, as on faster lines, is not worth a timer.
	leastGap = int64(2 * time.Millisecond)
)

// Packet is one that a Passer keeps.
type Packet interface {
	// Send has it leave as a datagram, Drop forgets it. Neither calls the Passer.
	Send()
	Drop()
}

// Egress is how a packet leaves.
type Egress uint8

const (
	// Along with the data of its direction.
	Along Egress = iota
	// Past them, as a datagram.
	Past
	// Later, past them, unless the next one of its flow comes before that: the Passer has it.
	Later
)

// Passer says which acknowledgements leave as datagrams, past the bulk data of their own direction. On a carrier that loads
// its direction each lost packet holds the ACKs behind it back for a round trip, and the flow that they belong to waits,
// although nothing of its own was lost.
//
// A lost ACK is nothing to a sender that gets the next one, so only one that follows another of its flow within a round trip
// leaves so: not the one that ends a handshake, nor that of a small answer, nor the one that opens a window again.
//
// A download's ACKs, each in a datagram, take a third of an upload that is ten times slower. So one waits there until those
// before it have taken their share, for a quarter of a round trip at most, and the next one of its flow replaces it if it says
// all of what that said (ACK filtering of RFC 3449). If it does not, both leave. One that says nothing of what arrived, but is
// counted or opens a window, does not wait.
type Passer[P Packet] struct {
	wg     *sync.WaitGroup // calls of Send by timers
	loaded atomic.Int64    // when the direction was last seen loaded, 0: never
	gap    atomic.Int64    // between two datagrams, nanoseconds; 0: none

	mu     sync.Mutex // a leaf
	closed bool
	free   int64                   // when another may leave
	flows  *[passFlows]*passing[P] // nil until the first one
}

// passing is what is known of a flow whose ACKs pass.
type passing[P Packet] struct {
	flow  uint32
	last  said  // the ACK that came last,
	came  int64 // when
	held  P     // it, while holds
	holds bool
	timer *time.Timer
}

// NewPasser returns the Passer of one peer; wg counts what it sends itself.
func NewPasser[P Packet](wg *sync.WaitGroup) *Passer[P] { return &Passer[P]{wg: wg} }

// Waits notes that a packet of so many bytes has to wait behind others of its direction, which takes so many bytes of data per
// second; 0: unknown.
func (p *Passer[P]) Waits(bytes int, rate float64, now int64) {
	if bytes < passData {
		return
	}
	p.loaded.Store(now)
	gap := int64(0)
	if rate > 0 {
		gap = int64(passShare * passBytes / rate * float64(time.Second))
	}
	p.gap.Store(gap)
}

// Egress is how a TCP packet leaves, which pkt stands for; rtt is the carrier's round trip, 0 if it is unknown or short. One
// goroutine calls it.
func (p *Passer[P]) Egress(h *inet.Header, ip []byte, now int64, rtt time.Duration, pkt P) Egress {
	at := p.loaded.Load()
	if at == 0 || now-at > passLoad || rtt < thinRTT || h.L4Len == 0 {
		return Along
	}
	s, only := hear(ip[h.L4:], h.L4Len)
	if !only {
		return Along
	}
	p.mu.Lock()
	f := p.find(h.Flow, now, rtt)
	if f == nil || p.closed {
		p.mu.Unlock()
		return Past
	}
	before, held := f.held, f.holds
	egress, replaces := p.next(f, h.Flow, &s, now, rtt)
	if egress == Later {
		f.held, f.holds = pkt, true
	}
	p.mu.Unlock()
	switch {
	case held && replaces:
		before.Drop()
	case held:
		before.Send()
	}
	return egress
}

// find returns the place of a flow, or one whose flow was silent; nil if there is none. p.mu is held.
func (p *Passer[P]) find(hash uint32, now int64, rtt time.Duration) (place *passing[P]) {
	if p.flows == nil {
		p.flows = new([passFlows]*passing[P])
	}
	i := hash % (passFlows / passPlaces) * passPlaces
	set := p.flows[i : i+passPlaces]
	for i, f := range set {
		switch {
		case f == nil && place == nil:
			f = &passing[P]{}
			f.timer = time.AfterFunc(time.Hour, func() { p.expire(f) })
			f.timer.Stop()
			set[i] = f
			return f
		case f == nil: // so are those behind it
			return place
		case f.flow == hash:
			return f
		case place == nil && !f.holds && now-f.came > int64(rtt):
			place = f
		}
	}
	return place
}

// next is how a flow's ACK leaves, and whether it replaces the one that is held, which is given up; p.mu is held.
func (p *Passer[P]) next(f *passing[P], flow uint32, s *said, now int64, rtt time.Duration) (egress Egress, replaces bool) {
	first := f.flow != flow || f.came == 0 || now-f.came > int64(rtt)
	replaces = !first && f.holds && s.covers(&f.last)
	news := s.news(&f.last)
	f.flow, f.last, f.came = flow, *s, now
	gap := p.gap.Load()
	due := min(max(p.free, now), now+int64(waitFor(rtt)))
	switch {
	case first:
		egress = Along
	case f.holds && replaces && gap >= leastGap:
		return Later, true
	case !news, gap < leastGap, f.holds, due == now:
		egress, p.free = Past, due+gap
	default:
		f.timer.Reset(time.Duration(due - now))
		p.free = due + gap
		return Later, false
	}
	f.release()
	return egress, replaces
}

// release has f hold nothing, with the Passer's mu held.
func (f *passing[P]) release() {
	f.timer.Stop()
	var none P
	f.held, f.holds = none, false
}

// expire sends the ACK that has waited long enough.
func (p *Passer[P]) expire(f *passing[P]) {
	p.mu.Lock()
	due, holds := f.held, f.holds
	f.release()
	if holds {
		p.wg.Add(1)
	}
	p.mu.Unlock()
	if holds {
		defer p.wg.Done()
		due.Send()
	}
}

// Close drops what is held; nothing is held afterwards.
func (p *Passer[P]) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.flows == nil {
		return
	}
	for _, f := range p.flows {
		if f != nil && f.holds {
			f.held.Drop()
			f.release()
		}
	}
}
