// Package pool shares a fixed number of slots among address prefixes: whoever connects from many addresses, or often from
// one, leaves slots to everybody else.
//
//	pool.go    the pool and its two rules
//	prefix.go  which addresses count as one
//	memory.go  bounded sets of what was seen
package pool

import (
	"errors"
	"net/netip"
	"slices"
)

var (
	// ErrFull means that no slot is left.
	ErrFull = errors.New("all slots are taken")
	// ErrShare means that this address prefix has its share.
	ErrShare = errors.New("this address has its share of the slots")
)

const (
	// reservedPart of the slots is for prefixes that members have come from.
	reservedPart = 4
	// A prefix may take that part of the slots that are left to it, and at least minShare: however many addresses an
	// attacker has, each leaves most of what is left to the others. Many members behind one address fit into the share of
	// a known one.
	unknownPart, knownPart = 8, 2
	minShare               = 4
	// freshPart of the slots that are not reserved is for prefixes that have none yet: a member is let in beside an
	// attacker with hundreds of addresses.
	freshPart = 8
)

// Pool has slots for holders. Its owner locks it.
type Pool[H comparable] struct {
	slots, taken int
	clock        uint64                       // numbers the holders
	near         map[netip.Prefix][]holder[H] // by prefix, oldest first
	wide         map[netip.Prefix]int         // slots taken by each IPv6 /48
}

type holder[H comparable] struct {
	h  H
	at uint64
}

// New returns a pool of so many slots.
func New[H comparable](slots int) *Pool[H] {
	return &Pool[H]{slots: slots, near: make(map[netip.Prefix][]holder[H]), wide: make(map[netip.Prefix]int)}
}

// Slots is how many there are, Len how many are taken, At how many of them by one prefix.
func (p *Pool[H]) Slots() int { return p.slots }

// Len is how many slots are taken.
func (p *Pool[H]) Len() int { return p.taken }

// At is how many slots a prefix has taken.
func (p *Pool[H]) At(prefix netip.Prefix) int { return len(p.near[prefix]) }

// Share is the rule for holders that nobody can displace: it reports whether prefix's share has a slot left; members have come
// from known ones. The error is ErrFull or ErrShare.
func (p *Pool[H]) Share(prefix netip.Prefix, known bool) error {
	block, isWide := wide(prefix)
	held := len(p.near[prefix])
	if isWide {
		held = p.wide[block]
	}
	left, part := p.slots-p.taken, knownPart
	if !known {
		reserved := p.slots / reservedPart
		left, part = left-reserved, unknownPart
		if held > 0 {
			left -= (p.slots - reserved) / freshPart
		}
	}
	switch {
	case left <= 0:
		return ErrFull
	case len(p.near[prefix]) >= max(minShare, left/part), isWide && held >= max(minShare<<2, left/part<<1): // a /48: four prefixes' least, two prefixes' part
		return ErrShare
	}
	return nil
}

// Displace is the rule for holders that can be displaced: it reports whether one more of prefix may have a slot, and who has to
// give up its own, the zero value if nobody. The prefix with most slots gives up its oldest, so each prefix gets a first slot
// immediately, and keeps it while another has more.
func (p *Pool[H]) Displace(prefix netip.Prefix) (victim H, ok bool) {
	if p.taken < p.slots {
		return victim, true
	}
	var most []holder[H]
	for _, some := range p.near {
		if len(some) > len(most) || len(some) == len(most) && some[0].at < most[0].at {
			most = some
		}
	}
	if own := len(p.near[prefix]); own > 0 && len(most) <= own+1 {
		return victim, false
	}
	return most[0].h, true
}

// Add gives h a slot, which one of the rules has found.
func (p *Pool[H]) Add(h H, prefix netip.Prefix) {
	p.taken++
	p.clock++
	p.near[prefix] = append(p.near[prefix], holder[H]{h, p.clock})
	if block, ok := wide(prefix); ok {
		p.wide[block]++
	}
}

// Remove takes h's slot back.
func (p *Pool[H]) Remove(h H, prefix netip.Prefix) {
	i := slices.IndexFunc(p.near[prefix], func(x holder[H]) bool { return x.h == h })
	if i < 0 {
		return
	}
	p.taken--
	if p.near[prefix] = slices.Delete(p.near[prefix], i, i+1); len(p.near[prefix]) == 0 {
		delete(p.near, prefix)
	}
	if block, ok := wide(prefix); ok {
		if p.wide[block]--; p.wide[block] == 0 {
			delete(p.wide, block)
		}
	}
}
