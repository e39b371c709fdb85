package plan

import (
	"net/netip"
	"slices"

	"edgemesh/agent/mesh"
)

// Gateway is the gateway of a block with the block's prefix length.
func Gateway(block netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(mesh.Gateway(block), block.Bits())
}

// Single is the prefix of one address.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// ofVersion returns the prefixes of one IP version, masked.
func ofVersion(all []netip.Prefix, v6 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if p.Addr().Is6() == v6 {
			out = append(out, p.Masked())
		}
	}
	return out
}

// addrInside returns the lowest address inside the first block that has one.
func addrInside(blocks []netip.Prefix, addrs []netip.Addr) netip.Addr {
	for _, b := range blocks {
		in := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !b.Contains(a) })
		if len(in) > 0 {
			return slices.MinFunc(in, netip.Addr.Compare)
		}
	}
	return netip.Addr{}
}
