package punch

import (
	"context"
	"time"

	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/dialer"
)

// dialPending is this side of a simultaneous open with e. It returns the dial's
// outcome, or ctx's error while the dial continues.
func (a *Attempts) dialPending(ctx context.Context, e endpoint.Endpoint, most time.Duration, client bool) error {
	d := a.dialOf(e, most, client)
	if d == nil {
		return dialer.ErrClosed
	}
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dialOf returns the dial to e that is under way, or begins one; nil means that
// the node is closed.
func (a *Attempts) dialOf(e endpoint.Endpoint, most time.Duration, client bool) *pending {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.pending[e]; d != nil {
		return d
	}
	d := &pending{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(dialer.Simultaneous(a.u.Ctx, client), most)
	d.cancel = cancel
	started := a.u.Spawn(func() {
		defer cancel()
		d.err = a.u.Dialer.Dial(ctx, e.Multiaddr(), a.p.ID())
		a.mu.Lock()
		delete(a.pending, e)
		a.mu.Unlock()
		close(d.done)
		if d.err == nil {
			a.endPending()
		}
	})
	if !started {
		cancel()
		return nil
	}
	if a.pending == nil {
		a.pending = make(map[endpoint.Endpoint]*pending)
	}
	a.pending[e] = d
	return d
}

// endPending cancels the pending dials: there is a connection.
func (a *Attempts) endPending() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.pending {
		d.cancel()
	}
}
