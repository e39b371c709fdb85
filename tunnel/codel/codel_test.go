package codel

import (
	"slices"
	"testing"
)

// A queue that stands for an interval loses one packet, then one after the other, sooner each time, until it is short.
func TestDrop(t *testing.T) {
	target := Target{Delay: 5, Interval: 100}
	var f Flow
	var drops []int64
	for now := int64(1); now <= 400; now++ {
		if f.Drop(target, now, 10, false) {
			drops = append(drops, now)
		}
	}
	if want := []int64{101, 201, 301}; !slices.Equal(drops, want) { // the root of two and three is one here
		t.Errorf("dropped at %v, want %v", drops, want)
	}
	if !f.Drop(target, 401, 10, false) || f.Drop(target, 450, 10, false) || !f.Drop(target, 451, 10, false) {
		t.Error("the fourth drop does not halve the interval")
	}
	if f.Drop(target, 600, 4, false) || f.Drop(target, 601, 10, false) || f.Drop(target, 700, 10, false) || !f.Drop(target, 701, 10, false) {
		t.Error("a short queue does not begin a new spell")
	}
	for now := int64(800); now < 1200; now++ {
		if f.Drop(target, now, 10, true) {
			t.Fatal("a flow with few loses one")
		}
	}
}
