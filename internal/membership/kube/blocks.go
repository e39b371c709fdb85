package kube

import (
	"net/netip"

	"github.com/gaissmai/bart"

	"edgemesh/internal/membership/mesh"
)

// blockSet finds a prefix of the set that overlaps a given one. The zero value is empty.
type blockSet struct{ table bart.Table[owned] }

// owned is a prefix and its owner.
type owned struct {
	prefix netip.Prefix
	node   string
}

func (s *blockSet) add(p netip.Prefix, node string) { s.table.Insert(p, owned{p, node}) }

// find returns a prefix of the set that overlaps p.
func (s *blockSet) find(p netip.Prefix) (owned, bool) {
	if _, o, ok := s.table.LookupPrefixLPM(p); ok {
		return o, true
	}
	for _, o := range s.table.Subnets(p) {
		return o, true
	}
	return owned{}, false
}

// lowestFree returns the first block of size bits in ranges, taken in order, that
// overlaps nothing in used. The blocks in prefer come first: a node gets
// back what it had.
func lowestFree(ranges []netip.Prefix, bits int, used *blockSet, prefer []netip.Prefix) (netip.Prefix, bool) {
	for _, p := range prefer {
		if p.Bits() != bits {
			continue
		}
		if _, clash := used.find(p); mesh.Inside(ranges, p) && !clash {
			return p, true
		}
	}
	for _, r := range ranges {
		for p, ok := first(r, bits); ok; {
			o, clash := used.find(p)
			if !clash {
				return p, true
			}
			// Past the larger of the two, in one step.
			last := p
			if o.prefix.Bits() < bits {
				last = o.prefix.Masked()
			}
			p, ok = after(last, r, bits)
		}
	}
	return netip.Prefix{}, false
}

// FreeBlock returns the first block of size bits in ranges, taken in order, that overlaps none of used.
func FreeBlock(ranges []netip.Prefix, bits int, used []netip.Prefix) (netip.Prefix, bool) {
	var set blockSet
	for _, p := range used {
		set.add(p, "")
	}
	return lowestFree(ranges, bits, &set, nil)
}

// first is the first block of size bits in r.
func first(r netip.Prefix, bits int) (netip.Prefix, bool) {
	if bits < r.Bits() || bits > r.Addr().BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(r.Masked().Addr(), bits), true
}

// after is the block of size bits in r that follows p.
func after(p, r netip.Prefix, bits int) (netip.Prefix, bool) {
	next := mesh.LastAddr(p).Next()
	if !next.IsValid() || !r.Contains(next) {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(next, bits), true
}
