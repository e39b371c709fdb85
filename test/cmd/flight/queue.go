package main

import "math"

const (
	queueBytes = 6 << 20 // as the tunnel's
	quantum    = 1536
)

// packet is a frame: length 4, virtio header, IP packet.
type packet struct {
	b      []byte
	at     float64
	bucket int
	from   *node
	next   *packet
}

func (p *packet) Bytes() []byte { return p.b }
func (p *packet) Done()         { p.next, p.from.spare = p.from.spare, p }

// queue is deficit round robin over buckets of flows, with CoDel in each (RFC 8290, 8289).
type queue struct {
	buckets [128]bucket
	turns   []int // buckets that have packets
	bytes   int
	dropped int
}

type bucket struct {
	first, last *packet
	bytes       int
	deficit     int
	queued      bool
	above, next float64
	count       int
	dropping    bool
}

func (q *queue) push(p *packet) {
	b := &q.buckets[p.bucket]
	p.next = nil
	if b.last == nil {
		b.first = p
	} else {
		b.last.next = p
	}
	b.last = p
	b.bytes += len(p.b)
	q.bytes += len(p.b)
	if !b.queued {
		b.queued, b.deficit = true, quantum
		q.turns = append(q.turns, p.bucket)
	}
	for q.bytes > queueBytes {
		fat := &q.buckets[0]
		for i := range q.buckets {
			if q.buckets[i].bytes > fat.bytes {
				fat = &q.buckets[i]
			}
		}
		q.take(fat).Done()
		q.dropped++
	}
}

func (q *queue) take(b *bucket) *packet {
	p := b.first
	if b.first = p.next; b.first == nil {
		b.last = nil
	}
	b.bytes -= len(p.b)
	q.bytes -= len(p.b)
	return p
}

// pop returns the next packet, or nil. Target and interval are CoDel's, seconds.
func (q *queue) pop(now, target, interval float64) *packet {
	for len(q.turns) > 0 {
		turn := q.turns[0]
		b := &q.buckets[turn]
		switch {
		case b.first == nil:
			b.queued = false
			q.turns = append(q.turns[:0], q.turns[1:]...)
		case b.deficit <= 0:
			b.deficit += quantum
			q.turns = append(append(q.turns[:0], q.turns[1:]...), turn)
		default:
			p := q.take(b)
			if b.drop(now, now-p.at, target, interval) {
				q.dropped++
				p.Done()
				continue
			}
			b.deficit -= len(p.b)
			return p
		}
	}
	return nil
}

// drop is CoDel's choice. A bucket that has less than a packet waiting did not make the queue that it stands in.
func (b *bucket) drop(now, delay, target, interval float64) bool {
	if delay < target || b.bytes < quantum {
		b.above, b.dropping = 0, false
		return false
	}
	switch {
	case b.above == 0:
		b.above = now + interval
	case !b.dropping && now >= b.above:
		b.dropping, b.count, b.next = true, 1, now+interval
		return true
	case b.dropping && now >= b.next:
		b.count++
		b.next = now + interval/math.Sqrt(float64(b.count))
		return true
	}
	return false
}
