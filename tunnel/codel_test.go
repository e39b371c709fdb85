package tunnel

import (
	"slices"
	"testing"
	"time"
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

// How long a flow's queue may stand: two round trips, or an eighth of the time that cubic needs for what it gives up.
func TestInterval(t *testing.T) {
	l := lane{id: DatagramLane, p: &peer{t: &Tunnel{lim: Limits{}.withDefaults()}}}
	for _, c := range []struct {
		rtt         time.Duration
		mbit        float64
		least, most time.Duration
	}{
		{50 * time.Millisecond, 0, 150 * time.Millisecond, 150 * time.Millisecond}, // unknown
		{10 * time.Millisecond, 1, 150 * time.Millisecond, 150 * time.Millisecond},
		{50 * time.Millisecond, 100, 800 * time.Millisecond, 900 * time.Millisecond},
		{50 * time.Millisecond, 10, 350 * time.Millisecond, 450 * time.Millisecond},
		{300 * time.Millisecond, 1, 600 * time.Millisecond, 600 * time.Millisecond},
		{50 * time.Millisecond, 10000, time.Second, time.Second},
	} {
		l.adaptTo(c.rtt, c.mbit*1e6/8)
		if got := time.Duration(l.q.target.Interval); got < c.least || got > c.most {
			t.Errorf("%v, %v Mbit/s: %v", c.rtt, c.mbit, got)
		}
	}
}
