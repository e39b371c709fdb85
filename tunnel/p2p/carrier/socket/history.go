package socket

import "time"

// historyLooks is how many moments are remembered.
const historyLooks = 32

// history is a count that never falls, as it was at up to 32 moments of the last time.
type history struct {
	began time.Time     // zero: there was no look yet
	at    time.Duration // of the last look, since then
	count uint64        // by then
	looks [historyLooks]look
	n     int // looks remembered ever
}

// look is how much there was at a moment.
type look struct {
	at    time.Duration
	count uint64
}

// since is how long ago the last look was; 0: there was none.
func (h *history) since(now time.Time) time.Duration {
	if h.began.IsZero() {
		return 0
	}
	return now.Sub(h.began) - h.at
}

// add takes in how much there is now. Looks reach back for a time at least.
func (h *history) add(count uint64, back time.Duration, now time.Time) {
	if h.began.IsZero() {
		h.began = now
	}
	h.at, h.count = now.Sub(h.began), max(h.count, count)
	if h.n == 0 || h.at-h.looks[(h.n-1)%historyLooks].at >= back/(historyLooks/2) {
		h.looks[h.n%historyLooks] = look{h.at, h.count}
		h.n++
	}
}

// over is how much there was in a time until now, per second.
func (h *history) over(span time.Duration) float64 {
	return float64(h.count-h.then(h.at-span)) / span.Seconds()
}

// then is how much there was at a moment, as far back as is remembered.
func (h *history) then(at time.Duration) uint64 {
	later := look{h.at, h.count}
	for i := h.n - 1; i >= max(0, h.n-historyLooks); i-- {
		l := h.looks[i%historyLooks]
		if l.at <= at {
			part := float64(at-l.at) / float64(max(later.at-l.at, 1))
			return l.count + uint64(float64(later.count-l.count)*min(part, 1))
		}
		later = l
	}
	return later.count
}
