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

// wide is the IPv6 /48 around a prefix: it has 256 prefixes, and may be one customer's.
func wide(prefix netip.Prefix) (netip.Prefix, bool) {
	if !prefix.Addr().Is6() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(prefix.Addr(), 48).Masked(), true
}
