package flight

import "edgemesh/tunnel/pull"

const (
	maxKept     = 2 * maxHeld  // bytes of memory in pieces behind holes: what a sender's maxHeld needs, cut into small pieces
	pieceCost   = 64           // bytes that a piece needs beside its packet's copy
	brokenTime  = 2 * holdTime // seconds without the next byte: its sender gave up long ago
	maxSpare    = 64           // copies that are kept to be used again
	bucketParts = 8192         // pieces behind holes of one bucket: maxHeld in packets, and half as many again
)

// assembly is the receiving half of a peer's buckets.
type assembly struct {
	sink    Sink
	buckets [pull.Buckets]inBucket
	held    share // behind holes
	begun   share // of frames that have begun, which the sink has
	// first is one more than the bucket that alone takes what would be too much of that: so at least its frames become whole. 0: none.
	first   int
	checked float64
	spare   spare[parcel]
}

// inBucket is a stream of bytes, and what is behind holes.
type inBucket struct {
	generation byte
	broken     bool   // waits for the next generation
	next       uint32 // offset that is delivered next
	later      parts
	begun      int // bytes of a frame that the sink has
	since      float64
}

// part is a piece behind a hole.
type part struct {
	offset uint32
	data   []byte
	in     *parcel
}

// parcel is the copy of a packet that has parts.
type parcel struct {
	buf  []byte
	refs int
}

// arriving is a packet's STREAM frames, and their copy if one was needed.
type arriving struct {
	frames []byte
	copied *parcel
}

func (a *assembly) copy(b []byte) *parcel {
	c := a.spare.get()
	*c = parcel{buf: append(c.buf[:0], b...), refs: 1}
	a.held.add(len(b))
	return c
}

// take takes a piece that stands at an offset of the packet's frames. It reports false, and why, if the packet is not to be
// acknowledged.
func (a *assembly) take(s stream, at int, from *arriving, now float64) (why Reason, ok bool) {
	b := &a.buckets[s.bucket]
	switch newer := int8(s.generation - b.generation); {
	case newer > 0:
		a.clear(b, int(s.bucket))
		b.generation, b.broken, b.next = s.generation, false, 0
		a.sink.Restart(int(s.bucket))
	case newer < 0:
		return 0, true // its sender gave up
	}
	ahead := int64(int32(s.offset - b.next))
	switch {
	case b.broken:
		return Broken, false
	case ahead > maxKept:
		return Ahead, false
	case ahead > 0:
		return a.keep(b, s, at, from, now)
	case int64(len(s.data)) <= -ahead:
		return 0, true
	}
	if !a.takes(int(s.bucket), len(s.data)) {
		return NoMemory, false
	}
	a.deliver(b, int(s.bucket), s.data[-ahead:])
	for p := b.later.first(); p != nil && int32(b.next-p.offset) >= 0; p = b.later.first() {
		if behind := int(b.next - p.offset); behind < len(p.data) {
			a.deliver(b, int(s.bucket), p.data[behind:])
		}
		a.release(p)
		b.later.drop()
	}
	b.since = now
	if b.later.n == 0 {
		b.later = parts{}
	}
	return 0, true
}

// takes reports whether there is room for so many bytes of a frame that may not become whole.
func (a *assembly) takes(bucket, n int) bool {
	if a.first == 0 && !a.begun.fits(n, maxHeld) {
		a.first = bucket + 1
	}
	return a.first == 0 || a.first == bucket+1 || a.begun.fits(n, maxHeld)
}

func (a *assembly) deliver(b *inBucket, bucket int, data []byte) {
	b.next += uint32(len(data))
	n := a.sink.Stream(bucket, data)
	if n < b.begun+len(data) && a.first == bucket+1 { // a frame is whole
		a.first = 0
	}
	a.begins(b, n)
}

// begins notes how much of a frame the sink has.
func (a *assembly) begins(b *inBucket, n int) {
	a.begun.add(n - b.begun)
	b.begun = n
}

// keep keeps a piece behind a hole.
func (a *assembly) keep(b *inBucket, s stream, at int, from *arriving, now float64) (Reason, bool) {
	row, i, found := b.later.find(s.offset)
	if found && len(b.later.rows[row][i].data) >= len(s.data) {
		return 0, true
	}
	if !a.held.fits(pieceCost+len(from.frames), maxKept) || b.later.n == bucketParts {
		return NoMemory, false
	}
	if from.copied == nil {
		from.copied = a.copy(from.frames)
	}
	from.copied.refs++
	a.held.add(pieceCost)
	if b.later.n == 0 && b.begun == 0 {
		b.since = now
	}
	end := at + streamHeader + len(s.data)
	b.later.insert(row, i, part{s.offset, from.copied.buf[end-len(s.data) : end], from.copied})
	return 0, true
}

// arrived is the end of a packet.
func (a *assembly) arrived(from *arriving) {
	if from.copied != nil {
		a.unref(from.copied)
	}
}

// release gives back a part's memory.
func (a *assembly) release(p *part) {
	a.held.add(-pieceCost)
	a.unref(p.in)
}

func (a *assembly) unref(c *parcel) {
	if c.refs--; c.refs == 0 {
		a.held.add(-len(c.buf))
		if len(a.spare) < maxSpare {
			a.spare.put(c)
		}
	}
}

// clear gives up what a bucket has; what the sink has of a frame goes with Restart.
func (a *assembly) clear(b *inBucket, bucket int) {
	for _, r := range b.later.rows {
		for i := range r {
			a.release(&r[i])
		}
	}
	b.later = parts{}
	a.begins(b, 0)
	if a.first == bucket+1 {
		a.first = 0
	}
}

// expire gives up what waits for too long: memory is not to be held by a peer that never fills a hole.
func (a *assembly) expire(now float64) {
	if now-a.checked < holdCheck {
		return
	}
	a.checked = now
	for i := range a.buckets {
		if b := &a.buckets[i]; (b.later.n > 0 || b.begun > 0) && now-b.since > brokenTime {
			if b.begun > 0 {
				a.sink.Restart(i)
			}
			a.clear(b, i)
			b.broken = true
		}
	}
}
