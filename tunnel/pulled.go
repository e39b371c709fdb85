package tunnel

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edgemesh/tunnel/epoch"
	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/pull"
	"edgemesh/tunnel/virtio"
)

// Bytes and Done make a packet a pull.Frame.
func (p *packet) Bytes() []byte { return p.frame() }

// Done frees the packet.
func (p *packet) Done() {
	p.by.flying--
	p.by.t.pools.put(p)
}

// Pulled are the lanes to one peer for an underlay that takes packets when they may leave, so that nothing stands behind their queues,
// in place of carriers that are written to. It carries frames in as many orders as the queue has buckets, and repairs them; datagrams
// it does not. The datagram lane has no carrier while the underlay is up, and neither has the stream lane while the underlay takes
// frames, too: which of the two takes them, the peer's chooser says. The calls come one after the other, except for Carries.
type Pulled struct {
	t  *Tunnel
	id PeerID
	p  *peer // nil: there is no route yet

	wake   func()    // nil: down
	all    bool      // it may take frames of the stream lane
	pieces pieceList // of the packet that is being sent as datagrams
	frames chain     // that do not fit two datagrams
	flying int       // frames taken and not given back
	leaves int64     // when the lanes get their packets back at the latest; 0: they do not

	carries atomic.Bool // it takes those of the stream lane

	mu     sync.Mutex // guards what was received; no other of the tunnel is held then, but leaves
	sink   *DatagramSink
	in     [pull.Buckets]inBucket
	spare  [][]byte // large buffers for them
	held   [][]byte // frames that wait for the end of carriers
	size   int      // of them
	waits  bool     // frames are held
	passes bool     // what carriers still live is not waited for
	asked  bool     // whether some do, since the last Flush
	closed bool
}

// inBucket is a bucket's rest that is no whole frame.
type inBucket struct {
	b      []byte
	broken bool // out of step, until it begins again
}

// pieceTime is for how long a piece of a super-segment keeps the line, seconds, as drain has it; pulledPiece is the least of two
// segments, bytes: the second has no headers of its own. Datagrams do not wait for it.
const (
	pieceTime   = 0.005
	pulledPiece = 3 << 10
)

// maxHeldFrames bounds what waits for the end of carriers, bytes: 100 Mbit/s for HoldTime.
const maxHeldFrames = 4 << 20

// maxSpares are the buffers kept for frames of 64 KiB that come in pieces: without them each frame had its buffer grow again, which with
// the collector's share was a quarter of what the receiving agent spent.
const maxSpares = 4

// growth times what is there of a frame is made room for at most, as long as the next piece would not fit: its header alone, which any
// peer may send for each bucket, is not worth 64 KiB.
const growth = 4

// leaveTime and two round trips are how long what was taken has to arrive before carriers take packets again. What is late is repaired
// beside them.
const leaveTime = time.Second

// Pull returns the lanes to a peer, which may have no route yet. Close frees it.
func (t *Tunnel) Pull(id PeerID) *Pulled {
	return &Pulled{t: t, id: id, sink: t.Datagrams(id)}
}

// Up has the lanes wait to be taken from, or unless all is set the datagram lane only: wake is called when something begins to wait,
// with a lock held.
func (x *Pulled) Up(wake func(), all bool) {
	x.wake, x.all = wake, all
	x.attach()
}

// attach gives the lanes to x, as soon as the peer has a route, and again if it left and came back.
func (x *Pulled) attach() bool {
	if x.wake == nil || x.p != nil && x.p.ctx.Err() == nil {
		if x.p != nil {
			x.turn()
		}
		return x.p != nil
	}
	if x.p = x.t.peer(x.id); x.p == nil {
		return false
	}
	x.p.beside.Store(x)
	x.p.lanes[DatagramLane].pull(x.wake)
	if x.all {
		x.p.chooser.up(x)
	}
	x.turn()
	return true
}

// turn does what the chooser says. Frames go back to carriers in order: first all that was taken has to arrive.
func (x *Pulled) turn() {
	carries, lanes := x.carries.Load() && x.p.pulled.Load(), !x.all || x.p.chooser.lanes.Load()
	switch {
	case !lanes:
		x.leaves = 0
		if !carries {
			x.carries.Store(true)
			x.p.pulled.Store(true)
			x.p.lanes[StreamLane].pull(x.wake)
		}
	case carries && x.leaves == 0:
		_, line := x.p.lanes[StreamLane].seen()
		x.leaves = x.p.t.now() + int64(leaveTime+2*seconds(line.RTT))
		x.turn()
	case carries && (x.flying == 0 || x.p.t.now() > x.leaves):
		x.giveBack(nil)
	}
}

// takes reports whether frames of the stream lane may be taken.
func (x *Pulled) takes() bool { return x.carries.Load() && x.leaves == 0 }

// giveBack has carriers take the stream lane, first what is left.
func (x *Pulled) giveBack(left []*packet) {
	x.leaves = 0
	x.carries.Store(false)
	x.p.pulled.Store(false)
	x.p.lanes[StreamLane].unpull(left)
}

// Carries reports whether it takes the stream lane. It may be called at any time.
func (x *Pulled) Carries() bool { return x.carries.Load() }

// Waits says of both kinds whether there are any.
func (x *Pulled) Waits() (stream, datagram bool) {
	if !x.attach() {
		return false, false
	}
	stream, datagram = x.frames.head != nil, x.pieces.waits()
	stream = stream || x.takes() && x.p.lanes[StreamLane].waits()
	datagram = datagram || x.p.lanes[DatagramLane].waits()
	return stream, datagram
}

// Take takes the next frame, nil if there is none, and its bucket.
func (x *Pulled) Take(line pull.Line) (pull.Frame, int) {
	if !x.attach() {
		return nil, 0
	}
	var p *packet
	if x.frames.head != nil {
		p = x.frames.pop()
	} else if !x.takes() {
		return nil, 0
	} else if p = x.p.lanes[StreamLane].take(line); p == nil {
		return nil, 0
	} else {
		x.p.chooser.taken.Add(uint64(len(p.ip())))
	}
	x.p.clear.Store(line.Clean())
	x.p.counters.txPackets.Add(1)
	x.p.counters.txBytes.Add(uint64(len(p.ip())))
	p.by = x
	x.flying++
	return p, int(p.flow % pull.Buckets)
}

// TakeDatagram takes the next datagram of at most room bytes, nil if there is none. It is valid until the next call.
func (x *Pulled) TakeDatagram(line pull.Line, room int) []byte {
	if !x.attach() {
		return nil
	}
	for !x.pieces.waits() {
		p := x.p.lanes[DatagramLane].take(line)
		if p == nil {
			return nil
		}
		x.pieces.begin(line.Room)
		if !x.pieces.cut(p) {
			x.frames.push(p)
			continue
		}
		x.p.counters.txPackets.Add(1)
		x.p.counters.txBytes.Add(uint64(len(p.ip())))
		x.t.pools.put(p)
	}
	return x.pieces.next(line.Room, room, func() { x.p.counters.drop(DropSend) })
}

// Down gives the lanes back to carriers, and frames that were taken and that the peer may not have.
func (x *Pulled) Down(left []pull.Frame) {
	x.wake = nil
	var back []*packet
	for _, f := range left {
		if p, ok := f.(*packet); ok {
			x.flying--
			p.at = x.t.now()
			back = append(back, p)
		}
	}
	for p := x.frames.head; p != nil; p = x.frames.head {
		back = append(back, x.frames.pop())
	}
	x.pieces.begin(0)
	if x.p == nil {
		for _, p := range back {
			x.t.lost.drop(DropPeerGone)
			x.t.pools.put(p)
		}
		return
	}
	x.p.chooser.down(x)
	x.giveBack(back)
	if x.p.beside.CompareAndSwap(x, nil) {
		x.p.lanes[DatagramLane].unpull(nil)
	}
	x.p = nil
}

// Stream takes a bucket's next bytes, and returns how many it keeps.
func (x *Pulled) Stream(bucket int, b []byte) (begun int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	in := &x.in[bucket]
	if in.broken {
		return 0
	}
	if x.sink.p != nil && x.sink.p.ctx.Err() != nil {
		x.sink.p = nil // it left, and may have come back
	}
	p := x.sink.peer() // nil: there is no route, but a frame's end is a frame's end
	if n := len(x.spare); in.b == nil && n > 0 {
		in.b, x.spare = x.spare[n-1], x.spare[:n-1]
	}
	in.b = append(in.b, b...)
	rest, need := in.b, 0 // of the frame that is not whole
	for len(rest) >= frameHdrLen {
		t, n := frameHdr(rest)
		if t != framePacket || n > virtio.MaxFrame || n < minPacketBody {
			if p != nil {
				p.malformed(DropBadFrame)
			}
			in.broken, rest = true, nil
			break
		}
		if len(rest) < frameHdrLen+n {
			need = frameHdrLen + n
			break
		}
		if p != nil {
			x.frame(p, rest[frameHdrLen:frameHdrLen+n])
		}
		rest = rest[frameHdrLen+n:]
	}
	in.b = append(in.b[:0], rest...)
	switch {
	case need > 0:
		if cap(in.b)-len(in.b) < len(b) {
			in.b = slices.Grow(in.b, min(need-len(in.b), growth*len(in.b)))
		}
	case len(rest) == 0 && cap(in.b) > largeLen:
		if len(x.spare) < maxSpares {
			x.spare = append(x.spare, in.b)
		}
		in.b = nil
	}
	return len(rest)
}

// Restart says that the next bytes of a bucket begin a frame.
func (x *Pulled) Restart(bucket int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.in[bucket] = inBucket{}
}

// Datagram takes one.
func (x *Pulled) Datagram(b []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sink.Datagram(b)
}

// Flush says that no more came with those before.
func (x *Pulled) Flush() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sink.Flush()
	x.asked = false
}

// Close is the last call.
func (x *Pulled) Close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed, x.held = true, nil
	x.sink.Close()
}

// frame delivers a frame's body, unless carriers before have more to say. x.mu is held.
func (x *Pulled) frame(p *peer, b []byte) {
	x.sink.got = true
	if !x.waits && !x.asked {
		x.asked = true
		if live := p.order[StreamLane].live(); !live {
			x.passes = false
		} else if !x.passes && x.t.spawn(func() { x.hold(p) }) {
			x.waits = true
		}
	}
	if !x.waits {
		p.deliver(b)
		return
	}
	x.held = append(x.held, append([]byte(nil), b...))
	if x.size += len(b); x.size > maxHeldFrames {
		x.release(p)
	}
}

// hold has frames wait until all carriers are over that live now, or for HoldTime: one may be on a dead path.
func (x *Pulled) hold(p *peer) {
	p.order[StreamLane].waitAll(p.ctx, p.t.lim.HoldTime)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.waits && !x.closed {
		x.release(p)
	}
}

// release delivers what waits. x.mu is held.
func (x *Pulled) release(p *peer) {
	for _, b := range x.held {
		p.deliver(b)
	}
	x.held, x.size, x.waits, x.passes = nil, 0, false, p.order[StreamLane].live()
}

// deliver checks a frame's body, and gives it to the device.
func (p *peer) deliver(b []byte) {
	var h inet.Header
	r := p.check(b, &h)
	switch {
	case r != 0:
		p.refuse(r)
	case !p.thins(&h, b):
		p.write(b)
	}
}

// pull has an underlay take the lane's packets. A carrier in use ends in order, and one that is stuck soon.
func (l *lane) pull(wake func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.pulled = wake
	if l.writer != writerOff {
		if l.sending {
			l.obey(epoch.Order{Do: epoch.Hurry})
		}
		l.wake()
	}
	if l.has() {
		wake()
	}
}

// unpull has carriers take them again, those first that were taken and have not arrived.
func (l *lane) unpull(left []*packet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pulled = nil
	switch {
	case l.closed:
		for _, p := range left {
			l.p.counters.drop(DropSend)
			l.p.t.pools.put(p)
		}
	case l.sending: // the batch is the writer's
		for _, p := range left {
			l.q.push(p)
		}
	case len(left) > 0:
		l.out.packets = append(left, l.out.packets...)
	}
	l.q.piece, l.q.learns = 0, false
	if !l.closed && l.has() {
		l.wake()
	}
}

// waits reports whether there is something to take.
func (l *lane) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.has()
}

// has is waits; l.mu is held. The batch is the writer's while it sends.
func (l *lane) has() bool { return l.q.packets > 0 || !l.sending && len(l.out.packets) > 0 }

// take takes the next packet, nil if there is none.
func (l *lane) take(line pull.Line) *packet {
	var late chain
	defer func() { l.p.drop(&late, DropDelay) }()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.sending && len(l.out.packets) > 0 {
		p := l.out.packets[0]
		l.out.packets = l.out.packets[1:]
		return p
	}
	now := l.p.t.now()
	l.line = line
	l.line.Path = nil
	if l.adapted == 0 || now-l.adapted > rttEvery {
		l.adapted = now
		l.adaptTo(seconds(line.RTT), line.Rate)
	}
	if l.q.piece = max(int(line.Rate*pieceTime), pulledPiece); l.q.piece >= batchLen {
		l.q.piece = 0
	}
	l.q.learns = line.Grows
	p := l.q.pop(now, &late)
	l.count()
	if p != nil && line.Path != nil && (l.sampled == 0 || now-l.sampled >= waitEvery) {
		l.sampled = now
		line.Path.Waited(time.Duration(now - p.at))
	}
	return p
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
