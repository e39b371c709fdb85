package fair

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Time passes as fast as the processors that are there for those who want them.
func TestSpeed(t *testing.T) {
	wanting := 0
	c := newClock(2, func() int { return wanting })
	start := c.marks[0].at
	for _, step := range []struct {
		wanting int
		passed  time.Duration
		fair    time.Duration
	}{
		{-1, time.Second, time.Second},
		{0, time.Second, time.Second},
		{2, time.Second, time.Second},
		{4, time.Second, time.Second / 2},
		{8, 4 * time.Second, time.Second},
		{1000, 20 * time.Second, time.Second},
	} {
		wanting = step.wanting
		from := c.marks[len(c.marks)-1].at
		c.look(from.Add(step.passed))
		if got := c.Between(from, from.Add(step.passed)); got != step.fair {
			t.Errorf("%d threads want to run for %v: %v passed, want %v", step.wanting, step.passed, got, step.fair)
		}
		if got := c.Between(from, from.Add(step.passed/2)); got != step.fair/2 {
			t.Errorf("%d threads want to run: %v passed in half the time, want %v", step.wanting, got, step.fair/2)
		}
	}
	end := c.marks[len(c.marks)-1].at
	if got, want := c.Between(start, end.Add(time.Second)), 6500*time.Millisecond; got != want {
		t.Errorf("%v in all, and a second after the last look, want %v", got, want)
	}
}

// A clock is never ahead of the usual one, and a context ends by it.
func TestWithTimeout(t *testing.T) {
	const d = 50 * time.Millisecond
	start := time.Now()
	ctx, cancel := WithTimeout(t.Context(), d)
	defer cancel()
	if latest, ok := ctx.Deadline(); !ok || latest.Sub(start) < Slowest*d {
		t.Errorf("deadline %v after the start", latest.Sub(start))
	}
	<-ctx.Done()
	if took := time.Since(start); took < d {
		t.Errorf("ended after %v, want %v at least", took, d)
	}
	c := Start()
	time.Sleep(3 * every)
	c.Stop()
	if got := c.Elapsed(); got <= 0 || got > time.Since(start) {
		t.Errorf("%v passed", got)
	}
	if runnable() < 0 {
		t.Log("this machine does not say how many threads want to run")
	}
}
