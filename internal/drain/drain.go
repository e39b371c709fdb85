// Package drain measures how long a queue may be in front of a path whose rate is unknown.
package drain

import "time"

const (
	// drainTime is how long a full queue should take to drain.
	drainTime = 5 * time.Millisecond
	// A rate is measured for drainEvery; the highest of the last one to two drainMemory counts, so that neither a
	// retransmission, for which everything waits, nor a busy machine looks like a slow path. Where less left than half of
	// what there is room for, little was said; a pause of drainPause says nothing.
	drainEvery  = 10 * time.Millisecond
	drainMemory = 50 // times drainEvery
	drainPause  = 100 * time.Millisecond
)

// A rate counts as the path's when something was being written for drainBusy of the time, in eighths.
const drainBusy = 7

// rateMemory is over how many measurements Rate is smoothed.
const rateMemory = 16

// Drain finds out how long a queue may be, in bytes, so that it drains in about 5 ms: from the rate at which bytes leave
// it. While writing takes nearly all of the time that rate is the path's; otherwise it is a lower bound, and all that is
// needed: room for more would be filled first when the path becomes slower. It is used by one goroutine at a time.
type Drain struct {
	min, max int
	limit    int
	since    time.Time // begin of the measurement; zero: none runs
	bytes    int
	busy     time.Duration // of the measurement, spent writing
	rate     float64       // bytes per second of the path, as last measured and smoothed; 0: never

	best, before int // bytes in drainTime: of this memory and of the one before
	count        int // measurements in this memory
}

// New returns a Drain whose limit begins at start and stays between min and
// max.
func New(start, min, max int) Drain {
	return Drain{min: min, max: max, limit: start, before: start}
}

// Rate is the path's in bytes per second, while writing last took nearly all of the time; 0 before that.
func (d *Drain) Rate() float64 { return d.rate }

// Forget has the rate measured again: the path is another one.
func (d *Drain) Forget() { d.rate = 0 }

// Limit is how many bytes the queue may hold.
func (d *Drain) Limit() int { return d.limit }

// Left notes that n bytes have left the queue by now, in a Write that has taken so long.
func (d *Drain) Left(n int, took time.Duration, now time.Time) {
	if d.since.IsZero() {
		d.since = now.Add(-took)
	}
	d.bytes += n
	d.busy += took
	passed := now.Sub(d.since)
	if passed < drainEvery {
		return
	}
	last := int(float64(d.bytes) * float64(drainTime) / float64(passed))
	d.best = max(d.best, last)
	full := d.busy*8 >= passed*drainBusy
	if full {
		if rate := float64(d.bytes) / passed.Seconds(); d.rate == 0 {
			d.rate = rate
		} else {
			d.rate += (rate - d.rate) / rateMemory
		}
	}
	if full || 2*d.bytes < d.limit && passed-d.busy < drainPause {
		d.count += int(passed / drainEvery)
	}
	if d.count >= 2*drainMemory { // one Write took longer than all that is remembered
		d.best, d.before = last, last
	}
	d.limit = min(max(d.best, d.before, d.min), d.max)
	if d.count >= drainMemory {
		d.before, d.best, d.count = d.best, 0, 0
	}
	d.since, d.bytes, d.busy = now, 0, 0
}
