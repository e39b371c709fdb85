package pool

import (
	"net/netip"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/nat64"
	"edgemesh/tunnel/p2p/base/endpoint"
)

// Prefix is the prefix that counts as one address: an IPv4 address, or an IPv6 /56, which a site gets from its provider.
func Prefix(a netip.Addr) netip.Prefix {
	a = nat64.Inside(a).WithZone("")
	bits := 56
	switch {
	case a.Is4():
		bits = 32
	case !a.IsValid():
		a = netip.IPv6Unspecified() // for all without an address
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// PrefixOf is the prefix of a's IP address in a pool: an IPv4 address, or an IPv6 /64, a link. The second result is false if it has none.
func PrefixOf(a ma.Multiaddr) (netip.Prefix, bool) {
	ip, ok := endpoint.IP(a)
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked(), ok
	}
	return Prefix(ip), ok
}

// levels are the widths of groups, the widest first: a provider's /32, a customer's /48, a site's /56, a link's /64.
type levels[T any] [4]T

// site is the level of a Prefix.
const site = 2

// groups are those that a prefix is in; an IPv4 address is its own.
func groups(prefix netip.Prefix) (out levels[netip.Prefix]) {
	for i, bits := range [...]int{32, 48, 56, 64} {
		if out[i] = prefix; prefix.Bits() > bits {
			out[i] = netip.PrefixFrom(prefix.Addr(), bits).Masked()
		}
	}
	return out
}
