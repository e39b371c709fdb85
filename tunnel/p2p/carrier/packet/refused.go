package packet

import (
	"log/slog"
	"sync/atomic"

	"edgemesh/internal/seldom"
)

// Reason says why something that arrived was refused; Service.Refused counts.
type Reason uint8

// The reasons; String gives the name used as a metric label.
const (
	// RefusedUnknown: a packet for no path, as late ones of one that has ended are.
	RefusedUnknown Reason = iota
	// RefusedForged: a packet that the other end of its path did not seal.
	RefusedForged
	// RefusedOversize: a packet that is longer than was agreed on.
	RefusedOversize
	// RefusedOffer: a path that was offered, of a peer that offers too many.
	RefusedOffer
	// RefusedReplaced: a path that ended because its peer began others.
	RefusedReplaced
	numReasons
)

// String is the reason's name as a metric label.
func (r Reason) String() string {
	return [numReasons]string{"unknown_session", "forged", "oversize", "offers", "replaced"}[r]
}

// meaning is what an operator reads; a packet for no path is not worth a line.
func (r Reason) meaning() string {
	return [numReasons]string{
		RefusedForged: "packets dropped: the peer did not seal them; they were damaged on the way, or another host sends them" +
			" under its address",
		RefusedOversize: "packets dropped: they are longer than was agreed; the peer's version is faulty: update it",
		RefusedOffer: "sealed path refused: the peer offers too many, so its packets take streams for now; if this" +
			" continues, look in its log for why it connects again and again",
		RefusedReplaced: "sealed path ended: the peer began others; if this continues, look in its log for why it" +
			" connects again and again",
	}[r]
}

// Reasons lists all of them.
func Reasons() []Reason {
	var out []Reason
	for r := range numReasons {
		out = append(out, r)
	}
	return out
}

// refusals counts and logs what is refused.
type refusals struct {
	counts   [numReasons]atomic.Uint64
	reported seldom.Log
	log      *slog.Logger
}

// refuse counts what came on a path, and logs it now and then.
func (c *refusals) refuse(why Reason, on Path) {
	c.counts[why].Add(1)
	if c.reported.Due(on.Peer() + why.String()) {
		c.log.Info(why.meaning(), "reason", why, "peer", on.Peer(), "addr", on.Addr())
	}
}

// Refused is how often something was refused for a reason.
func (c *refusals) Refused(r Reason) uint64 { return c.counts[r].Load() }
