package wake

import (
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
