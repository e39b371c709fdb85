package mux

import "time"

const (
	// drainTime is how long a full queue should take to drain.
	drainTime = 5 * time.Millisecond
	// A rate is measured for drainEvery; the highest of the last one to two
	// drainMemory counts, so that neither a retransmission, for which everything
	// waits, nor a busy machine looks like a slow path.
	drainEvery  = 10 * time.Millisecond
	drainMemory = 50 // times drainEvery
)

// Drain finds out how long a queue may be, in bytes, so that it drains in about
// 5 ms: from the rate at which bytes leave it. As long as the queue never runs
// empty that rate is the path's; otherwise it is a lower bound. It is used by one
// goroutine at a time.
type Drain struct {
	min, max int
	limit    int
	since    time.Time // begin of the measurement; zero: none is under way
	bytes    int
	hungry   bool // the queue was empty meanwhile

	best, before int // bytes in drainTime: of this memory and of the one before
	count        int // measurements in this memory
}

// NewDrain returns a Drain whose limit begins at start and stays between min and
// max.
func NewDrain(start, min, max int) Drain {
	return Drain{min: min, max: max, limit: start, before: start}
}

// Limit is how many bytes the queue may hold.
func (d *Drain) Limit() int { return d.limit }

// Left notes that n bytes have left the queue, and whether that emptied it.
func (d *Drain) Left(n int, empty bool, now time.Time) {
	if d.since.IsZero() {
		// What leaves first had been waiting for an unknown time.
		if !empty {
			d.since, d.bytes, d.hungry = now, 0, false
		}
		return
	}
	d.bytes += n
	d.hungry = d.hungry || empty
	took := now.Sub(d.since)
	if took < drainEvery {
		return
	}
	d.best = max(d.best, int(float64(d.bytes)*float64(drainTime)/float64(took)))
	if !d.hungry {
		d.count += int(took / drainEvery)
	}
	limit := max(d.best, d.before)
	if d.count >= drainMemory {
		d.before, d.best, d.count = d.best, 0, 0
	}
	d.limit = min(max(limit, d.min), d.max)
	d.since, d.bytes, d.hungry = now, 0, false
	if empty {
		d.since = time.Time{}
	}
}
