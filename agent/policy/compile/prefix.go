package compile

import (
	"net/netip"
	"slices"
)

// parsePrefix reads a prefix; one of IPv4 addresses inside IPv6 is the IPv4 one that packets have.
func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, err
}

// without removes but from prefixes, which splits the one that contains it.
func without(all []netip.Prefix, but netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		switch {
		case !p.Overlaps(but):
			out = append(out, p)
		case p.Bits() < but.Bits():
			low, high := halves(p)
			out = append(out, without([]netip.Prefix{low, high}, but)...)
		}
	}
	return out
}

func halves(p netip.Prefix) (low, high netip.Prefix) {
	a := p.Addr().AsSlice()
	a[p.Bits()/8] |= 1 << (7 - p.Bits()%8)
	second, _ := netip.AddrFromSlice(a)
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(second, p.Bits()+1)
}

// disjoint leaves out what another prefix contains: the kernel's sets of ranges take no two that overlap.
func disjoint(all []netip.Prefix) []netip.Prefix {
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, p := range all {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
