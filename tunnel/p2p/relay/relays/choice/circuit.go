package choice

import (
	"cmp"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

// MaxTried bounds the relays that are tried for one peer.
const MaxTried = 12

// Candidate is a relay as a candidate for circuits to one peer.
type Candidate struct {
	Relay     peer.ID
	Connected bool          // to this node
	Mine      bool          // this node has a reservation there
	Theirs    bool          // the peer says that it has one
	Known     bool          // the peer has reported its relays
	Cost      time.Duration // both round-trip times together; 0: unknown
	Home      int           // position among the peer's homes
	Failed    bool          // the last attempt to use it failed
}

// class is the order of kinds of candidates: where the peer says it is, then where this node is connected anyway, then
// the peer's homes.
func (c Candidate) class() int {
	switch {
	case c.Connected && c.Theirs:
		return 0
	case c.Connected && !c.Known:
		return 1
	case c.Theirs && !c.Failed:
		return 2
	case c.Connected:
		return 3
	case !c.Failed:
		return 4
	}
	return 5
}

// Rank orders the relays for reaching a peer, the most promising first. What the peer reported may be old, so only what
// is beyond MaxTried is left out.
func Rank(all []Candidate) []Candidate {
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b Candidate) int {
		if byClass := cmp.Compare(a.class(), b.class()); byClass != 0 {
			return byClass
		}
		if a.class() >= 4 {
			return cmp.Compare(a.Home, b.Home)
		}
		return compareCost(a.Cost, b.Cost)
	})
	return out[:min(len(out), MaxTried)]
}

// compareCost calls costs equal that differ by less than nearBy.
func compareCost(a, b time.Duration) int {
	if d := a - b; a == 0 || b == 0 || d < nearBy && d > -nearBy {
		return 0
	}
	return cmp.Compare(a, b)
}

// Best returns the relays that circuits between this node and a peer should use: the best one, and another for the case
// that it dies. Relays of unknown cost are left out, so there may be none. current, the one in use, stays unless another
// is clearly nearer.
func Best(all []Candidate, current peer.ID) []Candidate {
	usable := slices.DeleteFunc(slices.Clone(all), func(c Candidate) bool {
		return !c.Known || c.Cost == 0 || !(c.Mine && c.Connected || c.Theirs && !c.Failed)
	})
	cost := func(c Candidate) time.Duration { return Relay{RTT: c.Cost, Reserved: c.Relay == current}.cost() }
	slices.SortStableFunc(usable, func(a, b Candidate) int { return cmp.Compare(cost(a), cost(b)) })
	return usable[:min(len(usable), 2)]
}
