package portguess

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// Sockets is how many sockets the hard side opens at most, minSockets at least.
	Sockets    = 256
	minSockets = 16
	// enough are the odds for which no more sockets are opened: carriers give a subscriber a block of ports, and where the
	// block is small a few sockets suffice.
	enough = 0.9995
	// MaxProbes is to how many ports the easy side sends at most. Up to minProbes are not halved.
	MaxProbes = 2048
	minProbes = 256
	// Rate bounds the packets of either side, per second.
	Rate = 500
	// Every is the least time between two attempts with the same peer, or towards the same address, if the first one met
	// nothing, and afterMet if it did.
	Every    = 10 * time.Minute
	afterMet = 5 * time.Second
	// maxLess bounds how often a node halves what it sends.
	maxLess = 2
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

// Size is the number of ports; 0 if there is no range.
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

// Plan is one attempt to meet a port of the hard side's range. Both sides work out the same range and times.
type Plan struct {
	hard Range
	// less is how often this side halves its packets and their rate, because some were refused: an attempt takes the same
	// time, so that the other side need not know.
	less int
}

// Possible reports whether the ports of the range may be guessed: a server's may not.
func (p Plan) Possible() bool { return p.hard.Random() && p.hard.Low >= MinPort }

// Probes is to how many ports the easy side sends.
func (p Plan) Probes() int { return max(p.mostProbes()>>p.less, min(p.mostProbes(), minProbes)) }

func (p Plan) mostProbes() int { return min(MaxProbes, p.hard.Size()) }

// Sockets is how many the hard side opens: as few as have good odds.
func (p Plan) Sockets() int { return max(p.mostSockets()>>p.less, minSockets) }

func (p Plan) mostSockets() int {
	n := minSockets
	for n < Sockets && p.odds(p.mostProbes(), n) < enough {
		n *= 2
	}
	return n
}

// Rate is how many packets this side sends in a second.
func (p Plan) Rate() int { return Rate >> p.less }

// Odds is the probability that a probe meets a mapping, if the other side sends as much as it may; hard: this side has the
// sockets.
func (p Plan) Odds(hard bool) float64 {
	if hard {
		return p.odds(p.mostProbes(), p.Sockets())
	}
	return p.odds(p.Probes(), p.mostSockets())
}

func (p Plan) odds(probes, sockets int) float64 {
	if p.hard.Size() == 0 {
		return 0
	}
	return 1 - math.Pow(1-float64(probes)/float64(p.hard.Size()), float64(sockets))
}

// ProbeAfter is when the easy side begins, counted from the hard side's beginning.
func (p Plan) ProbeAfter() time.Duration { return taking(Sockets) + lead }

// Lasts is when the attempt ends, counted from the hard side's beginning.
func (p Plan) Lasts() time.Duration { return p.ProbeAfter() + taking(p.mostProbes()) + linger }

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
