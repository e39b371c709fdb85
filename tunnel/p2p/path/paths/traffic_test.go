package paths

import (
	"testing"
	"time"
)

// A quiet connection wakes its owner with the first byte, once, also when that byte came
// between the look at it and the word that it is quiet.
func TestQuietConnectionWakesOnce(t *testing.T) {
	woken, start := 0, time.Now()
	c := traffic{opened: start, wake: func() { woken++ }}
	expect := func(what string, want int) {
		t.Helper()
		if woken != want {
			t.Errorf("%s: woken %d times, want %d", what, woken, want)
		}
	}
	c.sent(100)
	expect("a busy connection", 0)
	c.Sample()
	c.Quiet(true)
	expect("nothing since the sample", 0)
	c.sent(1)
	c.received(1)
	expect("the first byte", 1)
	c.Quiet(true)
	expect("data since the sample", 2)
	c.Sample()
	c.Quiet(false)
	c.sent(1)
	expect("busy again", 2)
	if c.Moved() != 103 || !c.HeardAt().After(start) {
		t.Errorf("%d bytes, heard at %v", c.Moved(), c.HeardAt())
	}
}
