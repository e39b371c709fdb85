package flows

import (
	"math/rand/v2"
	"time"

	"edgemesh/test/lab/link"
)

// Line is a bottleneck and the path behind it.
type Line struct {
	link.Direction
	// Up is what acknowledgements pass; zero: a line with the same delay, which is never full.
	Up link.Direction
	// Bunch: what arrives is seen so often only, as behind an access point that aggregates.
	Bunch time.Duration
	// Longer is how much longer the path has become, one way; nil: not at all.
	Longer func(now time.Duration) time.Duration
	// Vary returns the share of Rate that the line has at a time; nil: all of it.
	Vary func(now time.Duration) float64
	// Every and Stall: nothing passes for Stall at the beginning of each Every, as a radio does at a hand-over.
	Every, Stall time.Duration
	// BurstLoss is the probability with which a packet begins a run of losses, whose mean length is BurstLength.
	BurstLoss   float64
	BurstLength float64
}

// state is what the line is now.
type state struct {
	Line
	queue    *link.Queue
	rng      *rand.Rand
	dropping bool
	rate     int64 // as set
}

func newState(l Line, seed uint64) *state {
	return &state{Line: l, queue: link.NewQueue(l.Direction, seed, packetBytes+16), rng: rand.New(rand.NewPCG(seed, 9)), rate: l.Rate}
}

// vary sets the line's rate.
func (s *state) vary(now time.Duration) {
	share := 1.0
	if s.Vary != nil {
		share = s.Vary(now)
	}
	rate := max(int64(share*float64(s.Line.Rate)), 1000)
	if s.Every > 0 && now%s.Every < s.Stall {
		rate = 1000
	}
	delay := s.Line.Delay
	if s.Longer != nil {
		delay += s.Longer(now)
	}
	if rate != s.rate || delay != s.queue.Direction().Delay {
		d := s.Direction
		d.Rate, d.Delay = rate, delay
		if d.Queue = s.Queue; d.Queue == 0 { // the queue's bytes stay
			d.Queue, d.QueueTime = int64(s.QueueTime.Seconds()*float64(s.Line.Rate)/8), 0
		}
		s.rate = rate
		s.queue.Set(now, d)
	}
}

// burst says whether a packet is lost in a run of losses.
func (s *state) burst() bool {
	if s.BurstLoss == 0 {
		return false
	}
	if s.dropping {
		s.dropping = s.rng.Float64() >= 1/s.BurstLength
	} else {
		s.dropping = s.rng.Float64() < s.BurstLoss
	}
	return s.dropping
}
