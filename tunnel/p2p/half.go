package p2p

import (
	"context"

	"edgemesh/tunnel/p2p/dialer"
	"edgemesh/tunnel/p2p/endpoint"
)

// half is a TCP dial that outlives the attempt that began it; the next attempt
// joins it. A router that has seen both sides' SYNs remembers their sequence numbers
// for 2 minutes (Linux: SYN_SENT2) and does not translate the SYN of a new dial
// between the same ports, while the same SYN sent again still gets through.
type half struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done
}

// dialHalf is this side's half of a simultaneous open with e. It returns the
// dial's outcome, or ctx's error while the dial goes on.
func (r *remote) dialHalf(ctx context.Context, e endpoint.Endpoint, client bool) error {
	h := r.half(e, client)
	if h == nil {
		return ErrClosed
	}
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// half returns the dial to e that is under way, or begins one; nil means that
// the node is closed.
func (r *remote) half(e endpoint.Endpoint, client bool) *half {
	n := r.set.n
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if h := r.punch.halves[e]; h != nil {
		return h
	}
	h := &half{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(dialer.Simultaneous(n.ctx, client), dialer.PendingTimeout)
	h.cancel = cancel
	started := n.spawn(func() {
		defer cancel()
		h.err = n.dialer.Dial(ctx, e.Multiaddr(), r.id)
		r.set.mu.Lock()
		delete(r.punch.halves, e)
		r.set.mu.Unlock()
		close(h.done)
		if h.err == nil && r.settleOn(ctx, e.UDP) == nil {
			r.endHalves()
		}
	})
	if !started {
		cancel()
		return nil
	}
	if r.punch.halves == nil {
		r.punch.halves = make(map[endpoint.Endpoint]*half)
	}
	r.punch.halves[e] = h
	return h
}

// endHalves gives up the dials under way: there is a connection.
func (r *remote) endHalves() {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	for _, h := range r.punch.halves {
		h.cancel()
	}
}
