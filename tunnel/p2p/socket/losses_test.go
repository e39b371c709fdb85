package socket

import (
	"math"
	"testing"
)

// A queue overflows where much more is lost than usual, and only for as long as sending less may help.
func TestLosses(t *testing.T) {
	const before = 1000
	l := losses{before: before}
	round := func(sent, arrived, resent uint32) (float64, uint64) {
		r := round{}
		return l.passed(&r, sight{sent: traffic{segments: sent}, delivered: arrived, resent: resent})
	}
	for i, c := range []struct {
		sent, arrived, resent uint32
		want                  float64
		least                 uint64
	}{
		{1000, 900, 100, 1, 0},    // nothing is known yet
		{1000, 970, 30, 1, 0},     // 3 %: usual
		{1000, 850, 150, 1, 0},    // not enough to tell
		{20, 5, 15, 1, 0},         // too few
		{100, 1000, 90, 1, 0},     // a pause, in which losses were repaired
		{1000, 500, 515, 0.48, 0}, // a queue half as fast
		{1000, 970, 30, 1, 0},     // it is found
		{1000, 600, 400, 0.6, 0},  // losses that are not a queue's
		{1000, 600, 400, 0.6, 0},
		{1000, 600, 400, 0.6, 0},
		{1000, 600, 400, 1, before},
		{1000, 600, 400, 1, 0},
	} {
		if got, least := round(c.sent, c.arrived, c.resent); math.Abs(got-c.want) > 0.01 || least != c.least {
			t.Errorf("round %d: %.2f passed, at least %d, want %.2f, %d", i, got, least, c.want, c.least)
		}
	}
}
