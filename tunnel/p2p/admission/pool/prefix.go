package pool

import (
	"net/netip"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// Site is the prefix that counts as one address: an IPv4 address, or an IPv6 /56, which a site gets from its provider.
func Site(a netip.Addr) netip.Prefix {
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

// SiteOf is the Site of a's IP address. The second result is false if it has none.
func SiteOf(a ma.Multiaddr) (netip.Prefix, bool) {
	raw, err := manet.ToIP(a)
	if err != nil {
		return Site(netip.Addr{}), false
	}
	ip, ok := netip.AddrFromSlice(raw)
	return Site(ip), ok
}

// wide is the IPv6 /48 around a site: it has 256 sites, and may be one customer's.
func wide(site netip.Prefix) (netip.Prefix, bool) {
	if !site.Addr().Is6() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(site.Addr(), 48).Masked(), true
}
