package socket

import "testing"

// TestFaulty: a fault counts for faultMemory segments, and so does the beginning.
func TestFaulty(t *testing.T) {
	var w way
	for _, step := range []struct {
		segments, count uint32
		want            bool
	}{
		{0, 0, true},
		{faultMemory - 1, 0, true},
		{faultMemory, 0, false},
		{faultMemory + 10, 1, true},
		{2*faultMemory + 9, 1, true},
		{2*faultMemory + 10, 1, false},
		{^uint32(0), 1, false},
		{^uint32(0), 2, true},
		{faultMemory - 2, 2, true}, // it has wrapped around
		{faultMemory - 1, 2, false},
	} {
		if got := w.faulty(step.segments, step.count); got != step.want {
			t.Errorf("%d segments, %d faults: %v, want %v", step.segments, step.count, got, step.want)
		}
	}
}
