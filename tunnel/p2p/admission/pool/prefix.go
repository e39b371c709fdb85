package pool

import (
	"net/netip"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Prefix is the prefix that counts as one address: an IPv4 address, or an IPv6 /56, which a site gets from its provider.
func Prefix(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 56
	switch {
	case a.Is4():
		bits = 32
	case !a.IsValid():
		a = netip.IPv6Unspecified() // for all without an address
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// PrefixOf is the Prefix of a's IP address. The second result is false if it has none.
func PrefixOf(a ma.Multiaddr) (netip.Prefix, bool) {
	raw, err := manet.ToIP(a)
	if err != nil {
		return Prefix(netip.Addr{}), false
	}
	ip, ok := netip.AddrFromSlice(raw)
	return Prefix(ip), ok
}

// levels are the widths of groups, the widest first: a provider's /32, a customer's /48, a site's /56.
type levels[T any] [3]T

// groups are those that a prefix is in; an IPv4 address is its own.
func groups(prefix netip.Prefix) levels[netip.Prefix] {
	if !prefix.Addr().Is6() {
		return levels[netip.Prefix]{prefix, prefix, prefix}
	}
	return levels[netip.Prefix]{netip.PrefixFrom(prefix.Addr(), 32).Masked(), netip.PrefixFrom(prefix.Addr(), 48).Masked(), prefix}
}
