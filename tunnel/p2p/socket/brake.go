package socket

import "time"

const (
	// crowdTime and half of the least round trip is the least queue on the path that is drained: BBR's own search for more
	// rate makes a quarter.
	crowdTime = 20 * time.Millisecond
	// The path's rate is measured for measureTrips round trips, at least measureTime, while the queue stands. Data that did
	// not flow for that long show nothing.
	measureTime  = 100 * time.Millisecond
	measureTrips = 4
	// measureSegments is how many segments show a queue: the kernel's round trip is a mean of the last dozen, and that of an
	// idle connection, with an acknowledgement delayed for each segment, is as long as one behind a queue. sureSegments show
	// that a path which was faster than a thin one is thin now: answers that come late for a moment do not.
	measureSegments, sureSegments = 64, 256
	// thinRate is the highest rate that is held, in bytes per second. On faster paths the window of a flow inside does not fit
	// into a router's queue for long, so data wait here by themselves; held there, a rate that varied cost a third.
	thinRate = 10_000_000 / 8
	// A queue is drained for as long as BBR remembers a rate, 10 round trips and a little more, within these bounds.
	drainTrips         = 12
	drainMin, drainMax = 2 * time.Second, 4 * time.Second
	// others is the pause after a queue that did not drain, which is that of others; it doubles up to othersMax while they
	// follow each other.
	others, othersMax = 10 * time.Second, time.Minute
)

// brake drains a queue that stands on the path although BBR has found its rate. BBR takes the highest rate of ten round
// trips for the path's, but a lower one counts only while data wait in the socket, and a flow inside keeps no data
// waiting there while its window fits into the queue on the path. So one sample that is too high, as after a pause of the
// link, lasts: 3.2 Mbit/s for a line of 2, and twice its window in front of every ping. So does what a direction knew
// before, in which only acknowledgements went. While a queue stands the path is busy, and what the peer has received is
// its rate. Held a little below that, the queue drains, data wait here, where a flow's delay is controlled, and BBR learns
// the rate.
type brake struct {
	window
	looked  time.Time
	on      time.Time // since when the rate is held; zero: it is not
	drained bool      // meanwhile
	first   uint64    // of rate, as first measured
	rate    uint64    // of the path, bytes per second
	again   time.Time // not before this
	pause   time.Duration
}

// window is a measurement of the path's rate.
type window struct {
	since     time.Time // zero: there is none
	delivered uint32    // of sight, at since
}

// begin begins a measurement.
func (w *window) begin(s sight, now time.Time) { *w = window{now, s.delivered} }

// measure ends it and begins the next, if it has lasted long enough and so many segments have arrived.
func (w *window) measure(s sight, fewest uint32, least time.Duration, now time.Time) (rate uint64, ok bool) {
	took, segments := now.Sub(w.since), s.delivered-w.delivered
	if took < max(measureTime, measureTrips*least) || segments < fewest {
		return 0, false
	}
	w.begin(s, now)
	return uint64(float64(segments) * float64(s.segment) / took.Seconds()), true
}

// decide returns the limit to set, 0: as it is. least is the path's shortest round trip, slack how much longer one is
// without a queue, known the rate that it is known for, in bytes per second. On paths below swiftRTT it is processors that
// packets wait for.
func (b *brake) decide(s sight, least, slack time.Duration, known uint64, now time.Time) uint64 {
	if now.Sub(b.looked) > max(measureTime, 2*least) {
		b.begin(s, now)
	}
	b.looked = now
	if !b.on.IsZero() {
		return b.hold(s, s.rtt-least < slack, least, now)
	}
	if least < swiftRTT || s.rtt-least < max(crowdTime, least/2) || now.Before(b.again) {
		b.since = time.Time{}
		return 0
	}
	if b.since.IsZero() {
		b.begin(s, now)
	}
	fewest := uint32(measureSegments)
	if known > thinRate/2*3 {
		fewest = sureSegments
	}
	rate, ok := b.measure(s, fewest, least, now)
	if !ok || rate > thinRate {
		return 0
	}
	b.on, b.drained, b.rate, b.first = now, false, rate, rate
	return rate / 5 * 4
}

// hold returns the limit to set while the rate is held. The first measurement may be too high: a link that was held up
// delivers all that is due together. So it is repeated until the queue has drained, but others in the queue are not left
// all of the path.
func (b *brake) hold(s sight, empty bool, least time.Duration, now time.Time) uint64 {
	b.drained = b.drained || empty
	over := now.Sub(b.on) >= min(max(drainTrips*least, drainMin), drainMax)
	if over || b.drained && s.rate <= b.rate+b.rate/10 {
		switch {
		case b.drained:
			b.pause = 0
		case now.Sub(b.again) > 4*b.pause:
			b.pause = others
		default:
			b.pause = min(2*b.pause, othersMax)
		}
		b.again = now.Add(b.pause)
		b.on, b.since = time.Time{}, time.Time{}
		return unpaced
	}
	rate, ok := b.measure(s, 1, least, now)
	switch {
	case !ok:
		return 0
	case b.drained: // BBR has not learnt it yet
		return b.rate / 20 * 19
	}
	b.rate = max(min(b.rate, rate), b.first/5*3)
	return b.rate / 5 * 4
}
