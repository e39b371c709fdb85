package conns

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func goes(f func()) bool { go f(); return true }

func TestFirst(t *testing.T) {
	ended := make(chan int, 3)
	start := time.Now()
	got, err := Tries[int]{N: 3, Stagger: 10 * time.Millisecond, Spawn: goes, Try: func(ctx context.Context, i int, _ func()) (int, error) {
		defer func() { ended <- i }()
		if i == 2 {
			return i, nil
		}
		<-ctx.Done()
		return 0, ctx.Err()
	}}.First(t.Context())
	if err != nil || got != 2 {
		t.Errorf("%d, %v: want the third to be first", got, err)
	}
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("the third began after %v", took)
	}
	for range 3 { // the others are cancelled
		<-ended
	}
}

func TestFirstDropsWhatComesTooLate(t *testing.T) {
	dropped := make(chan int)
	got, err := Tries[int]{N: 2, Spawn: goes, Drop: func(i int) { dropped <- i }, Try: func(ctx context.Context, i int, _ func()) (int, error) {
		if i == 0 {
			<-ctx.Done()
		}
		return i, nil
	}}.First(t.Context())
	if err != nil || got != 1 {
		t.Errorf("%d, %v", got, err)
	}
	if i := <-dropped; i != 0 {
		t.Errorf("dropped %d", i)
	}
}

// A try that takes too long counts as failed once, and its result is used if it comes while others are tried.
func TestFirstIsImpatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const preparation = 500 * time.Millisecond // patience begins behind it
		start := time.Now()
		late := func(after ...time.Duration) (int, error) {
			return Tries[int]{N: len(after), Stagger: time.Second, Patience: 3 * time.Second, Spawn: goes, Drop: func(int) {},
				Late: func(i int) error { return fmt.Errorf("%d is late", i) },
				Try: func(_ context.Context, i int, begun func()) (int, error) {
					time.Sleep(preparation)
					begun()
					time.Sleep(after[i])
					if after[i] > time.Minute {
						return 0, errors.New("timeout")
					}
					return i, nil
				}}.First(t.Context())
		}
		if got, err := late(3500*time.Millisecond, time.Hour); got != 0 || err != nil || time.Since(start) != preparation+3500*time.Millisecond {
			t.Errorf("%d, %v after %v", got, err, time.Since(start))
		}
		start = time.Now()
		if _, err := late(time.Hour, time.Hour); err == nil || err.Error() != "0 is late; 1 is late" || time.Since(start) != preparation+4*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		time.Sleep(2 * time.Hour) // until all have ended
	})
}

func TestFirstFails(t *testing.T) {
	fail := func(_ context.Context, i int, _ func()) (int, error) { return 0, errors.New(string(rune('a' + i))) }
	if _, err := (Tries[int]{N: 3, Stagger: time.Hour, Spawn: goes, Try: fail}).First(t.Context()); err == nil || err.Error() != "a; b; c" {
		t.Errorf("%v, want all causes, without waiting", err)
	}
	if _, err := (Tries[int]{Stagger: time.Hour}).First(t.Context()); err != nil {
		t.Errorf("nothing to try: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	hang := func(ctx context.Context, _ int, _ func()) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
	if _, err := (Tries[int]{N: 1, Spawn: goes, Try: hang}).First(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	closing := func(func()) bool { return false }
	if _, err := (Tries[int]{N: 1, Spawn: closing}).First(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
