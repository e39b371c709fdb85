package relayservice

import (
	"slices"
	"testing"
)

// The collector is set once on the way up and once on the way down, and not by renewals.
func TestCollector(t *testing.T) {
	var set []int
	const usualPercent = 70
	c := counter{collect: func(percent int) int { set = append(set, percent); return usualPercent }}
	want := func(when string, list ...int) {
		t.Helper()
		if !slices.Equal(set, list) {
			t.Errorf("%s: set to %v, want %v", when, set, list)
		}
	}
	for range manyReservations - 1 {
		c.ReservationAllowed(false)
		c.ReservationAllowed(true)
	}
	want("with few")
	c.ReservationAllowed(false)
	c.ReservationAllowed(false)
	want("with many", tightPercent)
	c.ReservationClosed(10)
	c.ReservationAllowed(false)
	want("with a few less", tightPercent)
	c.ReservationClosed(manyReservations - fewReservations)
	c.ReservationClosed(fewReservations / 2)
	want("with few again", tightPercent, usualPercent)
	off := counter{}
	off.ReservationAllowed(false)
}
