package tunnel

import (
	"context"
	"sync"
	"time"
)

// order keeps the carriers of one lane of one sender in order: frames of a new
// epoch wait until the epoch before it is over. It knows nothing of frames.
type order struct {
	mu      sync.Mutex
	nonce   uint64          // the sender's process
	live    map[uint64]bool // epochs of that process being received
	waiting map[uint64]bool // epochs whose frames are held
	over    uint64          // the highest epoch that ended
	changed chan struct{}   // closed and replaced at every end, and when waiting ends
}

// begin notes a new carrier. Another nonce is another process of the peer: its
// epochs count from 1 again and wait for nothing of the old ones.
func (o *order) begin(h hello) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nonce != h.nonce || o.live == nil {
		o.nonce, o.over, o.live, o.waiting = h.nonce, 0, map[uint64]bool{}, map[uint64]bool{}
	}
	o.live[h.epoch] = true
}

// end notes that a carrier has nothing more to say: MARK, EOF or error.
func (o *order) end(h hello) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nonce != h.nonce || !o.live[h.epoch] {
		return
	}
	delete(o.live, h.epoch)
	o.over = max(o.over, h.epoch)
	o.signal()
}

// signal wakes those who wait; o.mu is held.
func (o *order) signal() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// maxHolds bounds how long a carrier waits for others that wait, in times of hold.
const maxHolds = 8

// wait returns once the carrier before h's is over, or was not heard of for
// hold: it may be on a dead path. The clock starts with the first packet of the
// new carrier, that is when the sender left the old one; where the old one waits
// itself, when it has done so, lest one overtakes it that came a moment later.
func (o *order) wait(ctx context.Context, h hello, hold time.Duration) {
	if h.after == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nonce != h.nonce {
		return
	}
	o.waiting[h.epoch] = true
	defer func() {
		if o.nonce == h.nonce {
			delete(o.waiting, h.epoch)
		}
		o.signal()
	}()
	enough := time.NewTimer(maxHolds * hold)
	defer enough.Stop()
	var timer *time.Timer
	for o.nonce == h.nonce && (o.live[h.after] || o.over < h.after) {
		var silent <-chan time.Time
		if !o.waiting[h.after] {
			if timer == nil {
				timer = time.NewTimer(hold)
				defer timer.Stop()
			}
			silent = timer.C
		}
		changed := o.changed
		o.mu.Unlock()
		timeUp := false
		select {
		case <-changed:
		case <-silent:
			timeUp = true
		case <-enough.C:
			timeUp = true
		case <-ctx.Done():
			timeUp = true
		}
		o.mu.Lock()
		if timeUp {
			return
		}
	}
}
