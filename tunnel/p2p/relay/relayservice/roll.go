package relayservice

import (
	"net/netip"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/quota"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// roll is who holds a reservation, from which address, and how many circuits each has: what limits apply to.
type roll struct {
	most, mostPerIP, mostCircuits, allCircuits int

	mu       sync.Mutex // a leaf: guards what follows
	from     map[peer.ID]netip.Prefix
	at       map[netip.Prefix]int
	circuits map[peer.ID]int
	open     int                  // circuits
	opened   map[netip.Prefix]int // of them, from each address
}

func newRoll(l Limits) roll {
	return roll{most: l.MaxReservations, mostPerIP: l.MaxReservationsPerIP, mostCircuits: l.MaxCircuitsPerPeer, allCircuits: l.MaxCircuits, opened: make(map[netip.Prefix]int),
		from: make(map[peer.ID]netip.Prefix), at: make(map[netip.Prefix]int), circuits: make(map[peer.ID]int)}
}

// enter notes that p holds a reservation from a, and reports whether the limits allow that. One that it has stays if they
// do not. free says that whoever let p in would let in any number of keys.
func (r *roll) enter(p peer.ID, a ma.Multiaddr, free bool) bool {
	if _, ok := endpoint.IP(a); !ok {
		return false
	}
	at := site(a)
	r.mu.Lock()
	defer r.mu.Unlock()
	old, had := r.from[p]
	if had && old == at {
		return true
	}
	left := r.most - len(r.from)
	if !had && (left <= 0 || free && quota.Crowded(r.most, left, r.at[at])) || r.at[at] >= r.mostPerIP {
		return false
	}
	if had {
		less(r.at, old)
	}
	r.from[p] = at
	r.at[at]++
	return true
}

// leave reports whether p held a reservation.
func (r *roll) leave(p peer.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, had := r.from[p]
	if had {
		delete(r.from, p)
		less(r.at, old)
	}
	return had
}

// connect counts a circuit from a, which is at that address, and reports whether both ends and the address may have one more.
func (r *roll) connect(a, b peer.ID, at netip.Prefix) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.circuits[a] >= r.mostCircuits || r.circuits[b] >= r.mostCircuits || quota.Crowded(r.allCircuits, r.allCircuits-r.open, r.opened[at]) {
		return false
	}
	r.open++
	r.opened[at]++
	r.circuits[a]++
	r.circuits[b]++
	return true
}

func (r *roll) disconnect(a, b peer.ID, at netip.Prefix) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	less(r.opened, at)
	less(r.circuits, a)
	less(r.circuits, b)
}

// site is what counts as one address: an IPv4 address, or an IPv6 /56, which a site gets from its provider.
func site(a ma.Multiaddr) netip.Prefix {
	addr, _ := endpoint.IP(a)
	if addr = addr.Unmap(); addr.Is6() {
		return netip.PrefixFrom(addr.WithZone(""), 56).Masked()
	}
	return netip.PrefixFrom(addr, 32)
}

// less counts one less of k.
func less[K comparable](m map[K]int, k K) {
	if m[k]--; m[k] == 0 {
		delete(m, k)
	}
}

// counted is a circuit's stream that is counted until it ends.
type counted struct {
	network.Stream
	left func()
}

// Close implements network.Stream.
func (c *counted) Close() error { c.left(); return c.Stream.Close() }

// Reset implements network.Stream.
func (c *counted) Reset() error { c.left(); return c.Stream.Reset() }

// ResetWithError implements network.Stream.
func (c *counted) ResetWithError(code network.StreamErrorCode) error {
	c.left()
	return c.Stream.ResetWithError(code)
}
