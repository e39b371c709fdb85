package ladder

import "time"

const (
	// steadyAfter is how long traffic must have lasted for the path to be in steady use. A request with its answer is shorter.
	steadyAfter = 2 * time.Second
	// Traffic is bulk after bulkSpans spans in a row, each at least as long as bulkSpan, with bulkBytes a second. A burst, as when
	// metrics are scraped, is shorter.
	bulkSpan  = time.Second
	bulkSpans = 2
)

// spell is traffic on a path without a pause of BusyFor.
type spell struct {
	began, last Time

	span  Time   // when the current span began
	count uint64 // bytes moved by then
	full  int    // spans in a row with bulk
}

// moved notes traffic, with the bytes moved so far.
func (s *spell) moved(now Time, bytes uint64) {
	if now-s.last >= BusyFor {
		*s = spell{began: now, span: now, count: bytes}
	}
	s.last = now
	span := now - s.span
	if span < bulkSpan {
		return
	}
	if s.full++; float64(bytes-s.count) < bulkBytes*span.Seconds() {
		s.full = 0
	}
	s.span, s.count = now, bytes
}

// bulk reports whether the spell carries more than a burst.
func (s *spell) bulk() bool { return s.full >= bulkSpans }

// steady reports whether there is traffic, and was for a while: however sparse, it is supervised.
func (s *spell) steady(now Time) bool { return now-s.last < BusyFor && s.last-s.began >= steadyAfter }
