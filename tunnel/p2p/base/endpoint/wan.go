package endpoint

import (
	"net"
	"net/netip"

	manet "github.com/multiformats/go-multiaddr/net"
)

// TreatAsPublic makes libp2p treat private ranges as public, for clusters whose nodes meet on a private network such as a
// company's WAN: it takes prefixes out of go-multiaddr's table of private networks,
// which identify, hole punching and reservations consult. The table
// is the process's: call it once, before the host is made. It returns the
// prefixes that have no effect: for IPv6 go-multiaddr has no such table, only
// 2000::/3 is public there.
func TreatAsPublic(prefixes []netip.Prefix) (ignored []netip.Prefix) {
	table := manet.Private4
	for _, p := range prefixes {
		if !p.Addr().Is4() {
			ignored = append(ignored, p)
			continue
		}
		table = without(table, p.Masked())
	}
	manet.Private4 = table
	return ignored
}

// without returns table less the addresses of p.
func without(table []*net.IPNet, p netip.Prefix) []*net.IPNet {
	var out []*net.IPNet
	for _, n := range table {
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			out = append(out, n)
			continue
		}
		bits, _ := n.Mask.Size()
		for _, rest := range subtract(netip.PrefixFrom(ip.Unmap(), bits), p) {
			out = append(out, &net.IPNet{IP: rest.Addr().AsSlice(), Mask: net.CIDRMask(rest.Bits(), rest.Addr().BitLen())})
		}
	}
	return out
}

// subtract returns the prefixes that cover r less p, both masked.
func subtract(r, p netip.Prefix) []netip.Prefix {
	switch {
	case !r.Overlaps(p):
		return []netip.Prefix{r}
	case p.Bits() <= r.Bits():
		return nil
	}
	low := netip.PrefixFrom(r.Addr(), r.Bits()+1)
	b := r.Addr().AsSlice()
	b[r.Bits()/8] |= 0x80 >> (r.Bits() % 8)
	upper, _ := netip.AddrFromSlice(b)
	high := netip.PrefixFrom(upper, r.Bits()+1)
	return append(subtract(low, p), subtract(high, p)...)
}
