package socket

import "time"

const (
	// While the peer sends as well, acknowledgements wait in its queue, so long for example. It does where so many bytes per
	// second come, in segments of so many, and one for so many that arrive there: acknowledgements of flows inside are less.
	// The queue is shorter where fastTimes as many come: the peer's direction is the faster one. It is much longer where
	// slowTimes as many go.
	fastPeersQueue, peersQueue, slowPeersQueue = 10 * time.Millisecond, 25 * time.Millisecond, 150 * time.Millisecond
	peersRate, peersSize, peersPart            = 40e3, 700, 32
	fastTimes, slowTimes                       = 4, 2
	// hearEvery is how often that is looked at.
	hearEvery = 300 * time.Millisecond
	// quietTime is how long a peer is believed to send that does not: it may pause, and its queue takes time to drain.
	quietTime = hearEvery + hearEvery/2
)

// farEnd is what is known of the other end, which may send as well.
type farEnd struct {
	heard   traffic       // from it
	arrived traffic       // there
	at      time.Time     // of both
	sent    time.Time     // when it sent more than acknowledgements
	queue   time.Duration // how long its queue may be; 0: it does not send
}

// hear looks at what has come, if the last time is so long ago.
func (e *farEnd) hear(s sight, now time.Time, every time.Duration) {
	took := now.Sub(e.at)
	if took < every {
		return
	}
	bytes, segments := s.received.bytes-e.heard.bytes, s.received.segments-e.heard.segments
	arrived := s.arrived.since(e.arrived)
	e.heard, e.arrived, e.at = s.received, s.arrived, now
	if took > 4*hearEvery || float64(bytes) < peersRate*took.Seconds() ||
		bytes < peersSize*uint64(segments) || bytes < arrived/peersPart {
		if now.Sub(e.sent) > quietTime {
			e.queue = 0
		}
		return
	}
	e.sent = now
	switch {
	case bytes > fastTimes*arrived:
		e.queue = fastPeersQueue
	case arrived > slowTimes*bytes:
		e.queue = slowPeersQueue
	default:
		e.queue = peersQueue
	}
}
