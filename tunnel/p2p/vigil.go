package p2p

import "time"

// vigil judges whether a path is busy and whether it is dead.
type vigil struct {
	relayed            bool
	busy, heard, asked time.Time // last traffic, last sign of life, last request
	waiting            bool      // the last request is unanswered
	moved              uint64    // bytes, as last seen
}

// due says whether a request should be sent now, and takes it for sent.
func (v *vigil) due(now time.Time) bool {
	if now.Sub(v.busy) >= busyFor && now.Sub(v.asked) < probeIdle {
		return false
	}
	v.asked = now
	if !v.waiting {
		v.waiting = true
		if now.Sub(v.heard) > 2*probeTick { // silent because nobody had asked
			v.heard = now
		}
	}
	return true
}

// wake makes the path a busy one, as traffic does. It says whether a request
// should go out before the next tick.
func (v *vigil) wake(now time.Time) bool {
	v.busy = now
	return now.Sub(v.asked) >= probeTick
}

// answer notes an answer, to the last request or to one before.
func (v *vigil) answer(now time.Time, last bool) {
	v.heard = now
	v.waiting = !last
}

// look takes what the path has moved by now, when something last came in, and
// when the kernel last heard the next hop (zero: it cannot tell). It says how
// long the path has been silent, and whether that is too long.
func (v *vigil) look(now time.Time, moved uint64, heard, carrier time.Time) (silence time.Duration, dead bool) {
	if moved != v.moved {
		v.busy, v.moved = now, moved
	}
	if heard.After(v.heard) {
		v.heard = heard
	}
	limit := deadIdle
	if now.Sub(v.busy) < busyFor {
		switch {
		case now.Sub(carrier) > deadAfter:
			limit = deadAfter
		case v.relayed:
			limit = deadRelayed
		}
	}
	silence = now.Sub(v.heard)
	return silence, v.waiting && silence > limit
}
