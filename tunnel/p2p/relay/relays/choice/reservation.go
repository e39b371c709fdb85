// Package choice decides between relays: where this node holds its reservations, through which relay a circuit to a
// peer goes, and how long to wait before a relay that does not answer is tried again. It is pure: no network, no clock.
//
//	reservation.go   Reservations and Homes, for this node
//	pause.go         Pause and Pace, between attempts to use one relay; TCPFirst, where members are many
//	circuit.go       Rank and Best, for circuits to one peer
package choice

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	// MaxReservations is how many relays a node holds a reservation at, where there are fewer than ManyRelays.
	MaxReservations = 3
	// ManyRelays is from how many on it is two, and not always at the nearest: relays are many where nodes are, and each has
	// places for so many.
	ManyRelays       = 9
	manyReservations = 2
	// Where relays are many, one that holds crowdedPart percent of the mean is crowded, if that is leastCrowded at least: few
	// reservations differ by chance.
	crowdedPart  = 115
	leastCrowded = 100
	// nearBy, and a fifth of the round-trip time beside it, is how much nearer a relay must be to replace another:
	// measurements differ by that much from hour to hour.
	nearBy = 5 * time.Millisecond
	// Backoff bounds the wait between attempts to reach a relay that was there a moment ago.
	Backoff = 2 * time.Second
	// Shortest is the first wait after a relay was lost.
	Shortest = Backoff / 8
)

// Relay is a relay of the membership, as measured from here.
type Relay struct {
	ID       peer.ID
	RTT      time.Duration // 0: unknown
	Failed   bool          // the last attempt to use it failed
	Reserved bool          // it is one of those chosen now
	Crowded  bool          // it says that it holds more than its share, and this node has no reservation there
}

// cost is r's round-trip time for the choice: a relay that would replace another must be clearly nearer.
func (r Relay) cost() time.Duration {
	switch {
	case r.RTT == 0:
		return time.Hour
	case r.Reserved:
		return r.RTT
	}
	return aboutAs(r.RTT)
}

// Reservations says where node self should hold reservations; all come in the membership's order. Of more than
// MaxReservations it takes self's home, which others can work out, and the nearest ones; of many, its home and one that is
// about as near as the nearest.
func Reservations(self peer.ID, all []Relay) []peer.ID {
	if len(all) <= MaxReservations {
		return ids(all)
	}
	sound := slices.DeleteFunc(slices.Clone(all), func(r Relay) bool { return r.Failed })
	if len(all) >= ManyRelays {
		return ofMany(self, all, sound)
	}
	slices.SortStableFunc(sound, func(a, b Relay) int { return cmp.Compare(a.cost(), b.cost()) })
	var out []peer.ID
	if len(sound) > 0 {
		out = append(out, Homes(self, ids(sound))[0])
	}
	for _, p := range append(ids(sound), Homes(self, ids(all))...) {
		if len(out) < MaxReservations && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// ofMany is Reservations among many relays. Nodes that are about as near to several of them spread by hash, and stay where
// they are. Crowded ones take no more, as long as there are others: the nearest of those are looked at instead.
func ofMany(self peer.ID, all, sound []Relay) []peer.ID {
	homes := Homes(self, ids(sound))
	rank := append(slices.Clone(homes), Homes(self, ids(all))...)
	if len(homes) > 0 {
		sound = slices.DeleteFunc(sound, func(r Relay) bool { return r.ID == homes[0] })
	}
	if slices.ContainsFunc(sound, func(r Relay) bool { return !r.Crowded }) {
		sound = slices.DeleteFunc(sound, func(r Relay) bool { return r.Crowded })
	}
	var nearest time.Duration
	for _, r := range sound {
		if r.RTT > 0 && (nearest == 0 || r.RTT < nearest) {
			nearest = r.RTT
		}
	}
	near := slices.DeleteFunc(sound, func(r Relay) bool {
		limit := aboutAs(nearest)
		if r.Reserved {
			limit = aboutAs(limit)
		}
		return r.RTT == 0 || r.RTT > limit
	})
	slices.SortStableFunc(near, func(a, b Relay) int {
		if a.Reserved != b.Reserved {
			return map[bool]int{true: -1, false: 1}[a.Reserved]
		}
		return cmp.Compare(slices.Index(rank, a.ID), slices.Index(rank, b.ID))
	})
	var out []peer.ID
	for _, p := range slices.Concat(homes[:min(1, len(homes))], ids(near), rank) {
		if len(out) < manyReservations && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// Share is from how many reservations on one of so many relays is crowded; 0: none ever is.
func Share(members, relays int) int {
	if relays < ManyRelays {
		return 0
	}
	return max(leastCrowded, (members*manyReservations*crowdedPart+relays*100-1)/(relays*100))
}

// aboutAs is the longest round trip that counts as about as long as d.
func aboutAs(d time.Duration) time.Duration { return d + d/4 + nearBy }

func ids(all []Relay) []peer.ID {
	out := make([]peer.ID, len(all))
	for i, r := range all {
		out[i] = r.ID
	}
	return out
}

// Homes orders relays by how much they are p's home. p holds a reservation at the first one it can reach, so that
// whoever knows the membership knows where to look for p. It is rendezvous hashing: the loss of a relay changes the
// homes of its own nodes only.
func Homes(p peer.ID, relays []peer.ID) []peer.ID {
	weights := make(map[peer.ID]uint64, len(relays))
	for _, r := range relays {
		weights[r] = weight(p, r)
	}
	out := slices.Clone(relays)
	slices.SortFunc(out, func(a, b peer.ID) int { return cmp.Compare(weights[b], weights[a]) })
	return out
}

func weight(p, relay peer.ID) uint64 {
	sum := sha256.Sum256([]byte(string(p) + "\x00" + string(relay)))
	return binary.BigEndian.Uint64(sum[:])
}
