// Package acks is about the acknowledgements of TCP flows on long paths: those of young flows are thinned, so that a loss
// in the carrier does not end their slow start (thinner.go), and where both directions are loaded they pass the data of
// their own, on thin lines thinned as well (passer.go); where each flow has an order of its own, those that follow another
// one leave as datagrams that may be lost (rows.go). said.go is what an ACK says.
//
// Which ones may go is decided for senders that take SACK and grow by what is acknowledged, as Linux's do: one that counts
// ACKs grows more slowly with fewer of them.
package acks

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

const (
	// thinFlows flows of one peer can have their ACKs thinned at a time. The table has sets of thinWays.
	thinFlows = 64
	thinWays  = 4
	// thinTime is how long a flow's ACKs are thinned after its first data, or after its first data that follows thinIdle
	// of silence; nanoseconds. On long paths it is thinTrips round trips: slow start doubles in each.
	thinTime  = int64(5 * time.Second)
	thinTrips = 16
	thinIdle  = int64(time.Second)
	// thinFlight bytes must be in flight for ACKs to wait: below 16 segments no sender looks at delays.
	thinFlight = 16 << 10
	// An ACK that passes has to acknowledge one thinShare-th of what is in flight.
	thinShare = 4
	// thinRound ACKs at most pass in one round trip: senders take the least of eight samples, and act on the ninth
	// (HYSTART_MIN_SAMPLES of net/ipv4/tcp_cubic.c, N_RTT_SAMPLE of RFC 9406 section 4.3).
	thinRound = 7
	// thinRTT is the shortest round trip of a carrier on which ACKs are thinned.
	thinRTT = 8 * time.Millisecond
	// An ACK waits for the next one for a quarter of the carrier's round trip, at most thinWait.
	thinWait = 20 * time.Millisecond
	// pathEvery is how often the carrier is queried whether it loses packets: sooner than a late ACK comes, nanoseconds.
	pathEvery = int64(thinRTT / 2)
	// heldLen is the longest ACK that is held: virtio header, IP header, TCP header.
	heldLen = 128
)

// Thinner thins the acknowledgements of young TCP flows of one peer before their sender here gets them (ACK filtering of
// RFC 3449). A lost packet of the carrier delays everything behind it by a round trip. A sender that watches delays
// (HyStart) takes that for a queue and ends its slow start, often at 20 to 100 packets; from there it needs 5 to 10 s to
// fill a path of 100 Mbit/s and 50 ms. It decides by the least of eight samples of a round trip. Here at most seven ACKs
// pass per round trip, each for a good part of what is in flight; those between them are dropped, because the next one
// says what they say. So the flow's queue here ends its slow start.
//
// A change of the receiver's window with no new acknowledgement replaces the ACK that is held. A packet that is not a
// plain ACK passes immediately, behind the held ACK. After a SACK, which reports a loss to the sender, everything passes:
// slow start is over. So does everything while the carrier is known to lose nothing: slow start would wait for the last ACKs of each
// round trip.
type Thinner struct {
	late func(*Held)     // writes an ACK that has waited long enough, and frees it
	wg   *sync.WaitGroup // calls of late that run
	seed uint64          // of the table's hash
	rtt  atomic.Int64    // of the carrier, nanoseconds
	wait atomic.Int64    // for the next ACK, nanoseconds; 0: nothing is thinned
	path path

	mu     sync.Mutex // a leaf: what it releases is written after it is unlocked
	closed bool
	flows  *[thinFlows]*flow // nil until the first one
}

var pool = sync.Pool{New: func() any { return new(Held) }}

// Held is an ACK that waits for the next one.
type Held struct {
	ack uint32
	n   int
	buf [heldLen]byte
}

// Frame is the ACK with its virtio header.
func (h *Held) Frame() []byte { return h.buf[:h.n] }

// flow is what is known of one flow whose data is sent from here.
type flow struct {
	key      key
	begun    int64  // first data
	used     int64  // last data
	max      uint32 // sequence number after the last byte sent
	una      uint32 // the last ACK that passed
	round    uint32 // an ACK above it begins a round trip
	passed   int    // ACKs that passed in this one
	lossTold bool
	held     *Held // nil: none
	timer    *time.Timer
}

// key is a TCP connection as its end here sees it.
type key struct {
	local, remote netip.Addr
	ports         uint32 // local, remote
}

// New makes the table of one peer. clean reports whether its carrier is known to lose nothing; it must not block. late writes
// an ACK that has waited long enough, and frees it; wg counts such calls.
func New(seed uint64, wg *sync.WaitGroup, clean func() bool, late func(*Held)) *Thinner {
	a := &Thinner{seed: seed, wg: wg, path: path{clean: clean}, late: late}
	a.path.queried.Store(-pathEvery)
	return a
}

// path knows whether the carrier loses nothing. It is queried when ACKs come, because nothing may be sent while they are late.
type path struct {
	clean   func() bool
	queried atomic.Int64
	known   atomic.Bool
}

// loses reports whether the carrier may lose something, as it was within the last pathEvery.
func (p *path) loses(now int64) bool {
	if at := p.queried.Load(); now-at >= pathEvery && p.queried.CompareAndSwap(at, now) {
		p.known.Store(p.clean())
	}
	return !p.known.Load()
}

// SetRTT sets the carrier's round trip, 0 if it is unknown.
func (a *Thinner) SetRTT(rtt time.Duration) {
	a.rtt.Store(int64(rtt))
	if rtt < thinRTT {
		a.wait.Store(0)
		return
	}
	a.wait.Store(int64(waitFor(rtt)))
}

// waitFor is how long an ACK waits for the next one at most.
func waitFor(rtt time.Duration) time.Duration { return min(rtt/4, thinWait) }

// RTT is the carrier's round trip, 0 if it is unknown.
func (a *Thinner) RTT() time.Duration { return time.Duration(a.rtt.Load()) }

// find returns the entry of a flow, nil if it has none.
func (a *Thinner) find(k key) *flow {
	for _, f := range a.set(k) {
		if f != nil && f.key == k {
			return f
		}
	}
	return nil
}

// begin returns an entry for a flow that has none, or nil if busy flows hold all places of its set: its ACKs are not
// thinned.
func (a *Thinner) begin(k key, now int64) *flow {
	for i, f := range a.set(k) {
		if f == nil {
			f = &flow{used: now - thinIdle - 1}
			f.timer = time.AfterFunc(time.Hour, func() { a.expire(f) })
			a.set(k)[i] = f
		}
		if now-f.used > thinIdle {
			return f
		}
	}
	return nil
}

// set is the part of the table in which a flow's entry is.
func (a *Thinner) set(k key) []*flow {
	l, r := k.local.As16(), k.remote.As16()
	hash := inet.Mix(inet.Mix(a.seed, binary.LittleEndian.Uint64(l[8:])), binary.LittleEndian.Uint64(r[8:]))
	i := inet.Fold(inet.Mix(hash, uint64(k.ports))) % (thinFlows / thinWays) * thinWays
	return a.flows[i : i+thinWays]
}

// Sent notes a TCP packet that leaves for the peer. It returns an ACK that is to be written now, nil if there is none.
func (a *Thinner) Sent(h *inet.Header, ip []byte, now int64) (release *Held) {
	if a.wait.Load() == 0 {
		return nil
	}
	seq, data := h.Segment(ip)
	if data == 0 {
		return nil
	}
	k := key{h.Src, h.Dst, binary.BigEndian.Uint32(ip[h.L4:])}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	if a.flows == nil {
		a.flows = new([thinFlows]*flow)
	}
	f := a.find(k)
	if f == nil {
		f = a.begin(k, now)
	}
	if f == nil {
		return nil
	}
	// The flow begins, continues after silence, or another connection has its ports.
	if f.key != k || now-f.used > thinIdle || int32(seq-f.una) < 0 {
		release = f.release()
		*f = flow{key: k, begun: now, max: seq, una: seq, round: seq, timer: f.timer}
	}
	f.used = now
	if end := seq + uint32(data); int32(end-f.max) > 0 {
		f.max = end
	}
	return release
}

// Received is given each admitted packet of the peer, b with its virtio header. It returns an ACK that is to be written
// first, nil if there is none, and whether it holds b.
func (a *Thinner) Received(h *inet.Header, b []byte, now int64) (release *Held, holds bool) {
	if a.wait.Load() == 0 || h.Proto != inet.ProtoTCP || h.L4Len == 0 {
		return nil, false
	}
	loses := a.path.loses(now)
	tcp := b[virtio.HeaderLen+h.L4:]
	k := key{h.Dst, h.Src, bits.RotateLeft32(binary.BigEndian.Uint32(tcp), 16)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.flows == nil || a.closed {
		return nil, false
	}
	f := a.find(k)
	if f == nil {
		return nil, false
	}
	said, only := hear(tcp, h.L4Len)
	plain := only && said.plain()
	f.lossTold = f.lossTold || only && !plain
	ack := binary.BigEndian.Uint32(tcp[8:])
	thin := plain && !f.lossTold && loses && now-f.begun <= max(thinTime, thinTrips*a.rtt.Load()) && len(b) <= heldLen
	switch {
	case thin && f.held != nil && ack == f.held.ack: // the receiver's window has changed
		f.held.n = copy(f.held.buf[:], b)
		return nil, true
	case !thin, int32(ack-f.latest()) <= 0:
		release = f.release()
		f.pass(ack)
		return release, false
	case f.passes(ack):
		f.held.Free()
		f.held = nil
		f.pass(ack)
		return nil, false
	}
	a.hold(f, ack, b)
	return nil, true
}

// hold keeps an ACK in place of the one that is held; a.mu is held.
func (a *Thinner) hold(f *flow, ack uint32, b []byte) {
	if f.held == nil {
		f.held = pool.Get().(*Held)
	}
	f.held.ack, f.held.n = ack, copy(f.held.buf[:], b)
	wait := time.Duration(a.wait.Load())
	if f.passed >= thinRound-2 { // keep the last samples of this round trip for later
		wait *= 8
	}
	f.timer.Reset(wait)
}

// Free takes an ACK back that was released and written; nil is nothing.
func (h *Held) Free() {
	if h != nil {
		pool.Put(h)
	}
}

// latest is the highest ACK received.
func (f *flow) latest() uint32 {
	if f.held != nil {
		return f.held.ack
	}
	return f.una
}

// passes reports whether the sender gets an ACK now.
func (f *flow) passes(ack uint32) bool {
	flight, passed := f.max-f.una, f.passed
	if int32(ack-f.round) > 0 {
		passed = 0
	}
	switch {
	case int32(f.max-ack) <= 0: // it acknowledges everything
		return true
	case passed >= thinRound:
		return false
	}
	return flight < thinFlight || ack-f.una >= flight/thinShare
}

// pass notes that the sender gets an ACK.
func (f *flow) pass(ack uint32) {
	if int32(ack-f.una) <= 0 {
		return
	}
	if f.una = ack; int32(ack-f.round) > 0 {
		f.round, f.passed = f.max, 0
	}
	f.passed++
}

// release returns what is held, for the device; nil: nothing.
func (f *flow) release() *Held {
	h := f.held
	if h != nil {
		f.held = nil
		f.pass(h.ack)
	}
	return h
}

// expire is the timer's: the next ACK did not come in time.
func (a *Thinner) expire(f *flow) {
	if h := a.expired(f); h != nil {
		defer a.wg.Done()
		a.late(h)
	}
}

func (a *Thinner) expired(f *flow) *Held {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	h := f.release()
	if h != nil {
		a.wg.Add(1)
	}
	return h
}

// Close drops what is held. Nothing is released afterwards; a.wg waits for what was.
func (a *Thinner) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.flows == nil {
		return
	}
	for _, f := range a.flows {
		if f != nil {
			f.timer.Stop()
		}
	}
}
