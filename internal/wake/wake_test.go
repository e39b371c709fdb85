package wake

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestOneRemembersASingleCall(t *testing.T) {
	o := NewOne()
	o.Wake()
	o.Wake() // does not block
	<-o
	select {
	case <-o:
		t.Error("two calls woke twice")
	default:
	}
}

func TestAllWakesEverybodyWhoWaits(t *testing.T) {
	var a All
	a.Broadcast() // nobody waits
	var done sync.WaitGroup
	for range 3 {
		next := a.Next()
		done.Go(func() { <-next })
	}
	a.Broadcast()
	done.Wait()
	select {
	case <-a.Next():
		t.Error("who comes later is woken by a call before")
	default:
	}
}

func TestUntil(t *testing.T) {
	var a All
	looks := 0
	err := a.Until(t.Context(), func() bool {
		looks++
		a.Broadcast() // between the look and the wait
		return looks == 3
	})
	if err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Until(ctx, func() bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}
