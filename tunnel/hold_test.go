package tunnel

import (
	"testing"
	"time"
)

// TestNoOvertakingWhileWaiting: paths die one soon after the other. A carrier whose
// predecessor still waits for its own does not run out of patience before it.
func TestNoOvertakingWhileWaiting(t *testing.T) {
	o := order{changed: make(chan struct{})}
	hs := make([]hello, 4)
	for i := range hs[1:] {
		hs[i+1] = hello{nonce: 1, epoch: uint64(i + 1), after: uint64(i)}
		o.begin(hs[i+1])
	}
	second, third := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(second)
		o.wait(t.Context(), hs[2], time.Hour)
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		o.mu.Lock()
		waits := o.waiting[2]
		o.mu.Unlock()
		if waits {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second never waits")
		}
	}
	go func() {
		defer close(third)
		o.wait(t.Context(), hs[3], 100*time.Millisecond)
	}()
	select {
	case <-third:
		t.Error("the third overtakes the second")
	case <-time.After(200 * time.Millisecond):
	}
	o.end(hs[1])
	<-second
	<-third // the second is silent, and its patience counts now
}
