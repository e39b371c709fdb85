// Package birthday plans how two nodes guess each other's ports, where a NAT gives
// every destination a random one and the other side lets in only whom it knows. It
// is pure: it sends nothing and has no clock.
//
// One side, the opener, opens many sockets and sends a packet from each to ports the
// other may have: every one is a mapping, at a random port. The other side, the
// prober, then sends to many ports the opener may have, from its one socket. A probe
// gets in where a mapping has its port, and expects the port the probe comes from.
// Where the prober's port is known, that is the birthday problem: 256 mappings and
// 2048 probes meet in 65000 ports with odds of 0.9997. Where both are random, port and
// port have to meet, and the odds are good only if one of the NATs, or both, give out
// few ports, as carriers' NATs do that give each subscriber a block (RFC 6888,
// REQ-14; RFC 7422).
package birthday

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// Sockets is how many the opener opens.
	Sockets = 256
	// PerSocket is to how many ports each of them sends at most.
	PerSocket = 8
	// MaxProbes is to how many ports the prober sends at most.
	MaxProbes = 2048
	// Rate is the most packets a second, of either side.
	Rate = 500
	// Every is the least time between two attempts with the same peer, or towards
	// the same address.
	Every = 10 * time.Minute
	// MinOdds are the least an attempt is made for.
	MinOdds = 0.01
	// Samples is how many mappings a node looks at to know the ports of its NAT.
	Samples = 16
	// MinPort is the least port that is guessed: below it are servers.
	MinPort = 1024

	// settle is how much later the prober begins than the opener should be done.
	settle = time.Second
	// last is how long the opener waits after the last probe should have come.
	last = 3 * time.Second
)

// Range are the ports a NAT gives out, both ends included. The zero Range is
// unknown.
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

// Random says whether there is anything to guess.
func (r Range) Random() bool { return r.Size() > 1 }

// Guessable says whether a peer may have its ports guessed: one known port, or
// ports that are no server's.
func (r Range) Guessable() bool { return r.Size() == 1 || r.Size() > 1 && r.Low >= MinPort }

// Seen estimates the range from ports of it, drawn at random: beyond the lowest and
// the highest lies, on average, one more gap. The zero Range if they are too few.
func Seen(ports []uint16) Range {
	if len(ports) < Samples/2 {
		return Range{}
	}
	low, high := int(slices.Min(ports)), int(slices.Max(ports))
	gap := (high - low) / (len(ports) - 1)
	return Range{Low: uint16(max(low-gap, min(low, MinPort))), High: uint16(min(high+gap, math.MaxUint16))}
}

// Plan is one attempt. Both sides work out the same one.
type Plan struct {
	opener, prober Range
}

// New plans an attempt between the NAT of the opener and that of the prober.
func New(opener, prober Range) Plan { return Plan{opener, prober} }

// Each is to how many ports each socket of the opener sends.
func (p Plan) Each() int { return min(PerSocket, p.prober.Size()) }

// Probes is to how many ports the prober sends.
func (p Plan) Probes() int { return min(MaxProbes, p.opener.Size()) }

// Odds is the probability that an attempt finds a way: a mapping of the opener is
// probed with Probes/size, and the probe then comes from the one port of the
// prober's range that the mapping expects.
func (p Plan) Odds() float64 {
	if p.opener.Size() == 0 || p.prober.Size() == 0 {
		return 0
	}
	one := float64(p.Probes()) / float64(p.opener.Size()) / float64(p.prober.Size())
	return 1 - math.Pow(1-one, float64(Sockets*p.Each()))
}

// Worth says whether an attempt should be made at all.
func (p Plan) Worth() bool {
	return p.opener.Random() && p.opener.Guessable() && p.prober.Guessable() && p.Odds() >= MinOdds
}

// ProbeAfter is when the prober begins, counted from the opener's beginning.
func (p Plan) ProbeAfter() time.Duration { return taking(Sockets*p.Each()) + settle }

// Lasts is when the attempt ends, counted from the opener's beginning.
func (p Plan) Lasts() time.Duration { return p.ProbeAfter() + taking(p.Probes()) + last }

func taking(packets int) time.Duration { return time.Duration(packets) * time.Second / Rate }

// Targets are the ports of the prober that one socket of the opener sends to.
func (p Plan) Targets(rnd *rand.Rand) []uint16 { return draw(p.prober, p.Each(), rnd) }

// Guesses are the ports of the opener that the prober sends to.
func (p Plan) Guesses(rnd *rand.Rand) []uint16 { return draw(p.opener, p.Probes(), rnd) }

// draw takes n different ports of r.
func draw(r Range, n int, rnd *rand.Rand) []uint16 {
	taken := make(map[uint16]bool, n)
	out := make([]uint16, 0, n)
	for k := r.Size() - n; k < r.Size(); k++ { // R. Floyd's sampling
		port := r.Low + uint16(rnd.IntN(k+1))
		if taken[port] {
			port = r.Low + uint16(k)
		}
		taken[port] = true
		out = append(out, port)
	}
	rnd.Shuffle(n, func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
