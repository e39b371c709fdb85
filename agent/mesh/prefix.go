package mesh

import (
	"cmp"
	"net/netip"
	"slices"
)

// Inside reports whether p is inside one of ranges.
func Inside(ranges []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}

// OfVersion returns the prefixes of one IP version.
func OfVersion(all []netip.Prefix, v6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
}

// ComparePrefix orders prefixes by address, larger ones first.
func ComparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
}

// LastAddr is the last address of a prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
