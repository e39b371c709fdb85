package acks

import (
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/tunnel/inet"
)

const (
	// passFlows flows are told apart, by the lowest bits of their hash.
	passFlows = 64
	// passData is the least packet that counts as data, bytes: acknowledgements wait behind each other, too.
	passData = 1 << 10
	// passLoad is how long a direction counts as loaded after data had to wait in it, nanoseconds.
	passLoad = int64(time.Second)
	// A flow's datagrams take one passShare-th of what its direction's data take, with some passBytes each.
	passShare, passBytes = 16, 130
	// leastGap between them is worth a timer.
	leastGap = int64(time.Millisecond)
)

// Packet is one that a Passer keeps.
type Packet interface {
	// Send has it leave as a datagram, Drop forgets it.
	Send()
	Drop()
}

// Way is how a packet leaves.
type Way uint8

const (
	// Along with the data of its direction.
	Along Way = iota
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
// goes that way: not the one that ends a handshake, nor that of a small answer, nor the one that opens a window again.
//
// A download's ACKs, each in a datagram, take a third of an upload that is ten times slower. So one waits there until those
// before it have taken their share, and the next one replaces it, as it says what that said (ACK filtering of RFC 3449). ACKs
// that say more than how much arrived, of a loss or of the window, pass.
type Passer[P Packet] struct {
	loaded atomic.Int64 // when the direction was last seen loaded, 0: never
	gap    atomic.Int64 // between two datagrams of a flow, nanoseconds

	mu    sync.Mutex // a leaf
	flows [passFlows]*passing[P]
}

// passing is what is known of a flow whose ACKs pass.
type passing[P Packet] struct {
	flow  uint32
	last  said  // the ACK that came last,
	came  int64 // when
	free  int64 // when another may leave
	held  P
	holds bool
	timer *time.Timer
}

// Waits notes that a packet of so many bytes has to wait behind others of its direction, which takes so many bytes of data per
// second; 0: unknown.
func (p *Passer[P]) Waits(bytes int, rate float64, now int64) {
	if bytes < passData {
		return
	}
	p.loaded.Store(now)
	if rate > 0 {
		p.gap.Store(int64(passShare * passBytes / rate * float64(time.Second)))
	}
}

// Way is how a TCP packet leaves, which pkt stands for; rtt is the carrier's round trip, 0 if it is unknown or short. One
// goroutine calls it.
func (p *Passer[P]) Way(h *inet.Header, ip []byte, now int64, rtt time.Duration, pkt P) Way {
	at := p.loaded.Load()
	if at == 0 || now-at > passLoad || rtt < thinRTT || h.L4Len == 0 {
		return Along
	}
	s, only := hear(ip[h.L4:], h.L4Len)
	if !only {
		return Along
	}
	p.mu.Lock()
	f := p.flow(h.Flow)
	before, held := f.held, f.holds
	way, replaces := f.next(h.Flow, &s, now, rtt, p.gap.Load())
	if way == Later {
		f.held, f.holds = pkt, true
	}
	p.mu.Unlock()
	switch {
	case held && replaces:
		before.Drop()
	case held:
		before.Send()
	}
	return way
}

// flow is the place of a flow; p.mu is held.
func (p *Passer[P]) flow(hash uint32) *passing[P] {
	f := p.flows[hash%passFlows]
	if f == nil {
		f = &passing[P]{}
		f.timer = time.AfterFunc(time.Hour, func() { p.expire(f) })
		f.timer.Stop()
		p.flows[hash%passFlows] = f
	}
	return f
}

// next is how an ACK leaves, and whether it replaces the one that is held, which is given up; with the Passer's mu held.
func (f *passing[P]) next(flow uint32, s *said, now int64, rtt time.Duration, gap int64) (way Way, replaces bool) {
	first := f.flow != flow || f.came == 0 || now-f.came > int64(rtt)
	replaces = !first && f.holds && s.covers(&f.last)
	news := s.news(&f.last)
	f.flow, f.last, f.came = flow, *s, now
	gap = min(gap, int64(waitFor(rtt)))
	switch {
	case first:
		way, f.free = Along, now
	case !news, gap < leastGap, f.holds && !replaces, !f.holds && now >= f.free:
		way, f.free = Past, now+gap
	default:
		if !f.holds {
			f.timer.Reset(time.Duration(f.free - now))
			f.free += gap
		}
		return Later, replaces
	}
	f.release()
	return way, replaces
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
	p.mu.Unlock()
	if holds {
		due.Send()
	}
}
