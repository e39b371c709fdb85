package fair

import (
	"context"
	"errors"
	"time"
)

// Eventually tries again after a twentieth of the time that has passed, within these bounds.
const (
	shortest = 5 * time.Millisecond
	longest  = 100 * time.Millisecond
)

// WithTimeout returns a context that ends when d of fair time has passed. Its deadline
// is the wall-clock bound.
func (p *Product) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(parent, Slowest*d)
	c := p.Start()
	go func() {
		defer c.Stop()
		defer cancel()
		for {
			left := d - c.past(d)
			if left <= 0 {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(left):
			}
		}
	}()
	return ctx, cancel
}

// WithTimeout is that of Self.
func WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return self.WithTimeout(parent, d)
}

// TB is what Eventually needs of a test.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Eventually tries f again and again until it returns nil. It ends the test with f's last
// error when limit has passed; a success after that, of a slow f, comes too late. It
// returns how long it took. Both are fair times.
func (p *Product) Eventually(t TB, limit time.Duration, what string, f func() error) time.Duration {
	t.Helper()
	start := time.Now()
	clock := p.Start()
	defer clock.Stop()
	for {
		err := f()
		took := clock.past(limit)
		switch wall := time.Since(start).Round(time.Millisecond); {
		case took <= limit && err == nil:
			return took
		case took > limit && err == nil:
			t.Fatalf("%s: only after %v (%v by the wall clock), not within %v", what, took.Round(time.Millisecond), wall, limit)
		case took > limit:
			t.Fatalf("%s: not within %v (%v by the wall clock): %v", what, limit, wall, err)
		}
		time.Sleep(min(max(took/20, shortest), longest))
	}
}

// Eventually is that of Self.
func Eventually(t TB, limit time.Duration, what string, f func() error) time.Duration {
	t.Helper()
	return self.Eventually(t, limit, what, f)
}

// True makes an error of a condition that does not hold, for Eventually.
func True(cond func() bool) func() error {
	return func() error {
		if !cond() {
			return errors.New("it is not so")
		}
		return nil
	}
}
