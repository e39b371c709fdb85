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
	over    uint64          // the highest epoch that ended
	changed chan struct{}   // closed and replaced at every end
}

// begin notes a new carrier. Another nonce is another process of the peer: its
// epochs count from 1 again and wait for nothing of the old ones.
func (o *order) begin(h hello) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nonce != h.nonce || o.live == nil {
		o.nonce, o.over, o.live = h.nonce, 0, map[uint64]bool{}
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
	close(o.changed)
	o.changed = make(chan struct{})
}

// wait returns once the carrier before h's is over, or was not heard of for
// hold: it may be on a dead path. The clock starts with the first packet of the
// new carrier, that is when the sender left the old one.
func (o *order) wait(ctx context.Context, h hello, hold time.Duration) {
	if h.after == 0 {
		return
	}
	var timer *time.Timer
	for {
		o.mu.Lock()
		ready := o.nonce != h.nonce || !o.live[h.after] && o.over >= h.after
		changed := o.changed
		o.mu.Unlock()
		if ready {
			return
		}
		if timer == nil {
			timer = time.NewTimer(hold)
			defer timer.Stop()
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
