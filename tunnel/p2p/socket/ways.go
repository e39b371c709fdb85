package socket

import "time"

const (
	// askOften is how often it is asked how long packets wait in each direction while the peer sends, or once in what a line
	// takes for askSegments; askSeldom while it does not.
	askOften, askSeldom = 20 * time.Millisecond, 250 * time.Millisecond
	askSegments         = 4
	// answers that are older than so many questions are old.
	staleAsks = 4
)

// Beside measures the way beside a connection, by packets that wait in the same queues.
type Beside interface {
	// Ask sends one that is answered. It must not block.
	Ask()
	// Waits is how much longer than the least packets take to the other end and back, the round trip of both least ones, and
	// when that was heard; the zero time: never.
	Waits() (ahead, behind, least time.Duration, at time.Time)
}

// ways are the two directions of a path, where the other end answers with its time. The sum of their queues is all that round
// trips tell.
type ways struct {
	ahead, behind time.Duration // how long packets wait
	least         time.Duration // round trip, of those that waited least
	at            time.Time     // when that was heard
	asked         time.Time
	every         time.Duration
	known         bool
}

func (w *ways) take(ahead, behind, least time.Duration, at time.Time) {
	w.ahead, w.behind, w.least, w.at = ahead, behind, least, at
}

func (w *ways) asks(every time.Duration, now time.Time) bool {
	if now.Sub(w.asked) < every {
		return false
	}
	w.asked, w.every = now, every
	return true
}

// judge finds out whether this is known of a connection whose round trips are so much longer than the least. A router may have
// a queue for each flow: what is asked does not wait in the connection's.
func (w *ways) judge(longer time.Duration, now time.Time) {
	w.known = !w.at.IsZero() && now.Sub(w.at) < staleAsks*max(w.every, askOften) && w.ahead+w.behind >= longer/2-standingTime
}
