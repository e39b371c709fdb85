package tunnel

import (
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/tunnel/epoch"
)

// TestNoOvertakingWhileWaiting: paths die one soon after the other. A carrier whose
// predecessor still waits for its own does not run out of patience before it.
func TestNoOvertakingWhileWaiting(t *testing.T) {
	var o order
	first := epoch.Carrier{Nonce: 1, Epoch: 1}
	second := epoch.Carrier{Nonce: 1, Epoch: 2, After: 1}
	third := epoch.Carrier{Nonce: 1, Epoch: 3, After: 2}
	for _, c := range []epoch.Carrier{first, second, third} {
		o.begin(c)
	}
	wait := func(c epoch.Carrier, hold time.Duration) (over chan struct{}) {
		over = make(chan struct{})
		go func() {
			defer close(over)
			o.wait(t.Context(), c, hold)
		}()
		return over
	}
	secondOver := wait(second, time.Hour)
	fair.Eventually(t, time.Minute, "the second waits", fair.True(func() bool {
		_, _, counts := o.look(third)
		return !counts
	}))
	thirdOver := wait(third, 100*time.Millisecond)
	select {
	case <-thirdOver:
		t.Error("the third overtakes the second")
	case <-time.After(200 * time.Millisecond):
	}
	o.end(first)
	<-secondOver
	<-thirdOver // the second is silent, and its patience counts now
}

// TestPatienceEnds: a carrier whose predecessor is silent is read after the time given.
func TestPatienceEnds(t *testing.T) {
	var o order
	o.begin(epoch.Carrier{Nonce: 1, Epoch: 1})
	second := epoch.Carrier{Nonce: 1, Epoch: 2, After: 1}
	o.begin(second)
	begun := time.Now()
	o.wait(t.Context(), second, 20*time.Millisecond)
	if d := time.Since(begun); d < 20*time.Millisecond {
		t.Errorf("it waited for %v", d)
	}
}
