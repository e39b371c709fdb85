package flight

import "edgemesh/tunnel/pull"

const (
	maxHeld   = 8 << 20 // bytes of frames that are not acknowledged: 1 Gbit/s for 67 ms
	holdTime  = 6.0     // seconds that a bucket waits for an acknowledgement: longer than a link that stops for 5
	minPiece  = 16      // bytes of a frame that are worth a header
	oftenLost = 3       // times: what a peer never acknowledges leaves every other packet to the rest
	holdCheck = 0.1     // seconds between looks at holdTime
	mostSpare = 4096    // of a kind, kept to be used again: what 50 Mbit/s have in flight for a second
)

// outgoing is the sending half of a peer's buckets.
type outgoing struct {
	source  Source
	count   *Counters
	buckets [pull.Buckets]outBucket
	held    share // frames that wait for acknowledgement
	again   chain
	unsent  chain // the rest of the frame that is being sent
	turn    bool  // of what was not sent yet, before what is often lost
	checked float64

	frames spare[frame]
	pieces spare[piece]
}

// outBucket has frames from the first that is not acknowledged on: the receiver holds all behind a hole, and this bounds it.
type outBucket struct {
	offset      uint32 // of the next frame
	generation  byte
	first, last *frame
}

// frame is one that was taken from the source.
type frame struct {
	pull.Frame
	data       []byte
	bucket     byte
	generation byte
	offset     uint32
	left       int     // bytes not acknowledged
	sent       float64 // when the last of it was sent first
	dead       bool    // its bucket began again
	next       *frame
}

// piece is a part of a frame, of a packet in flight or to be sent.
type piece struct {
	frame *frame
	at, n int
	lost  int // times
	next  *piece
}

// chain is a list of pieces.
type chain struct{ first, last *piece }

func (c *chain) push(p *piece) {
	p.next = nil
	if c.last == nil {
		c.first = p
	} else {
		c.last.next = p
	}
	c.last = p
}

func (c *chain) pop() *piece {
	p := c.first
	if c.first = p.next; c.first == nil {
		c.last = nil
	}
	return p
}

// join appends another chain.
func (c *chain) join(more chain) {
	if more.first == nil {
		return
	}
	if c.last == nil {
		c.first = more.first
	} else {
		c.last.next = more.first
	}
	c.last = more.last
}

// waits says of both kinds whether there is something to send.
func (o *outgoing) waits() (stream, datagram bool) {
	o.drop()
	stream, datagram = o.source.Waits()
	return o.again.first != nil || o.unsent.first != nil || stream && o.held.fits(1, maxHeld), datagram
}

// drop removes pieces of dead frames that are next.
func (o *outgoing) drop() {
	for o.again.first != nil && o.again.first.frame.dead {
		o.finish(o.again.pop())
	}
}

// peek returns the list whose first piece is to be sent next; nil: there is none.
func (o *outgoing) peek(now float64) *chain {
	o.drop()
	if o.again.first != nil && !(o.turn && o.again.first.lost >= oftenLost) {
		return &o.again
	}
	if o.unsent.first == nil && o.held.fits(1, maxHeld) {
		o.take(now)
	}
	switch {
	case o.unsent.first != nil:
		return &o.unsent
	case o.again.first != nil:
		return &o.again
	}
	return nil
}

// take takes a frame from the source.
func (o *outgoing) take(now float64) {
	taken, bucket := o.source.Stream(now)
	if taken == nil {
		return
	}
	f, p, b := o.frames.get(), o.pieces.get(), &o.buckets[bucket]
	data := taken.Bytes()
	*f = frame{Frame: taken, data: data, bucket: byte(bucket), generation: b.generation, offset: b.offset, left: len(data), sent: now}
	b.offset += uint32(len(data))
	if b.last == nil {
		b.first = f
	} else {
		b.last.next = f
	}
	b.last = f
	o.held.add(len(data))
	*p = piece{frame: f, n: len(data)}
	o.unsent.push(p)
}

// fill appends STREAM frames of at most room bytes, and returns what is in them. What was lost goes first.
func (o *outgoing) fill(b []byte, room int, now float64) (out []byte, in chain) {
	end, length, headers := len(b)+room, 0, 0
	o.turn = !o.turn
	for {
		from := o.peek(now)
		if from == nil {
			return b, in
		}
		next := from.first
		f, start := next.frame, next.frame.offset+uint32(next.at)
		joins := in.last != nil && in.last.frame.bucket == f.bucket && in.last.frame.generation == f.generation &&
			in.last.frame.offset+uint32(in.last.at+in.last.n) == start
		left := end - len(b)
		if !joins {
			left -= streamHeader
			if headers == maxPieces {
				return b, in
			}
		}
		if left < min(minPiece, next.n) {
			return b, in
		}
		if joins {
			order.PutUint16(b[length:], order.Uint16(b[length:])+uint16(min(next.n, left)))
		} else {
			b = appendStreamHeader(b, stream{bucket: f.bucket, generation: f.generation, offset: start}, min(next.n, left))
			length = len(b) - 2
			headers++
		}
		p := o.cut(from, left)
		if from == &o.again {
			o.count.Resent += uint64(p.n)
		}
		if from == &o.unsent {
			f.sent = now
		}
		b = append(b, f.data[p.at:p.at+p.n]...)
		in.push(p)
	}
}

// cut takes the first n bytes of a list, or its first piece if that is shorter.
func (o *outgoing) cut(from *chain, n int) *piece {
	p := from.first
	if p.n <= n {
		return from.pop()
	}
	part := o.pieces.get()
	*part = piece{frame: p.frame, at: p.at, n: n, lost: p.lost}
	p.at += n
	p.n -= n
	return part
}

// lost is for what is to be sent again.
func (o *outgoing) lost(in chain) {
	for p := in.first; p != nil; p = p.next {
		p.lost++
	}
	o.again.join(in)
}

// acknowledged is for what has arrived.
func (o *outgoing) acknowledged(in chain) {
	for in.first != nil {
		o.finish(in.pop())
	}
}

// finish is the end of a piece: it has arrived, or its frame is dead.
func (o *outgoing) finish(p *piece) {
	f := p.frame
	f.left -= p.n
	o.pieces.put(p)
	if f.dead && f.left == 0 {
		o.frames.put(f)
	}
	if f.dead {
		return
	}
	b := &o.buckets[f.bucket]
	for b.first != nil && b.first.left == 0 {
		f := b.first
		b.first = f.next
		o.held.add(-len(f.data))
		f.Done()
		o.frames.put(f)
	}
	if b.first == nil {
		b.last = nil
	}
}

// spare is what is not used now.
type spare[T any] []*T

func (s *spare[T]) get() *T {
	if n := len(*s); n > 0 {
		x := (*s)[n-1]
		*s = (*s)[:n-1]
		return x
	}
	return new(T)
}

func (s *spare[T]) put(x *T) {
	if len(*s) < mostSpare {
		*s = append(*s, x)
	}
}

// expire has buckets begin again that wait for too long.
func (o *outgoing) expire(now float64) {
	if now-o.checked < holdCheck {
		return
	}
	o.checked = now
	for i := range o.buckets {
		if f := o.buckets[i].first; f != nil && now-f.sent > holdTime {
			o.count.Restarts++
			o.restart(i, func(f *frame) { f.Done() })
		}
	}
}

// restart has a bucket begin again, and gives away the frames it has.
func (o *outgoing) restart(bucket int, give func(*frame)) {
	b := &o.buckets[bucket]
	if b.first == nil {
		return
	}
	for f := b.first; f != nil; {
		next := f.next
		give(f)
		o.held.add(-len(f.data))
		*f = frame{left: f.left, dead: true}
		if f.left == 0 {
			o.frames.put(f)
		}
		f = next
	}
	*b = outBucket{generation: b.generation + 1}
	if p := o.unsent.first; p != nil && p.frame.dead {
		o.finish(o.unsent.pop())
	}
}
