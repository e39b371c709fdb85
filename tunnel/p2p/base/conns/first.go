package conns

import (
	"context"
	"time"

	"edgemesh/internal/causes"
)

// Tries are several ways to the same thing, the most promising first.
type Tries[T any] struct {
	N       int           // how many
	Stagger time.Duration // how long one has before the next is tried beside it
	Try     func(ctx context.Context, i int) (T, error)
	Drop    func(T)             // gets what a try brings that is no longer wanted
	Spawn   func(f func()) bool // runs f in a goroutine; false: the owner is closing
}

// First starts one try after the other, each Stagger after the one before or as soon as that has failed, and returns
// the first result. It cancels the others without waiting for them: one may be stuck on a dead connection. The error
// has all causes; without any try there is neither result nor error.
func (t Tries[T]) First(ctx context.Context) (first T, err error) {
	type outcome struct {
		value T
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome)
	run := func(i int) {
		value, err := t.Try(ctx, i)
		select {
		case outcomes <- outcome{value, err}:
		case <-ctx.Done():
			if err == nil {
				t.Drop(value)
			}
		}
	}
	var errs []error
	for started := 0; len(errs) < t.N; {
		if i := started; i < t.N {
			if !t.Spawn(func() { run(i) }) {
				return first, causes.Join(append(errs, context.Canceled)...)
			}
			started++
		}
		var next <-chan time.Time
		if started < t.N {
			next = time.After(t.Stagger)
		}
		select {
		case o := <-outcomes:
			if o.err == nil {
				return o.value, nil
			}
			errs = append(errs, o.err)
		case <-next:
		case <-ctx.Done():
			return first, causes.Join(append(errs, ctx.Err())...)
		}
	}
	return first, causes.Join(errs...)
}
