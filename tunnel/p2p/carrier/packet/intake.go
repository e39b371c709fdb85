package packet

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"
)

const (
	// maxReceivers bounds the sessions of one peer in which packets are received: it needs one for each QUIC connection,
	// and one more while that is renewed. A further one ends the oldest.
	maxReceivers = 16
	// replaceTime is how long a session lives beside the one that replaces it on its path. A correct sender ends it
	// itself, as soon as the other one works.
	replaceTime = 30 * time.Second
	// A peer may begin offerBurst sessions in a row, then one every offerEvery. A correct one offers about ten on each new
	// connection while this node starts, and then one a minute.
	offerBurst = 64
	offerEvery = 2 * time.Second
)

// Reason says why something that arrived was refused; Service.Refused counts.
type Reason uint8

// The reasons; String gives the name used as a metric label.
const (
	// RefusedUnknown: a packet for no session, as late ones of a path that has ended are.
	RefusedUnknown Reason = iota
	// RefusedForged: a packet that the sender of its session did not seal.
	RefusedForged
	// RefusedReplayed: a packet that was there before, or is too old to tell.
	RefusedReplayed
	// RefusedOversize: a packet that is longer than was agreed on.
	RefusedOversize
	// RefusedOffer: a session that was offered, of a peer that offers too many.
	RefusedOffer
	// RefusedReplaced: a session that ended because its peer began others.
	RefusedReplaced
	numReasons
)

// String is the reason's name as a metric label.
func (r Reason) String() string {
	return [numReasons]string{"unknown_session", "forged", "replayed", "oversize", "offers", "replaced"}[r]
}

// meaning is what an operator reads; a packet for no session is not worth a line.
func (r Reason) meaning() string {
	return [numReasons]string{
		RefusedForged: "packets dropped: the peer did not seal them; they were damaged on the way, or another host sends them" +
			" under its address",
		RefusedReplayed: "packets dropped: they came before, or are too late; the network duplicates or delays them, or another" +
			" host repeats them",
		RefusedOversize: "packets dropped: they are longer than was agreed; the peer's version is faulty: update it",
		RefusedOffer: "session for datagrams refused: the peer begins too many, so its datagrams take streams for now; if this" +
			" continues, look in its log for why it connects again and again",
		RefusedReplaced: "session for datagrams ended: the peer began others; if this continues, look in its log for why it" +
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

// refusals counts by reason.
type refusals [numReasons]atomic.Uint64

func (c *refusals) count(r Reason) { c[r].Add(1) }

// refuse counts what came on a path, and logs it now and then.
func (s *Service) refuse(why Reason, on Path) {
	s.refusals.count(why)
	if s.reported.Due(on.Peer() + why.String()) {
		s.cfg.Log.Info(why.meaning(), "reason", why, "peer", on.Peer(), "addr", on.Addr())
	}
}

// Refused is how often something was refused for a reason.
func (s *Service) Refused(r Reason) uint64 { return s.refusals[r].Load() }

// inbound is what one peer has received here. It belongs to Service.mu.
type inbound struct {
	offers *rate.Limiter
	live   []*receiver // oldest first
}

func newInbound() *inbound {
	return &inbound{offers: rate.NewLimiter(rate.Every(offerEvery), offerBurst)}
}

// admit takes a receiver in, and returns those that have to end for it now. The one before it on the same path ends
// later: packets for it may still be on their way.
func (in *inbound) admit(r *receiver) (over []*receiver) {
	var kept []*receiver
	before := false // on the same path, of those that stay
	for _, o := range slices.Backward(in.live) {
		switch {
		case o.ss == r.ss && before, len(kept) == maxReceivers-1:
			over = append(over, o)
			continue
		case o.ss == r.ss:
			before = true
			time.AfterFunc(replaceTime, o.end)
		}
		kept = append(kept, o)
	}
	slices.Reverse(kept)
	in.live = append(kept, r)
	return over
}

// remove forgets a receiver that has ended.
func (in *inbound) remove(r *receiver) {
	in.live = slices.DeleteFunc(in.live, func(o *receiver) bool { return o == r })
}

// idle reports whether nothing is lost when it is forgotten.
func (in *inbound) idle() bool { return len(in.live) == 0 && in.offers.Tokens() >= offerBurst }

// mayOffer reports whether a peer may begin another session.
func (s *Service) mayOffer(p peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from(p).offers.Allow()
}

// from is what a peer has received here. The caller holds mu.
func (s *Service) from(p peer.ID) *inbound {
	in := s.inbound[p]
	if in == nil {
		for id, other := range s.inbound {
			if other.idle() {
				delete(s.inbound, id)
			}
		}
		in = newInbound()
		s.inbound[p] = in
	}
	return in
}
