package p2p

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	// maxRelays is how many relays a node holds a reservation at.
	maxRelays = 3
	// A relay takes another one's place only if it is nearer by a fifth and
	// nearBy: measurements differ by that much from hour to hour.
	nearBy = 5 * time.Millisecond
)

// candidate is a relay of the membership, as measured from here.
type candidate struct {
	id     peer.ID
	rtt    time.Duration // 0 as long as it is not known
	failed bool          // the last attempt to use it was in vain
	held   bool          // it is one of those in use
}

// cost is c's round-trip time as far as the choice goes: the newcomer has to be
// clearly nearer.
func (c candidate) cost() time.Duration {
	switch {
	case c.rtt == 0:
		return time.Hour
	case c.held:
		return c.rtt
	}
	return c.rtt + c.rtt/4 + nearBy
}

// chooseRelays says where node self should hold reservations; all come in the
// membership's order. Where there are more than maxRelays it takes self's home,
// which others can work out, and the nearest ones.
func chooseRelays(self peer.ID, all []candidate) []peer.ID {
	if len(all) <= maxRelays {
		return ids(all)
	}
	sound := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return c.failed })
	slices.SortStableFunc(sound, func(a, b candidate) int { return cmp.Compare(a.cost(), b.cost()) })
	var out []peer.ID
	if len(sound) > 0 {
		out = append(out, homes(self, ids(sound))[0])
	}
	for _, p := range append(ids(sound), homes(self, ids(all))...) {
		if len(out) < maxRelays && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func ids(all []candidate) []peer.ID {
	out := make([]peer.ID, len(all))
	for i, c := range all {
		out[i] = c.id
	}
	return out
}

// homes orders relays by how much they are p's home. p holds a reservation at
// the first one it can reach, so that whoever knows the membership knows where to
// ask for p. It is rendezvous hashing: the loss of a relay changes the homes of
// its own nodes only.
func homes(p peer.ID, relays []peer.ID) []peer.ID {
	out := slices.Clone(relays)
	slices.SortFunc(out, func(a, b peer.ID) int { return cmp.Compare(weight(p, b), weight(p, a)) })
	return out
}

func weight(p, relay peer.ID) uint64 {
	sum := sha256.Sum256([]byte(string(p) + "\x00" + string(relay)))
	return binary.BigEndian.Uint64(sum[:])
}

// outagePause is the longest wait before the next attempt to use a relay that has
// been away for so long: one that was restarted is back in use within relayBackoff,
// one that is gone for good costs little. alone: no other relay holds a
// reservation.
func outagePause(away time.Duration, alone bool) time.Duration {
	longest := time.Minute
	if alone {
		longest = 5 * relayBackoff
	}
	return min(max(relayBackoff, away/8), longest)
}
