package tunnel

import (
	"slices"
	"testing"
)

// A queue that stands for an interval loses one packet, then one after the other, sooner each time, until it is short.
func TestCodel(t *testing.T) {
	target := codelTarget{Delay: 5, Interval: 100}
	var f codelFlow
	var drops []int64
	for now := int64(1); now <= 400; now++ {
		if f.drop(target, now, 10, false) {
			drops = append(drops, now)
		}
	}
	if want := []int64{101, 201, 301}; !slices.Equal(drops, want) { // the root of two and three is one here
		t.Errorf("dropped at %v, want %v", drops, want)
	}
	if !f.drop(target, 401, 10, false) || f.drop(target, 450, 10, false) || !f.drop(target, 451, 10, false) {
		t.Error("the fourth drop does not halve the interval")
	}
	if f.drop(target, 600, 4, false) || f.drop(target, 601, 10, false) || f.drop(target, 700, 10, false) || !f.drop(target, 701, 10, false) {
		t.Error("a short queue does not begin a new spell")
	}
	for now := int64(800); now < 1200; now++ {
		if f.drop(target, now, 10, true) {
			t.Fatal("a flow with few loses one")
		}
	}
}
