package packet

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/carrier/flight"
	"edgemesh/tunnel/pull"
)

// flights are the peers that sealed packets are agreed on with.
type flights struct {
	lanes  atomic.Pointer[func(peer.ID) Lanes] // nil: none yet
	memory *flight.Memory

	mu       sync.Mutex // a leaf
	to       map[peer.ID]*flightPeer
	offering map[peer.ID]bool     // one at a time: each says what the one before has agreed on
	ending   map[*flightPeer]bool // others have replaced them
	refused  flight.Refused       // of those that are over
}

// flightPeer is what all sealed paths to a peer share. Both ends begin it together, or the one's offsets are not the other's: who
// answers an offer gives it its id, and an offer names the one that the end has.
type flightPeer struct {
	id     uint64
	began  time.Time
	active atomic.Pointer[flightPath] // which carries; nil: none

	// mu guards the rest, and what its paths send and receive. The lanes are called with it held, so their locks come after it.
	mu    sync.Mutex
	peer  *flight.Peer
	lanes Lanes
	paths []*flightPath // the oldest first
	over  bool          // its lanes are closed
	told  bool          // what it refused is in the sum of those that are over
}

func newFlightPeer(id uint64, lanes Lanes, of *flight.Memory) *flightPeer {
	p := &flightPeer{id: id, began: time.Now(), lanes: lanes}
	p.peer = flight.NewPeer(pulled{p}, lanes, of)
	return p
}

func (p *flightPeer) now() float64 { return time.Since(p.began).Seconds() }

// wake has the path that carries look for what waits.
func (p *flightPeer) wake() {
	if x := p.active.Load(); x != nil {
		x.woken.Wake()
	}
}

// pulled is a flightPeer as a flight.Source.
type pulled struct{ p *flightPeer }

func (s pulled) Waits() (stream, datagram bool) {
	if s.p.active.Load() == nil {
		return false, false
	}
	return s.p.lanes.Waits()
}
func (s pulled) Stream(float64) (pull.Frame, int) { return s.p.lanes.Take(s.p.line()) }
func (s pulled) Datagram(_ float64, room int) (b []byte) {
	return s.p.lanes.TakeDatagram(s.p.line(), room)
}

// line is what is known of the path that carries.
func (p *flightPeer) line() pull.Line {
	x := p.active.Load()
	if x == nil {
		return pull.Line{}
	}
	c := x.path.Control()
	return pull.Line{RTT: c.SRTT(), Least: c.MinRTT(), Rate: c.Rate(x.path.InFlight()), Room: x.room - datagramHeader, Loss: c.Loss(), Grows: c.Grows(), Full: c.Full(), Path: x.link.path}
}

// begin notes that this node offers something to a peer, and what the two have agreed on before; false: it does already.
func (f *flights) begin(to peer.ID) (known *flightPeer, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.offering[to] {
		return nil, false
	}
	f.offering[to] = true
	return f.to[to], true
}

func (f *flights) end(to peer.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.offering, to)
}

// agreed returns the flightPeer with an id; known is it, or the node has none yet. One before it ends.
func (f *flights) agreed(to peer.ID, id uint64, known *flightPeer) *flightPeer {
	if known == nil || known.id != id || known.isOver() {
		known = newFlightPeer(id, (*f.lanes.Load())(to), f.memory)
	}
	f.mu.Lock()
	before := f.to[to]
	f.to[to] = known
	delete(f.ending, known)
	if before != nil && before != known {
		f.ending[before] = true
	}
	f.mu.Unlock()
	if before != nil && before != known && before.endAll() {
		f.forget(to, before)
	}
	return known
}

// answer returns the flightPeer for an offer that names one.
func (f *flights) answer(from peer.ID, id uint64) *flightPeer {
	f.mu.Lock()
	known := f.to[from]
	f.mu.Unlock()
	if known == nil || known.id != id || known.isOver() {
		id = rand.Uint64() | 1
	}
	return f.agreed(from, id, known)
}

// Carrying reports whether the packets of the lanes to a peer are carried now.
func (f *flights) Carrying(to peer.ID) bool {
	f.mu.Lock()
	p := f.to[to]
	f.mu.Unlock()
	return p != nil && p.active.Load() != nil && p.lanes.Carries()
}

// Carries reports whether the lanes are carried beside f's connection.
func (f *Flight) Carries() bool {
	x := f.active()
	return x != nil && x.of.lanes.Carries()
}

// active returns the path that carries, if it is beside f's connection.
func (f *Flight) active() *flightPath {
	if f == nil {
		return nil
	}
	f.among.mu.Lock()
	p := f.among.to[f.peer()]
	f.among.mu.Unlock()
	if p != nil {
		if x := p.active.Load(); x != nil && x.Flight == f {
			return x
		}
	}
	return nil
}

// forget forgets a flightPeer that is over.
func (f *flights) forget(to peer.ID, p *flightPeer) {
	var refused flight.Refused
	p.mu.Lock()
	if !p.told {
		p.told, refused = true, p.peer.Refused()
	}
	p.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to[to] == p {
		delete(f.to, to)
	}
	delete(f.ending, p)
	add(&f.refused, refused)
}

// RefusedByFlight is what package flight did not take so far, by reason.
func (f *flights) RefusedByFlight() map[string]uint64 {
	f.mu.Lock()
	sum, now := f.refused, slices.AppendSeq(slices.Collect(maps.Values(f.to)), maps.Keys(f.ending))
	f.mu.Unlock()
	for _, p := range now {
		p.mu.Lock()
		add(&sum, p.peer.Refused())
		p.mu.Unlock()
	}
	out := map[string]uint64{}
	for r, n := range sum {
		out[flight.Reason(r).String()] = n
	}
	return out
}

func add(sum *flight.Refused, more flight.Refused) {
	for r, n := range more {
		sum[r] += n
	}
}

func (p *flightPeer) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// endAll has its paths end, and reports whether it is over: it had none.
func (p *flightPeer) endAll() (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.paths {
		x.over.Wake()
	}
	p.closeIfUnused()
	return p.over
}

// join adds a path that nothing is sent on yet; false: the flightPeer is over.
func (p *flightPeer) join(x *flightPath, overhead int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	x.path = p.peer.NewPath(overhead)
	x.path.Rest(true)
	p.paths = append(p.paths, x)
	return true
}

// works has a path carry that the other end was heard on, unless it is a circuit's and there is a direct one. Those before it on the
// same connection end a little later. The caller holds mu.
func (p *flightPeer) works(x *flightPath) {
	if x.spare() {
		return
	}
	for _, o := range p.paths {
		if o != x && o.Flight == x.Flight {
			time.AfterFunc(drainTime, o.over.Wake)
		}
	}
	if up := p.active.Load(); up == nil || up.via != nil || x.via == nil {
		p.carry(x)
	}
}

// carry has x carry, and no other path; nil: none does. Beside a circuit it is datagrams only. What is in flight goes by x, or back to
// the lanes. The caller holds mu.
func (p *flightPeer) carry(x *flightPath) {
	for _, o := range p.paths {
		o.path.Rest(o != x)
	}
	up := p.active.Swap(x)
	if up != nil && (x == nil || (x.via == nil) != (up.via == nil)) {
		p.down()
		up = nil
	}
	if x == nil {
		return
	}
	if up == nil {
		p.lanes.Up(p.wake, x.via == nil)
	}
	x.woken.Wake()
}

// leave ends a path, in whose place the newest of the others carries that works, of a direct connection if there is one. It reports
// whether the flightPeer is over.
func (p *flightPeer) leave(x *flightPath) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.closed = true
	p.paths = slices.DeleteFunc(p.paths, func(o *flightPath) bool { return o == x })
	if x.path != nil {
		x.path.Close()
	}
	if p.active.Load() == x {
		var next *flightPath
		for _, o := range slices.Backward(p.paths) {
			if o.at.works && !o.spare() && (next == nil || next.via != nil && o.via == nil) {
				next = o
			}
		}
		p.carry(next)
	}
	p.wake()
	p.closeIfUnused()
	return p.over
}

// down gives back what the peer may not have. The caller holds mu.
func (p *flightPeer) down() {
	var left []pull.Frame
	p.peer.Leave(func(_ int, f pull.Frame) { left = append(left, f) })
	p.lanes.Down(left)
}

// closeIfUnused ends it with its last path. The caller holds mu.
func (p *flightPeer) closeIfUnused() {
	if len(p.paths) == 0 && !p.over {
		p.over = true
		p.peer.Close()
		p.lanes.Close()
	}
}
