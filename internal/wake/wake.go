// Package wake makes sleeping goroutines look again. Waking never blocks and carries no data: the goroutine that
// wakes reads the state that has changed. Where that is one value, Latest passes it on.
package wake

import (
	"context"
	"sync"
	"time"
)

// One wakes one goroutine. It remembers a single call of Wake until that goroutine receives from the channel, so
// none is lost while it is busy, and several count as one.
type One chan struct{}

// NewOne returns one that is not woken yet.
func NewOne() One { return make(One, 1) }

// Wake wakes the goroutine that receives, now or when it next does.
func (o One) Wake() {
	select {
	case o <- struct{}{}:
	default:
	}
}

// All wakes every goroutine that waits at that moment. The zero value is ready for use.
type All struct {
	mu sync.Mutex // a leaf: nothing else is locked while it is held
	c  chan struct{}
}

// Next returns a channel that the next call of Broadcast closes. Take it before looking at the state: a change between
// the look and the wait is then not missed.
func (a *All) Next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c == nil {
		a.c = make(chan struct{})
	}
	return a.c
}

// Broadcast wakes every goroutine that waits.
func (a *All) Broadcast() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c != nil {
		close(a.c)
		a.c = nil
	}
}

// Until waits until done returns true; it calls done first, and again after every Broadcast. It returns ctx's error if
// ctx ends before that.
func (a *All) Until(ctx context.Context, done func() bool) error {
	for {
		next := a.Next()
		if done() {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Latest puts v into c, which holds one value, in place of a value not received yet.
func Latest[T any](c chan T, v T) {
	for {
		select {
		case c <- v:
			return
		default:
		}
		select {
		case <-c:
		default:
		}
	}
}

// Sleep waits for d. It returns false when ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
