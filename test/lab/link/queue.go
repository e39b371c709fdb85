package link

import (
	"math/rand/v2"
	"time"
)

// Queue is one direction of a link: it says which frame comes out when. It has no
// clock, times are durations since any start; they never run backwards. How well
// the caller keeps its times does not change the rate: a late caller gets
// everything that came out meanwhile, and the line did not wait.
//
// A Queue is not safe for concurrent use and does not allocate once it has grown
// to the link's size.
type Queue struct {
	d    Direction
	loss *rand.Rand // one source for each use, so that a seed means the same
	jit  *rand.Rand // losses whatever else is set
	ord  *rand.Rand
	dup  *rand.Rand

	line    fifo          // waiting for the line; the first is on it
	backlog int64         // bytes in line
	done    time.Duration // when the first in line, or the last that was, is through

	air   frameHeap     // in flight to the other side
	last  time.Duration // when the last one in order comes out
	count uint64        // frames that ever were in flight

	free  [][]byte
	size  int // of a buffer
	stats Counters
}

// Counters are what happened to the frames of one direction.
type Counters struct {
	In        uint64 `json:"in"` // frames
	InBytes   uint64 `json:"inBytes"`
	Out       uint64 `json:"out"`
	OutBytes  uint64 `json:"outBytes"`
	Tail      uint64 `json:"tail"`      // dropped: the queue was full
	Loss      uint64 `json:"loss"`      // dropped at random
	Hole      uint64 `json:"hole"`      // dropped: too big
	Reordered uint64 `json:"reordered"` // not dropped, but late
	Doubled   uint64 `json:"doubled"`   // came twice
	Queued    int64  `json:"queued"`    // bytes in the queue now
	QueuedMax int64  `json:"queuedMax"` // most bytes there at any time
}

// NewQueue makes a direction of a link for frames of at most size bytes. Equal
// seeds lose, delay, reorder and double the same frames, counted from the first.
func NewQueue(d Direction, seed uint64, size int) *Queue {
	source := func(use uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, use)) }
	return &Queue{d: d, loss: source(1), jit: source(2), ord: source(3), dup: source(4), size: size}
}

// Set changes the link. Frames already through the line keep their times; one on
// the line takes no longer than the new rate needs.
func (q *Queue) Set(now time.Duration, d Direction) {
	q.run(now)
	q.d = d
	if first := q.line.first(); first != nil {
		q.done = min(q.done, now+d.onLine(int64(len(first))))
	}
}

// Direction returns what is set.
func (q *Queue) Direction() Direction { return q.d }

// Buffer returns a buffer for a frame, to be given back by Push or Free.
func (q *Queue) Buffer() []byte {
	if len(q.free) == 0 {
		const many = 64
		for slab := make([]byte, many*q.size); len(slab) > 0; slab = slab[q.size:] {
			q.free = append(q.free, slab[:q.size:q.size])
		}
	}
	b := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	return b
}

// Free takes a buffer back.
func (q *Queue) Free(b []byte) { q.free = append(q.free, b[:q.size]) }

// Push puts a frame, of a buffer from Buffer, into the link.
func (q *Queue) Push(now time.Duration, frame []byte) {
	q.run(now)
	size := int64(len(frame))
	q.stats.In++
	q.stats.InBytes += uint64(size)
	if q.d.Hole > 0 && len(frame) > q.d.Hole+etherHeader {
		q.stats.Hole++
		q.Free(frame)
		return
	}
	// An empty queue takes every frame, or a short one would let none through.
	if q.backlog > 0 && q.backlog+size > q.d.queueLimit() {
		q.stats.Tail++
		q.Free(frame)
		return
	}
	if q.line.len() == 0 {
		// The line was idle since q.done, which earned it the burst at most.
		q.done = max(q.done, now-q.d.onLine(q.d.Burst)) + q.d.onLine(size)
		if q.done <= now {
			q.launch(now, frame)
			return
		}
	}
	q.line.push(frame)
	q.backlog += size
	q.stats.QueuedMax = max(q.stats.QueuedMax, q.backlog)
}

// Pop returns the next frame that has come out by now and when that was; nil when
// there is none. Give the frame to Free afterwards.
func (q *Queue) Pop(now time.Duration) (frame []byte, at time.Duration) {
	q.run(now)
	if len(q.air) == 0 || q.air[0].at > now {
		return nil, 0
	}
	f := q.air.pop()
	q.stats.Out++
	q.stats.OutBytes += uint64(len(f.frame))
	return f.frame, f.at
}

// Next returns when it is worth to call Pop, which may then find nothing yet;
// false when nothing is inside.
func (q *Queue) Next() (time.Duration, bool) {
	switch {
	case len(q.air) > 0 && q.line.len() > 0:
		return min(q.air[0].at, q.done), true
	case len(q.air) > 0:
		return q.air[0].at, true
	}
	return q.done, q.line.len() > 0
}

// Counters returns what happened so far.
func (q *Queue) Counters() Counters {
	c := q.stats
	c.Queued = q.backlog
	return c
}

// run lets through the line what is through by now.
func (q *Queue) run(now time.Duration) {
	for q.line.len() > 0 && q.done <= now {
		frame := q.line.pop()
		q.backlog -= int64(len(frame))
		q.launch(q.done, frame)
		if next := q.line.first(); next != nil {
			q.done += q.d.onLine(int64(len(next)))
		}
	}
}

// launch puts a frame into flight that left the line at the given time.
func (q *Queue) launch(through time.Duration, frame []byte) {
	if q.d.Loss > 0 && q.loss.Float64() < q.d.Loss {
		q.stats.Loss++
		q.Free(frame)
		return
	}
	at := through + q.d.Delay
	if q.d.Jitter > 0 {
		at += time.Duration(q.jit.Int64N(int64(q.d.Jitter) + 1))
	}
	at = max(at, q.last)
	if q.d.Reorder > 0 && q.ord.Float64() < q.d.Reorder {
		q.stats.Reordered++
		by := q.d.ReorderBy
		if by == 0 {
			by = DefaultReorderBy
		}
		at += by
	} else {
		q.last = at
	}
	q.fly(at, frame)
	if q.d.Duplicate > 0 && q.dup.Float64() < q.d.Duplicate {
		q.stats.Doubled++
		q.fly(at, append(q.Buffer()[:0], frame...))
	}
}

func (q *Queue) fly(at time.Duration, frame []byte) {
	q.count++
	q.air.push(flying{at: at, number: q.count, frame: frame})
}
