package tunnel

import "time"

// Limits are bounds; a zero field takes its default.
//
// Fields: each bound stands for itself.
type Limits struct {
	// QueueBytes bounds the memory of the packets queued in one lane of one peer,
	// 6 MiB: more than the usual 4 MiB window of one TCP flow. The worst a peer costs is in DESIGN.md.
	QueueBytes int
	// TotalBytes bounds the same over all peers, 64 MiB; above it each lane keeps
	// no more than 128 KiB.
	TotalBytes int
	// DelayTarget is the standing delay a flow may have in a queue at most, 30 ms; on
	// short paths it is 0.6 round trips, down to 5 ms. DelayInterval is how long it must
	// stand before a packet is marked or dropped, 150 ms: more than most round trips.
	DelayTarget, DelayInterval time.Duration
	// WaitTime is how long a packet waits at most, for a path to its peer or in the
	// queue of one, 3 s.
	WaitTime time.Duration
	// IdleTimeout lets go of a peer without traffic, 5 min.
	IdleTimeout time.Duration
	// QuietTime is how long after its last packet a peer's lanes still move to
	// better paths at once, 30 s; later they wait for the next packet.
	QuietTime time.Duration
	// HoldTime is how long frames of a new carrier wait for the end of the one
	// before it, 300 ms.
	HoldTime time.Duration
	// SwitchTime is how long a lane waits for a Write on a carrier that it is
	// leaving before it resets it, 300 ms.
	SwitchTime time.Duration
	// OpenTimeout bounds one Underlay.Open, 10 s.
	OpenTimeout time.Duration
	// RetryMin and RetryMax bound the pause between two attempts to open a
	// carrier, 50 ms and 2 s; it doubles.
	RetryMin, RetryMax time.Duration
	// MalformedPerMinute puts a peer into quarantine when more malformed frames than that came
	// within a minute on all its streams together, 16.
	MalformedPerMinute int
	// QuarantineMin and QuarantineMax bound a quarantine, 10 s and 5 min; it
	// doubles when it happens again.
	QuarantineMin, QuarantineMax time.Duration
	// StreamsPerLane bounds the live incoming streams of one lane of one peer,
	// 8; the oldest is reset.
	StreamsPerLane int
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.QueueBytes, 6<<20)
	orDefault(&l.TotalBytes, 64<<20)
	orDefault(&l.DelayTarget, 30*time.Millisecond)
	orDefault(&l.DelayInterval, 150*time.Millisecond)
	orDefault(&l.WaitTime, 3*time.Second)
	orDefault(&l.IdleTimeout, 5*time.Minute)
	orDefault(&l.QuietTime, 30*time.Second)
	orDefault(&l.HoldTime, 300*time.Millisecond)
	orDefault(&l.SwitchTime, 300*time.Millisecond)
	orDefault(&l.OpenTimeout, 10*time.Second)
	orDefault(&l.RetryMin, 50*time.Millisecond)
	orDefault(&l.RetryMax, 2*time.Second)
	orDefault(&l.MalformedPerMinute, 16)
	orDefault(&l.QuarantineMin, 10*time.Second)
	orDefault(&l.QuarantineMax, 5*time.Minute)
	orDefault(&l.StreamsPerLane, 8)
	return l
}

// orDefault sets what is not set.
func orDefault[T int | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
