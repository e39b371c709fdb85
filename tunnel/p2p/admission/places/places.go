// Package places shares a number of places among strangers: whoever connects from many addresses, or often from one, leaves
// a place to each other address.
package places

import (
	"net/netip"
	"slices"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Holder has a place, or wants one.
type Holder interface {
	comparable
	Near() netip.Prefix // the network that counts as one address
	Until() time.Time   // when its time is over
}

// Pool has a number of places. When all are taken, the address that has the most makes room for another one: however many
// connections a stranger opens, each address gets a first place immediately, and keeps it while another has more. Its owner
// locks it.
type Pool[H Holder] struct {
	places, taken int
	near          map[netip.Prefix][]H // by address, oldest first
}

// New returns a pool of so many places.
func New[H Holder](places int) *Pool[H] {
	return &Pool[H]{places: places, near: make(map[netip.Prefix][]H)}
}

// Room says whether there is a place for one more from prefix, and who has to leave for it: the zero value if nobody has.
func (p *Pool[H]) Room(prefix netip.Prefix) (victim H, ok bool) {
	if p.taken < p.places {
		return victim, true
	}
	var most []H
	for _, some := range p.near {
		if len(some) > len(most) || len(some) == len(most) && some[0].Until().Before(most[0].Until()) {
			most = some
		}
	}
	if own := len(p.near[prefix]); own > 0 && len(most) <= own+1 {
		return victim, false
	}
	return most[0], true
}

// Len is how many places are taken.
func (p *Pool[H]) Len() int { return p.taken }

// At is how many of them an address has.
func (p *Pool[H]) At(prefix netip.Prefix) int { return len(p.near[prefix]) }

// Add gives h a place; there is Room.
func (p *Pool[H]) Add(h H) {
	p.taken++
	p.near[h.Near()] = append(p.near[h.Near()], h)
}

// Remove takes h's place back.
func (p *Pool[H]) Remove(h H) {
	p.taken--
	prefix := h.Near()
	p.near[prefix] = slices.DeleteFunc(p.near[prefix], func(x H) bool { return x == h })
	if len(p.near[prefix]) == 0 {
		delete(p.near, prefix)
	}
}

// Near is the network that counts as one address: an IPv4 address, or an IPv6 /56.
func Near(a ma.Multiaddr) netip.Prefix {
	ip := netip.IPv6Unspecified() // for all that have none
	if raw, err := manet.ToIP(a); err == nil {
		if x, ok := netip.AddrFromSlice(raw); ok {
			ip = x.Unmap()
		}
	}
	bits := 56
	if ip.Is4() {
		bits = 32
	}
	return netip.PrefixFrom(ip.WithZone(""), bits).Masked()
}
