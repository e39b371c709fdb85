package tunnel

import "time"

// Limits are bounds; a zero field takes its default.
type Limits struct {
	// QueueBytes bounds the memory of the packets queued in one lane of one peer: 6 MiB, more than the usual window of
	// one TCP flow, 4 MiB. DESIGN.md has the most that a peer costs.
	QueueBytes int
	// TotalBytes bounds the same over all peers, 64 MiB at most. Above it each lane keeps at most 128 KiB.
	TotalBytes int
	// DelayTarget is the longest standing delay that a flow may have in a queue, 100 ms; on short paths 0.6 round trips,
	// at least 5 ms. DelayInterval is how long it must stand before a packet is marked or dropped, 150 ms. On a longer path
	// it is two round trips, on a fast one that sealed packets use an eighth of what cubic needs to recover, at most 1 s: a line that
	// becomes slower for a second is no reason to send less for many.
	DelayTarget, DelayInterval time.Duration
	// WaitTime is how long a packet waits at most, for a path to its peer or in its queue, 3 s. A TCP segment that
	// is sent again, or of a flow that has little there, waits in its queue for twice as long at most.
	WaitTime time.Duration
	// IdleTimeout is after how long without traffic a peer is idle and its carriers end, 90 s: a pod that is
	// scraped every minute keeps it.
	IdleTimeout time.Duration
	// QuietTime is how long after its last packet a peer's lanes still move to better paths immediately, 30 s; later
	// they wait for the next packet.
	QuietTime time.Duration
	// HoldTime is how long frames of a new carrier wait for the end of the one before it, 300 ms.
	HoldTime time.Duration
	// SwitchTime is how long a lane waits for a Write on a carrier that it leaves, 300 ms; then it resets the carrier.
	SwitchTime time.Duration
	// OpenTimeout bounds one Underlay.Open, 10 s.
	OpenTimeout time.Duration
	// RetryMin and RetryMax bound the pause between two attempts to open a carrier, 50 ms and 2 s; it doubles.
	RetryMin, RetryMax time.Duration
	// MalformedPerMinute frames that are malformed, counted over all streams of a peer, are tolerated, 16; one more
	// within the minute puts the peer into quarantine.
	MalformedPerMinute int
	// QuarantineMin and QuarantineMax bound a quarantine, 10 s and 5 min; it doubles with each one that follows soon.
	QuarantineMin, QuarantineMax time.Duration
	// DialsPerPod bounds the lanes that wait for a connection because of one pod's packets, 64, and Dials those of all
	// pods, 256; further packets for peers that are not connected are dropped.
	DialsPerPod, Dials int
	// StreamsPerLane bounds the live incoming streams of one lane of one peer, 8; the oldest is reset.
	StreamsPerLane int
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.QueueBytes, 6<<20)
	orDefault(&l.TotalBytes, 64<<20)
	l.TotalBytes = min(l.TotalBytes, 64<<20)
	orDefault(&l.DelayTarget, 100*time.Millisecond)
	orDefault(&l.DelayInterval, 150*time.Millisecond)
	orDefault(&l.WaitTime, 3*time.Second)
	orDefault(&l.IdleTimeout, 90*time.Second)
	orDefault(&l.QuietTime, 30*time.Second)
	orDefault(&l.HoldTime, 300*time.Millisecond)
	orDefault(&l.SwitchTime, 300*time.Millisecond)
	orDefault(&l.OpenTimeout, 10*time.Second)
	orDefault(&l.RetryMin, 50*time.Millisecond)
	orDefault(&l.RetryMax, 2*time.Second)
	orDefault(&l.MalformedPerMinute, 16)
	orDefault(&l.QuarantineMin, 10*time.Second)
	orDefault(&l.QuarantineMax, 5*time.Minute)
	orDefault(&l.DialsPerPod, 64)
	orDefault(&l.Dials, 256)
	orDefault(&l.StreamsPerLane, 8)
	return l
}

// orDefault sets what is not set.
func orDefault[T int | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
