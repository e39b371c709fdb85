// Package knock shares out the handshakes that a process runs at a time among those who have not shown yet who they are,
// so that a stranger with many connections does not shut members out.
//
//	pool.go   who gets a place
//	guard.go  places are taken when a connection arrives, and left when its peer is known
//	turns.go  few of them are under way at a time
//	listen.go connections are closed that do not say in time whose they are
package knock

import (
	"errors"
	"net/netip"
	"sync"
)

var (
	errFull  = errors.New("too many handshakes are under way")
	errShare = errors.New("too many handshakes are under way with this address")
)

const (
	// reservedPart of the places is for addresses that members have come from.
	reservedPart = 4
	// An address may take that part of the places that are left to it, and at least minShare: however many addresses a
	// stranger has, each leaves most of what is left to the others. Many members behind one address fit into the share
	// of one that members have come from.
	strangerPart, memberPart = 8, 2
	minShare                 = 4
	// freshPart of the places that are not reserved is for addresses that have none yet: a member is let in beside a
	// stranger who has hundreds of addresses.
	freshPart = 8
	// verifyPart: when more than this part of the places are taken, QUIC asks each new address to show that it receives
	// (RFC 9000 section 8.1.2). That costs a round trip, and forged addresses no longer take a place.
	verifyPart = 8
	// maxRemembered bounds the addresses that members have come from.
	maxRemembered = 1 << 16
)

// pool has a number of places for handshakes.
type pool struct {
	places int

	mu      sync.Mutex // a leaf: guards what follows
	taken   int
	by      map[netip.Prefix]int      // places taken, by each of sites
	members map[netip.Prefix]struct{} // where members have come from
	order   []netip.Prefix            // of members, oldest first
}

func newPool(places int) *pool {
	return &pool{places: places, by: make(map[netip.Prefix]int), members: make(map[netip.Prefix]struct{})}
}

// site is what counts as one address: an IPv4 address, or an IPv6 /56, which a site gets from its provider.
func site(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 56
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// sites are what a counts as, narrowest first: for IPv6 also the /48, which has 256 sites and may be one customer's.
func sites(a netip.Addr) []netip.Prefix {
	at := site(a)
	if !at.Addr().Is6() {
		return []netip.Prefix{at}
	}
	return []netip.Prefix{at, netip.PrefixFrom(at.Addr(), 48).Masked()}
}

// take takes a place for a connection from a. The error says why there is none.
func (p *pool) take(a netip.Addr) error {
	at := sites(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	left, part := p.places-p.taken, memberPart
	if _, known := p.members[at[0]]; !known {
		reserved := p.places / reservedPart
		left, part = left-reserved, strangerPart
		if p.by[at[len(at)-1]] > 0 {
			left -= (p.places - reserved) / freshPart
		}
	}
	if left <= 0 {
		return errFull
	}
	for i, s := range at { // four sites' least, two sites' part for a /48
		if p.by[s] >= max(minShare<<(2*i), left/part<<i) {
			return errShare
		}
	}
	p.taken++
	for _, s := range at {
		p.by[s]++
	}
	return nil
}

// leave gives a place back.
func (p *pool) leave(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	for _, s := range sites(a) {
		if p.by[s]--; p.by[s] == 0 {
			delete(p.by, s)
		}
	}
}

// remember notes that a member has come from a.
func (p *pool) remember(a netip.Addr) {
	at := site(a)
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.members[at]; known {
		return
	}
	if len(p.order) == maxRemembered {
		delete(p.members, p.order[0])
		p.order = p.order[1:]
	}
	p.members[at] = struct{}{}
	p.order = append(p.order, at)
}

// knows reports whether members have come from a.
func (p *pool) knows(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.members[site(a)]
	return known
}

// pressure is which part of the places is taken, from 0 to 1.
func (p *pool) pressure() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(p.taken) / float64(p.places)
}

// busy reports whether so many places are taken that addresses have to show that they receive.
func (p *pool) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken > p.places/verifyPart
}

// circuits bounds the handshakes over circuits, by relay: who opens a circuit is not known yet, and each relay, or a member
// through it, may open many. Direct connections have their own places.
type circuits struct {
	each int // of one relay

	mu sync.Mutex // a leaf: guards by
	by map[string]int
}

// take takes a place for a circuit of a relay, and reports whether there was one.
func (c *circuits) take(relay string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[relay] >= c.each {
		return false
	}
	c.by[relay]++
	return true
}

// leave gives a place back.
func (c *circuits) leave(relay string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[relay]--; c.by[relay] == 0 {
		delete(c.by, relay)
	}
}
