package flight

import "slices"

const (
	maxKept     = 2 * maxHeld  // bytes of memory in pieces behind holes: what a sender's maxHeld needs, cut into small pieces
	pieceCost   = 64           // bytes that a piece needs beside its packet's copy
	brokenTime  = 2 * holdTime // seconds without the next byte: its sender gave up long ago
	maxSpare    = 64           // copies that are kept to be used again
	maxEmpty    = 256          // parts that a bucket has room for while there is none: 10 KB
	bucketParts = 8192         // pieces behind holes of one bucket: maxHeld in packets, and half as many again
)

// assembly is the receiving half of a peer's buckets.
type assembly struct {
	sink    Sink
	buckets [Buckets]inBucket
	held    share
	checked float64
	spare   spare[parcel]
}

// inBucket is a stream of bytes, and what is behind holes.
type inBucket struct {
	generation byte
	broken     bool   // waits for the next generation
	next       uint32 // offset that is delivered next
	later      []part // by offset
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
		a.clear(b)
		*b = inBucket{generation: s.generation, later: b.later}
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
	a.deliver(b, int(s.bucket), s.data[-ahead:])
	n := 0
	for ; n < len(b.later); n++ {
		p := &b.later[n]
		behind := int(int32(b.next - p.offset))
		if behind < 0 {
			break
		}
		if behind < len(p.data) {
			a.deliver(b, int(s.bucket), p.data[behind:])
		}
		a.release(p)
	}
	b.since = now
	if b.later = slices.Delete(b.later, 0, n); len(b.later) == 0 {
		b.empty()
	}
	return 0, true
}

func (a *assembly) deliver(b *inBucket, bucket int, data []byte) {
	b.next += uint32(len(data))
	a.sink.Stream(bucket, data)
}

// keep keeps a piece behind a hole.
func (a *assembly) keep(b *inBucket, s stream, at int, from *arriving, now float64) (Reason, bool) {
	i, found := slices.BinarySearchFunc(b.later, s.offset, func(p part, offset uint32) int { return int(int32(p.offset - offset)) })
	if found && len(b.later[i].data) >= len(s.data) {
		return 0, true
	}
	if !a.held.fits(pieceCost+len(from.frames), maxKept) || len(b.later) == bucketParts {
		return NoMemory, false
	}
	if from.copied == nil {
		from.copied = a.copy(from.frames)
	}
	from.copied.refs++
	a.held.add(pieceCost)
	if len(b.later) == 0 {
		b.since = now
	}
	end := at + streamHeader + len(s.data)
	b.later = slices.Insert(b.later, i, part{s.offset, from.copied.buf[end-len(s.data) : end], from.copied})
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
	*p = part{}
}

func (a *assembly) unref(c *parcel) {
	if c.refs--; c.refs == 0 {
		a.held.add(-len(c.buf))
		if len(a.spare) < maxSpare {
			a.spare.put(c)
		}
	}
}

func (a *assembly) clear(b *inBucket) {
	for i := range b.later {
		a.release(&b.later[i])
	}
	b.empty()
}

// empty is for a bucket without pieces behind holes. It gives back what room for many of them takes.
func (b *inBucket) empty() {
	if b.later = b.later[:0]; cap(b.later) > maxEmpty {
		b.later = nil
	}
}

// expire gives up what waits for too long: memory is not to be held by a peer that never fills a hole.
func (a *assembly) expire(now float64) {
	if now-a.checked < holdCheck {
		return
	}
	a.checked = now
	for i := range a.buckets {
		if b := &a.buckets[i]; len(b.later) > 0 && now-b.since > brokenTime {
			a.clear(b)
			b.broken = true
		}
	}
}
