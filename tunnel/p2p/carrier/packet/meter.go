package packet

import (
	"sync"
	"time"
)

const (
	// meterWindow: the least delay is remembered for one to two of these, since clocks drift.
	meterWindow = 30 * time.Second
	// mostTrip is the longest round trip that is believed.
	mostTrip = 10 * time.Second
	// asNew answers came within this time of each other.
	asNew = 500 * time.Millisecond
)

// meter knows how long packets wait in each direction of a path, from those that the peer answers with the time at which they
// arrived. The two clocks need not agree: a delay counts as how much longer it is than the least one.
type meter struct {
	mu     sync.Mutex // a leaf
	window time.Time  // its beginning
	ahead  direction
	behind direction
	at     time.Time // of the last answer; zero: none
}

// direction is one of the two. Delays are differences of two clocks, in microseconds; they wrap around.
type direction struct {
	least, before uint32 // of this window and the one before
	last          [2]uint32
}

// answered takes in an answer that came at here, and now, to what was sent at sent; it had arrived at there by the peer's
// clock.
func (m *meter) answered(sent, there, here uint32, now time.Time) {
	if micros(here-sent) < 0 || micros(here-sent) > mostTrip {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	ahead, behind := there-sent, here-there
	switch {
	case m.at.IsZero() || now.Sub(m.window) > 2*meterWindow:
		m.ahead, m.behind, m.window = newDirection(ahead), newDirection(behind), now
	case now.Sub(m.window) > meterWindow:
		m.ahead.before, m.behind.before, m.window = m.ahead.least, m.behind.least, now
		m.ahead.least, m.behind.least = ahead, behind
	}
	m.at = now
	m.ahead.add(ahead)
	m.behind.add(behind)
}

func (m *meter) waits() (ahead, behind, least time.Duration, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ahead.wait(), m.behind.wait(), micros(m.ahead.shortest() + m.behind.shortest()), m.at
}

func micros(d uint32) time.Duration { return time.Duration(int32(d)) * time.Microsecond }

func newDirection(delay uint32) direction { return direction{delay, delay, [2]uint32{delay, delay}} }

func (w *direction) add(delay uint32) {
	w.last = [2]uint32{w.last[1], delay}
	w.least = earlier(w.least, delay)
}

func (w *direction) shortest() uint32 { return earlier(w.least, w.before) }

// wait is the shorter one of the last two: one that is late may have waited for a processor.
func (w *direction) wait() time.Duration {
	return micros(earlier(w.last[0], w.last[1]) - w.shortest())
}

// earlier is the lesser of two differences of clocks that wrap around.
func earlier(a, b uint32) uint32 {
	if int32(a-b) < 0 {
		return a
	}
	return b
}
