// Package pool shares a fixed number of slots among address prefixes: whoever connects from many addresses, or often from
// one, leaves slots to everybody else.
//
//	pool.go    the pool and its two rules
//	prefix.go  which addresses count as one
//	memory.go  bounded sets of what was seen
package pool

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"
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
	groups       map[netip.Prefix]int         // slots taken by each group of a prefix
}

type holder[H comparable] struct {
	h     H
	n     uint64
	since time.Time
}

// New returns a pool of so many slots.
func New[H comparable](slots int) *Pool[H] {
	return &Pool[H]{slots: slots, near: make(map[netip.Prefix][]holder[H]), groups: make(map[netip.Prefix]int)}
}

// Slots is how many there are, Len how many are taken, At how many of them by one prefix.
func (p *Pool[H]) Slots() int { return p.slots }

// Len is how many slots are taken.
func (p *Pool[H]) Len() int { return p.taken }

// At is how many slots the Prefix that prefix is in has taken.
func (p *Pool[H]) At(prefix netip.Prefix) int { return p.groups[groups(prefix)[site]] }

// Share is the rule for holders that nobody can displace: it reports whether prefix's share has a slot left; members have come
// from known ones. The error is ErrFull or ErrShare.
func (p *Pool[H]) Share(prefix netip.Prefix, known bool) error {
	isWide := prefix.Addr().Is6()
	held := p.groups[groups(prefix)[1]]
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
	case p.At(prefix) >= max(minShare, left/part), isWide && held >= max(minShare<<2, left/part<<1): // a /48: four prefixes' least, two prefixes' part
		return ErrShare
	}
	return nil
}

// Displace is the rule for holders that can be displaced: it reports whether one more of prefix may have a slot, and who has to
// give up its own, the zero value if nobody. That is one of the fullest IPv6 /32, in it of the fullest /48, and so on; addresses
// of IPv4 are groups of their own. Of these the oldest goes that has stayed for least, else the youngest: whoever fills a group
// displaces itself. Each prefix gets a first slot, and keeps it while another has more; where each has one, and none has stayed
// for least, nobody goes.
func (p *Pool[H]) Displace(prefix netip.Prefix, least time.Duration) (victim H, ok bool) {
	if p.taken < p.slots {
		return victim, true
	}
	var most levels[int]
	var old, young *holder[H]
	var of levels[netip.Prefix] // the one that goes
	for at, some := range p.near {
		in := groups(at)
		var n levels[int]
		for i, group := range in {
			n[i] = p.groups[group]
		}
		order := slices.Compare(n[:], most[:])
		if order < 0 {
			continue
		}
		if order > 0 {
			most, old, young = n, nil, nil
		}
		first, last := &some[0], &some[len(some)-1]
		switch {
		case time.Since(first.since) >= least:
			if old == nil || first.n < old.n {
				old, of = first, in
			}
		case old == nil && (young == nil || last.n > young.n):
			young, of = last, in
		}
	}
	for i, group := range groups(prefix) {
		if group == of[i] {
			continue
		}
		if own := p.groups[group]; own > 0 && most[i] <= own+1 || most[i] == 1 && old == nil {
			return victim, false
		}
		return cmp.Or(old, young).h, true
	}
	return victim, false
}

// Add gives h a slot, which one of the rules has found.
func (p *Pool[H]) Add(h H, prefix netip.Prefix) {
	p.taken++
	p.clock++
	p.near[prefix] = append(p.near[prefix], holder[H]{h, p.clock, time.Now()})
	p.count(prefix, 1)
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
	p.count(prefix, -1)
}

// count adds n to the groups of a prefix.
func (p *Pool[H]) count(prefix netip.Prefix, n int) {
	in := groups(prefix)
	for i, group := range in {
		if i > 0 && group == in[i-1] {
			continue
		}
		if p.groups[group] += n; p.groups[group] == 0 {
			delete(p.groups, group)
		}
	}
}
