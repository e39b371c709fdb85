package timeline

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A contact has each step once, in the order of time; both ends may begin it, one that begins later replaces it, and what comes long
// after it is no part of it.
func TestContact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Note("p", Up) // of no contact
		began := time.Now()
		b.Begin("p", Wanted)
		time.Sleep(10 * time.Millisecond)
		b.Begin("p", Arrived)
		time.Sleep(10 * time.Millisecond)
		b.Note("p", Up)
		b.Note("p", Up)
		time.Sleep(time.Minute)
		b.Note("p", Read)
		want := []Event{{Wanted, 0}, {Arrived, 10 * time.Millisecond}, {Up, 20 * time.Millisecond}}
		if at, got := b.Of("p"); !at.Equal(began) || !slices.Equal(got, want) {
			t.Errorf("%v, %v; want %v", at, got, want)
		}
		b.Begin("p", Arrived)
		if at, got := b.Of("p"); !at.Equal(time.Now()) || !slices.Equal(got, []Event{{Arrived, 0}}) {
			t.Errorf("the next contact is %v, %v", at, got)
		}
		var none *Book
		none.Begin("p", Wanted)
		none.Note("p", Up)
		if at, got := none.Of("p"); !at.IsZero() || got != nil {
			t.Error("a Book that is nil keeps something")
		}
	})
}
