package tunnel

import (
	"context"
	"sync"
	"time"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/epoch"
)

// maxHolds times hold bounds how long a carrier waits for others that wait themselves.
const maxHolds = 8

// order lets the readers of the carriers of one lane of one sender wait for each other, as epoch.Receiver decides.
type order struct {
	mu       sync.Mutex // a leaf
	carriers epoch.Receiver
	changed  wake.All // a carrier has ended, or waits no longer
}

// begin notes a new carrier.
func (o *order) begin(c epoch.Carrier) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.carriers.Begin(c)
}

// end notes that a carrier has nothing more to say: MARK, EOF or error.
func (o *order) end(c epoch.Carrier) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.carriers.End(c)
	o.changed.Broadcast()
}

// wait returns once the carrier before c is over, or was not heard of for hold: it may be on a dead path. The clock starts
// with the first packet of the new carrier, that is when the sender left the old one.
func (o *order) wait(ctx context.Context, c epoch.Carrier, hold time.Duration) {
	if c.After == 0 {
		return
	}
	o.hold(c)
	defer o.release(c)
	ctx, cancel := context.WithTimeout(ctx, maxHolds*hold)
	defer cancel()
	var patience <-chan time.Time
	for {
		changed, wait, counts := o.look(c)
		if !wait {
			return
		}
		if counts && patience == nil {
			timer := time.NewTimer(hold)
			defer timer.Stop()
			patience = timer.C
		}
		silent := patience
		if !counts {
			silent = nil
		}
		select {
		case <-changed:
		case <-silent:
			return
		case <-ctx.Done():
			return
		}
	}
}

// live reports whether there are carriers that are not over.
func (o *order) live() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.carriers.Live()
}

// waitAll returns once no carrier is live, or after a time.
func (o *order) waitAll(ctx context.Context, hold time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, hold)
	defer cancel()
	_ = o.changed.Until(ctx, func() bool { return !o.live() })
}

func (o *order) hold(c epoch.Carrier) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.carriers.Hold(c)
}

func (o *order) release(c epoch.Carrier) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.carriers.Release(c)
	o.changed.Broadcast()
}

// look reports whether c has to wait, whether its patience counts, and what is closed when that may have changed.
func (o *order) look(c epoch.Carrier) (changed <-chan struct{}, wait, counts bool) {
	changed = o.changed.Next()
	o.mu.Lock()
	defer o.mu.Unlock()
	wait, counts = o.carriers.MustWait(c)
	return changed, wait, counts
}
