package conns

import (
	"context"
	"time"

	"edgemesh/internal/wording"
)

// Tries are several attempts at the same result, the most promising first.
type Tries[T any] struct {
	N       int           // how many
	Stagger time.Duration // how long one has before the next is tried beside it
	// Patience is how long one may take, from when it calls begun on, until Late says what has become of it: an error, or nil
	// where it need not be waited for. A result that comes later is used all the same. 0: any time.
	Patience time.Duration
	Late     func(i int) error
	Try      func(ctx context.Context, i int, begun func()) (T, error)
	Drop     func(T)             // gets what a try brings that is no longer wanted
	Spawn    func(f func()) bool // runs f in a goroutine; false: the owner is closing
}

// First starts one try after the other, each Stagger after the one before or as soon as that has failed, and returns
// the first result. It cancels the others without waiting for them: one may be stuck on a dead connection. The error
// has all causes; without any try there is neither result nor error.
func (t Tries[T]) First(ctx context.Context) (first T, err error) {
	type outcome struct {
		i     int
		value T
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome)
	report := func(o outcome) (wanted bool) {
		select {
		case outcomes <- o:
			return true
		case <-ctx.Done():
			return false
		}
	}
	run := func(i int) {
		value, err := t.Try(ctx, i, func() {
			if t.Patience > 0 {
				late := time.AfterFunc(t.Patience, func() { report(outcome{i: i, err: t.Late(i)}) })
				context.AfterFunc(ctx, func() { late.Stop() })
			}
		})
		if !report(outcome{i, value, err}) && err == nil {
			t.Drop(value)
		}
	}
	var errs []error
	failed := make([]bool, t.N)
	for started := 0; len(errs) < t.N; {
		if i := started; i < t.N {
			if !t.Spawn(func() { run(i) }) {
				return first, wording.Join(append(errs, context.Canceled)...)
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
			if !failed[o.i] {
				failed[o.i] = true
				errs = append(errs, o.err)
			}
		case <-next:
		case <-ctx.Done():
			return first, wording.Join(append(errs, ctx.Err())...)
		}
	}
	return first, wording.Join(errs...)
}
