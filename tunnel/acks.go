package tunnel

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
	// thinFlows are the flows of one peer whose ACKs can be thinned at a time, in sets of
	// thinWays.
	thinFlows = 64
	thinWays  = 4
	// thinTime is how long a flow's ACKs are thinned from its first data on, or from
	// the first after thinIdle of silence, nanoseconds.
	thinTime = int64(5 * time.Second)
	thinIdle = int64(time.Second)
	// thinFlight is the least under way, bytes, for which ACKs wait: below 16 segments
	// no sender looks at delays.
	thinFlight = 16 << 10
	// thinShare of what is under way has to be acknowledged by an ACK that passes.
	thinShare = 4
	// thinRound ACKs pass in one round trip at most: senders take the least of eight
	// samples, and act on the ninth (HYSTART_MIN_SAMPLES of net/ipv4/tcp_cubic.c,
	// N_RTT_SAMPLE of RFC 9406 section 4.3).
	thinRound = 7
	// thinRTT is the shortest round trip of a carrier on which that is done.
	thinRTT = 8 * time.Millisecond
	// thinWait bounds how long an ACK waits for the next one, as a quarter of the
	// carrier's round trip does.
	thinWait = 20 * time.Millisecond
	// heldLen is the longest ACK that is held: virtio header, IP header, TCP header.
	heldLen = 128
)

// acks thins the acknowledgements of young TCP flows of one peer before their sender
// here gets them (ACK filtering of RFC 3449). A carrier's lost packet holds up
// everything behind it for a round trip, and a sender that watches delays (HyStart)
// takes that for a queue and ends its slow start: at 20 to 100 packets, from where it
// needs 5 to 10 s to fill a path of 100 Mbit/s and 50 ms. It decides by the least of
// eight samples of a round trip. Here no more than seven ACKs pass in one, each for a
// good part of what is under way; the ones between them are dropped, as what they say is
// said by the next. So the slow start of a flow ends where its queue here says so.
//
// A change of the receiver's window, which says nothing new otherwise, takes the place of what is
// held. What is no plain ACK passes at once, behind what is held. After a SACK, which tells the
// sender of a loss, everything does: the slow start is over.
type acks struct {
	write func([]byte) // gives the device a held ACK
	seed  uint64
	wait  atomic.Int64 // for the next ACK, nanoseconds; 0: nothing is thinned

	mu     sync.Mutex
	closed bool
	flows  *[thinFlows]*ackFlow // nil until the first one
}

// ackFlow is what is known of one flow that is sent from here.
type ackFlow struct {
	key      flowKey
	begun    int64  // first data
	used     int64  // last data
	max      uint32 // sequence number after the last byte sent
	una      uint32 // the last ACK that passed
	round    uint32 // an ACK above it begins a round trip
	passed   int    // ACKs that passed in this one
	lossTold bool
	ack      uint32 // of the held packet
	held     [heldLen]byte
	n        int // 0: none is held
	timer    *time.Timer
}

// flowKey is a TCP connection as its end here sees it.
type flowKey struct {
	local, remote netip.Addr
	ports         uint32 // local, remote
}

// setRTT says how long the carrier's round trip is, 0 if that is unknown.
func (a *acks) setRTT(rtt time.Duration) {
	if rtt < thinRTT {
		a.wait.Store(0)
		return
	}
	a.wait.Store(int64(min(rtt/4, thinWait)))
}

// flow returns the entry of a flow, nil if it has none.
func (a *acks) flow(k flowKey) *ackFlow {
	for _, f := range a.set(k) {
		if f != nil && f.key == k {
			return f
		}
	}
	return nil
}

// begin returns the entry for a flow that has none, nil where others that are in use have
// all of its places: it goes without.
func (a *acks) begin(k flowKey, now int64) *ackFlow {
	for i, f := range a.set(k) {
		if f == nil {
			f = &ackFlow{used: now - thinIdle - 1}
			f.timer = time.AfterFunc(time.Hour, func() { a.flush(f) })
			a.set(k)[i] = f
		}
		if now-f.used > thinIdle {
			return f
		}
	}
	return nil
}

// set is where the entry of a flow may be.
func (a *acks) set(k flowKey) []*ackFlow {
	l, r := k.local.As16(), k.remote.As16()
	hash := inet.Mix(inet.Mix(a.seed, binary.LittleEndian.Uint64(l[8:])), binary.LittleEndian.Uint64(r[8:]))
	i := inet.Fold(inet.Mix(hash, uint64(k.ports))) % (thinFlows / thinWays) * thinWays
	return a.flows[i : i+thinWays]
}

// sent notes a TCP packet on its way to the peer.
func (a *acks) sent(h *inet.Header, ip []byte, now int64) {
	if a.wait.Load() == 0 || h.Proto != inet.ProtoTCP || h.L4Len == 0 {
		return
	}
	seq, n := binary.BigEndian.Uint32(ip[h.L4+4:]), uint32(len(ip)-h.L4-h.L4Len)
	if n == 0 {
		return
	}
	k := flowKey{h.Src, h.Dst, binary.BigEndian.Uint32(ip[h.L4:])}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	if a.flows == nil {
		a.flows = new([thinFlows]*ackFlow)
	}
	f := a.flow(k)
	if f == nil {
		f = a.begin(k, now)
	}
	if f == nil {
		return
	}
	// It begins, goes on after silence, or another connection has the same ports.
	if f.key != k || now-f.used > thinIdle || int32(seq-f.una) < 0 {
		a.release(f)
		*f = ackFlow{key: k, begun: now, max: seq, una: seq, round: seq, timer: f.timer}
	}
	f.used = now
	if end := seq + n; int32(end-f.max) > 0 {
		f.max = end
	}
}

// hold is given each admitted packet of the peer, b with its virtio header, and reports
// whether it took it.
func (a *acks) hold(h *inet.Header, b []byte, now int64) bool {
	if a.wait.Load() == 0 || h.Proto != inet.ProtoTCP || h.L4Len == 0 {
		return false
	}
	tcp := b[virtio.HeaderLen+h.L4:]
	k := flowKey{h.Dst, h.Src, bits.RotateLeft32(binary.BigEndian.Uint32(tcp), 16)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.flows == nil || a.closed {
		return false
	}
	f := a.flow(k)
	if f == nil {
		return false
	}
	plain, sack := plainACK(tcp, h.L4Len)
	f.lossTold = f.lossTold || sack
	ack := binary.BigEndian.Uint32(tcp[8:])
	thin := plain && !f.lossTold && now-f.begun <= thinTime && len(b) <= heldLen
	switch {
	case thin && f.n > 0 && ack == f.ack: // the receiver's window has changed
		f.n = copy(f.held[:], b)
		return true
	case !thin, int32(ack-f.latest()) <= 0:
		a.release(f)
		f.pass(ack)
		return false
	}
	if f.passes(ack) {
		f.n = 0
		f.pass(ack)
		return false
	}
	f.ack, f.n = ack, copy(f.held[:], b)
	wait := time.Duration(a.wait.Load())
	if f.passed >= thinRound-2 { // seldom: as good as nothing comes
		wait *= 8
	}
	f.timer.Reset(wait)
	return true
}

// plainACK reports whether a TCP packet is nothing but an acknowledgement, and whether
// it has selective ones.
func plainACK(tcp []byte, hdrLen int) (plain, sack bool) {
	const timestamps = 0x0101080a // two times nothing, kind, length (RFC 7323 appendix A)
	plain = len(tcp) == hdrLen && tcp[13] == inet.ACK
	switch {
	case hdrLen == 20, hdrLen == 32 && binary.BigEndian.Uint32(tcp[20:]) == timestamps:
		return plain, false
	}
	return false, plain
}

// latest is the highest ACK that came.
func (f *ackFlow) latest() uint32 {
	if f.n > 0 {
		return f.ack
	}
	return f.una
}

// passes reports whether the sender is to see an ACK now.
func (f *ackFlow) passes(ack uint32) bool {
	flight, passed := f.max-f.una, f.passed
	if int32(ack-f.round) > 0 {
		passed = 0
	}
	switch {
	case int32(f.max-ack) <= 0: // the last one for now
		return true
	case passed >= thinRound:
		return false
	}
	return flight < thinFlight || ack-f.una >= flight/thinShare
}

// pass notes that the sender sees an ACK.
func (f *ackFlow) pass(ack uint32) {
	if int32(ack-f.una) <= 0 {
		return
	}
	if f.una = ack; int32(ack-f.round) > 0 {
		f.round, f.passed = f.max, 0
	}
	f.passed++
}

// release gives the device what is held; a.mu is held.
func (a *acks) release(f *ackFlow) {
	if f.n == 0 {
		return
	}
	a.write(f.held[:f.n])
	f.n = 0
	f.pass(f.ack)
}

// flush is the timer's: the next ACK did not come in time.
func (a *acks) flush(f *ackFlow) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.release(f)
	}
}

// close drops what is held. Nothing is written afterwards.
func (a *acks) close() {
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
