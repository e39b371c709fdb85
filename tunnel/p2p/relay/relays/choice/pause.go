package choice

import "time"

// Pause is the longest wait before the next attempt to use a relay that has been away for so long: one that was
// restarted is back in use within Backoff, one that is gone for good costs little. alone: no other relay holds a
// reservation.
func Pause(away time.Duration, alone bool) time.Duration {
	longest := time.Minute
	if alone {
		longest = 5 * Backoff
	}
	return min(max(Backoff, away/8), longest)
}

// Pace is the pauses between attempts to use one relay. The zero Pace has seen none end.
type Pace struct {
	away time.Time     // since when it has been away
	wait time.Duration // the last pause
}

// Ended notes that an attempt, or what it led to, has ended at now, and returns the pause before the next one, of which half
// may be left to chance. lasted: the relay was there for long enough for this to be a loss. alone is Pause's.
func (p *Pace) Ended(now time.Time, lasted, alone bool) time.Duration {
	if p.away.IsZero() || lasted {
		p.away, p.wait = now, Shortest
	} else {
		p.wait = min(2*p.wait, Pause(now.Sub(p.away), alone))
	}
	return p.wait
}

// manyMembers is from how many members of a relay on two connections of each are more than it should have to bear.
const manyMembers = 100

// TCPFirst reports whether the members of one of so many relays are so many that TCP, if it gets through, is enough for each
// of them as long as nobody asks for QUIC: a relay that was restarted has all of them at its door, and later pays for the
// keep-alive of all of them.
func TCPFirst(members, relays int) bool {
	reservations := min(MaxReservations, relays)
	if relays >= ManyRelays {
		reservations = manyReservations
	}
	return members*reservations/max(relays, 1) >= manyMembers
}
