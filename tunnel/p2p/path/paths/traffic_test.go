package paths

import (
	"testing"
	"testing/synctest"
	"time"
)

// Forwarded packets speak for their circuit for a while, from when it was heard itself.
func TestForwardedSpeaksForACircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Conn{line: line{traffic: traffic{opened: time.Now()}}}
		d := forwarded{beside{c}}
		c.hear()
		for _, step := range []struct {
			after time.Duration
			heard bool // at that time
		}{{besideFor - time.Second, true}, {time.Second - 1, true}, {time.Second, false}} {
			time.Sleep(step.after)
			d.Sent(100)
			d.Received(100)
			if was := c.HeardAt().Equal(time.Now()); was != step.heard {
				t.Errorf("heard %v ago, %v after the circuit itself", time.Since(c.HeardAt()), time.Duration(int64(time.Since(c.opened))))
			}
		}
		c.hear()
		time.Sleep(time.Second)
		if d.Heard(); !c.HeardAt().Equal(time.Now()) {
			t.Error("the circuit was heard again, and packets do not speak for it")
		}
	})
}

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
