package socket

import "time"

const (
	// askOften is how often it is asked how long packets wait in each direction while the peer sends, or once in what a line
	// takes for askSegments; askSeldom while it does not.
	askOften, askSeldom = 20 * time.Millisecond, 250 * time.Millisecond
	askSegments         = 4
	// Where nothing has been answered for unansweredTime, it is asked every askAgain: the peer may not know the question.
	unansweredTime, askAgain = 3 * time.Second, 15 * time.Second
	// freshTime is for how long an answer counts.
	freshTime = 500 * time.Millisecond
)

// Beside measures the way beside a connection, by packets that wait in the same queues.
type Beside interface {
	// Ask sends some that are answered. It must not block.
	Ask()
	// Waits is how much longer than the least packets take to the other end and back, the round trip of both least ones, and
	// when that was heard; the zero time: never.
	Waits() (ahead, behind, least time.Duration, at time.Time)
	// Sent is how many bytes such packets had that were ever sent, headers included. It falls when some of them are forgotten.
	Sent() uint64
}

// waits are how long packets wait in the two directions of a path, where the other end answers with its time. The sum is all
// that round trips tell.
type waits struct {
	ahead, behind time.Duration
	least         time.Duration // round trip, of those that waited least
	at            time.Time     // when that was heard
	asked         time.Time
	since         time.Time // the first question after that
	known         bool
}

func (w *waits) take(ahead, behind, least time.Duration, at time.Time) {
	w.ahead, w.behind, w.least, w.at = ahead, behind, least, at
}

// asks reports whether it is time to ask again.
func (w *waits) asks(every time.Duration, now time.Time) bool {
	if !w.since.After(w.at) {
		w.since = time.Time{} // it was answered
	}
	if !w.since.IsZero() && now.Sub(w.since) > unansweredTime {
		every = askAgain
	}
	if now.Sub(w.asked) < every {
		return false
	}
	w.asked = now
	if w.since.IsZero() {
		w.since = now
	}
	return true
}

// judge finds out whether this is known of a connection whose round trips are so much longer than the least. A router may have
// a queue for each flow: what is asked does not wait in the connection's. Both least delays together are no shorter than the
// least round trip, unless clocks drift. On far paths answers are old when they come.
func (w *waits) judge(longer, least time.Duration, now time.Time) {
	w.known = least < farTrip && !w.at.IsZero() && now.Sub(w.at) < freshTime &&
		w.ahead >= (longer-w.behind)/2-standingTime && w.least >= least-standingTime
}
