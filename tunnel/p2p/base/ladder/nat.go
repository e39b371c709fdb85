package ladder

import "slices"

// NAT is what stands between a node and the world, from its own observations.
type NAT uint8

const (
	// NATUnknown: nothing is known.
	NATUnknown NAT = iota
	// NATNone: no translation.
	NATNone
	// NATStable: the same outer port for every destination.
	NATStable
	// NATSequential: a port of its own for every destination, in sequence.
	NATSequential
	// NATRandom: a port of its own for every destination, unforeseeable.
	NATRandom
)

// NATs is what is known of the NATs on both sides. It is an event, too.
type NATs struct{ Mine, Theirs NAT }

// natNames are the kinds on the wire, and in logs.
var natNames = [...]string{"unknown", "none", "stable", "sequential", "random"} //nolint:gochecknoglobals // a constant

func (n NAT) String() string {
	if int(n) < len(natNames) {
		return natNames[n]
	}
	return natNames[NATUnknown]
}

// ParseNAT reads what String wrote; anything else is NATUnknown.
func ParseNAT(s string) NAT { return NAT(max(0, slices.Index(natNames[:], s))) }

// PerDestination reports whether every destination sees a port of its own.
func (n NAT) PerDestination() bool { return n == NATSequential || n == NATRandom }

// Hopeless reports whether two nodes can hardly get a direct path: neither can announce to the other where to dial. An address of
// the same LAN, IPv6 or a forwarded port may help nevertheless, which is why some attempts are made.
func Hopeless(mine, theirs NAT) bool {
	return mine.PerDestination() && theirs.PerDestination() ||
		mine == NATRandom && theirs == NATStable || mine == NATStable && theirs == NATRandom
}

// tries returns how many attempts are worth while between two NATs; 0: any number.
func tries(mine, theirs NAT) int {
	switch {
	case !Hopeless(mine, theirs):
		return 0
	case mine.PerDestination() && theirs.PerDestination():
		return hopelessTries
	default:
		return doubtfulTries
	}
}
