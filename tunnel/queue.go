package tunnel

import (
	"iter"
	"math"
	"sync/atomic"

	"edgemesh/tunnel/pull"
)

const (
	// maxQuantum is how much a flow may send per round, in bytes. On a slow path it is what the path takes in a few
	// milliseconds, and at least minQuantum, a packet of the usual MTU. Few of a flow are fewBytes.
	maxQuantum           = 8 << 10
	minQuantum, fewBytes = 1536, 32 << 10
)

// queue holds the packets of one lane: deficit round robin over flows (RFC 8290 section 4, without its random choice of a
// victim). Flows in one bucket share its turn. A flow that was silent is served first, so that a ping does not wait for a bulk flow's turn. It has no lock of
// its own.
type queue struct {
	buckets *[pull.Buckets]*bucket // nil until the first packet, each until its first
	fresh   ring                   // flows that had nothing queued until now
	old     ring
	packets int
	charged int // memory held, in bytes

	marked, trimmed uint64 // packets marked, and segments removed, that nobody has counted yet

	pieces

	held    *atomic.Int64 // memory held by all queues of the tunnel, bytes
	target  codelTarget
	longest int64 // how long any packet may wait, nanoseconds; 0: without a bound
	learns  bool  // the rate is being learnt: no flow is to slow down
}

// pieces says how much of a TCP super-segment leaves at a time.
type pieces struct {
	piece int    // bytes of a frame; 0: all
	pools *pools // what the pieces are taken from
}

// bucket is one flow's packets, oldest first.
type bucket struct {
	chain
	bytes   int // of the packets
	charged int // memory they hold
	deficit int
	queued  bool // in one of the rings
	next    *bucket
	delay   codelFlow
	flow    uint32 // whose data came last
	newest  uint32 // the sequence number behind its newest byte
}

// again is how many bytes behind the newest a TCP segment may be that is sent again, the largest window there is in practice:
// what is further away is another connection's.
const again = 16 << 20

// ring is a list of buckets with something to send.
type ring struct{ head, tail *bucket }

func (r *ring) push(b *bucket) {
	b.next = nil
	if r.tail == nil {
		r.head = b
	} else {
		r.tail.next = b
	}
	r.tail = b
}

func (r *ring) pop() *bucket {
	b := r.head
	if r.head = b.next; r.head == nil {
		r.tail = nil
	}
	return b
}

func (q *queue) push(p *packet) {
	if q.buckets == nil {
		q.buckets = new([pull.Buckets]*bucket)
	}
	b := q.buckets[p.flow%pull.Buckets]
	if b == nil {
		b = &bucket{}
		q.buckets[p.flow%pull.Buckets] = b
	}
	p.again = b.resent(p)
	b.chain.push(p)
	b.bytes += p.n
	b.charged += p.charge()
	q.charged += p.charge()
	q.held.Add(int64(p.charge()))
	q.packets++
	if !b.queued {
		b.queued, b.deficit = true, q.quantum()
		q.fresh.push(b)
	}
}

// quantum is how much a flow may send per round. A flow that sends little is not to wait longer for a bulk flow than a batch
// takes.
func (q *queue) quantum() int {
	if q.piece == 0 {
		return maxQuantum
	}
	return min(max(q.piece, minQuantum), maxQuantum)
}

// free frees the memory of an empty queue.
func (q *queue) free() {
	q.buckets, q.fresh, q.old = nil, ring{}, ring{}
}

// resent reports whether a TCP segment is sent again while something of its flow waits.
func (b *bucket) resent(p *packet) bool {
	if p.data == 0 {
		return false
	}
	end := p.seq + uint32(p.data) //nolint:gosec // at most 64 KiB
	if d := int32(end - b.newest); b.flow == p.flow && d <= 0 && d > -again {
		return b.head != nil
	}
	b.flow, b.newest = p.flow, end
	return false
}

// take removes the oldest packet of b, which has one.
func (q *queue) take(b *bucket) *packet {
	p := b.chain.pop()
	b.bytes -= p.n
	b.charged -= p.charge()
	q.charged -= p.charge()
	q.held.Add(-int64(p.charge()))
	q.packets--
	return p
}

// pop returns the next packet to send, or nil. A packet that a flow's delay control picks is marked, or loses a segment, or
// is moved to late. So is one that waited too long: an unresponsive sender would otherwise fill the queue's memory. What is
// sent again is spared: lost another time, it would have its sender wait for seconds. It may wait twice as long, as those
// before it may have waited as long as any; so may the data of a TCP flow that has little here, which would lose it together.
func (q *queue) pop(now int64, late *chain) *packet {
	for {
		r := &q.fresh
		if r.head == nil {
			r = &q.old
		}
		b := r.head
		switch {
		case b == nil:
			return nil
		case b.head == nil:
			r.pop()
			if r == &q.fresh { // one round among the old ones, so that it does not stay fresh forever
				q.old.push(b)
			} else {
				b.queued = false
			}
		case b.deficit <= 0:
			b.deficit += q.quantum()
			q.old.push(r.pop())
		default:
			whole, spared, longest := b.head.n, b.head.again, q.longest
			if spared || b.head.data > 0 && b.bytes <= fewBytes {
				longest *= 2
			}
			p := cut(q.pools, b.head, q.piece)
			if p == nil {
				p = q.take(b)
			} else {
				b.bytes -= whole - b.head.n
			}
			if longest > 0 && now-p.at > longest {
				late.push(p)
				continue
			}
			target := q.target
			if q.learns {
				target.Delay = math.MaxInt64
			}
			if !spared && b.delay.drop(target, now, now-p.at, b.bytes < minQuantum) {
				switch {
				case markCE(p.ip()):
					q.marked++
				case trim(p):
					q.trimmed++
				default:
					late.push(p)
					continue
				}
			}
			b.deficit -= p.n
			return p
		}
	}
}

// flows are those that have packets.
func (q *queue) flows() iter.Seq[*bucket] {
	return func(yield func(*bucket) bool) {
		for _, r := range [...]*ring{&q.fresh, &q.old} {
			for b := r.head; b != nil; b = b.next {
				if b.head != nil && !yield(b) {
					return
				}
			}
		}
	}
}

// dropFattest removes the oldest packet of the flow that holds most memory. The queue is not empty.
func (q *queue) dropFattest() *packet {
	var fat *bucket
	for b := range q.flows() {
		if fat == nil || b.charged > fat.charged {
			fat = b
		}
	}
	return q.take(fat)
}

// oldest is when the packet was queued that has waited longest; false if none waits.
func (q *queue) oldest() (at int64, ok bool) {
	for b := range q.flows() {
		if !ok || b.head.at < at {
			at, ok = b.head.at, true
		}
	}
	return at, ok
}

// expire moves every packet queued before the given time to out.
func (q *queue) expire(before int64, out *chain) {
	for b := range q.flows() {
		for b.head != nil && b.head.at < before {
			out.push(q.take(b))
		}
	}
}

// chain is a plain list of packets.
type chain struct{ head, tail *packet }

func (c *chain) push(p *packet) {
	p.next = nil
	if c.head == nil {
		c.head = p
	} else {
		c.tail.next = p
	}
	c.tail = p
}

// pop removes the first packet; there is one.
func (c *chain) pop() *packet {
	p := c.head
	if c.head = p.next; c.head == nil {
		c.tail = nil
	}
	p.next = nil
	return p
}

// each calls f for every packet; f may reuse it.
func (c *chain) each(f func(*packet)) {
	for p := c.head; p != nil; {
		next := p.next
		f(p)
		p = next
	}
	*c = chain{}
}
