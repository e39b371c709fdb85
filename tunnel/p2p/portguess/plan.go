package portguess

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// Sockets is how many sockets the hard side opens.
	Sockets = 256
	// MaxProbes is to how many ports the easy side sends at most.
	MaxProbes = 2048
	// Rate bounds the packets of either side, per second.
	Rate = 500
	// Every is the least time between two attempts with the same peer, or towards the same address.
	Every = 10 * time.Minute
	// Samples is how many mappings a node makes to know the ports of its NAT.
	Samples = 16
	// MinPort is the lowest port that is guessed: below it are servers.
	MinPort = 1024

	// lead is how much later the easy side begins than the hard side should be done, linger how long the hard side waits
	// after the last probe should have come.
	lead   = time.Second
	linger = 3 * time.Second
)

// Range are the ports a NAT gives out, both ends included. The zero Range is unknown.
type Range struct {
	Low  uint16 `json:"low"`
	High uint16 `json:"high"`
}

// Size is the number of ports; 0 if the range is none.
func (r Range) Size() int {
	if r.Low == 0 || r.High < r.Low {
		return 0
	}
	return int(r.High) - int(r.Low) + 1
}

// Random reports whether there is anything to guess.
func (r Range) Random() bool { return r.Size() > 1 }

// Seen estimates the range from ports of it, drawn at random: beyond the lowest and the highest lies, on average, one more
// gap. The zero Range if they are too few.
func Seen(ports []uint16) Range {
	if len(ports) < Samples/2 {
		return Range{}
	}
	low, high := int(slices.Min(ports)), int(slices.Max(ports))
	gap := (high - low) / (len(ports) - 1)
	return Range{Low: uint16(max(low-gap, min(low, MinPort))), High: uint16(min(high+gap, math.MaxUint16))}
}

// Plan is one attempt to meet a port of the hard side's range. Both sides work out the same one.
type Plan struct{ hard Range }

// Possible reports whether the ports of the range may be guessed: a server's may not.
func (p Plan) Possible() bool { return p.hard.Random() && p.hard.Low >= MinPort }

// Probes is to how many ports the easy side sends.
func (p Plan) Probes() int { return min(MaxProbes, p.hard.Size()) }

// Odds is the probability that a probe meets a mapping.
func (p Plan) Odds() float64 {
	if p.hard.Size() == 0 {
		return 0
	}
	return 1 - math.Pow(1-float64(p.Probes())/float64(p.hard.Size()), Sockets)
}

// ProbeAfter is when the easy side begins, counted from the hard side's beginning.
func (p Plan) ProbeAfter() time.Duration { return taking(Sockets) + lead }

// Lasts is when the attempt ends, counted from the hard side's beginning.
func (p Plan) Lasts() time.Duration { return p.ProbeAfter() + taking(p.Probes()) + linger }

func taking(packets int) time.Duration { return time.Duration(packets) * time.Second / Rate }

// Guesses are the ports that the easy side sends to.
func (p Plan) Guesses() []uint16 {
	if p.hard.Size() == 0 {
		return nil
	}
	out := make([]uint16, 0, p.Probes())
	for _, i := range rand.Perm(p.hard.Size())[:p.Probes()] {
		out = append(out, p.hard.Low+uint16(i))
	}
	return out
}
