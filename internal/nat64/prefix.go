package nat64

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

var (
	// WellKnown is the prefix of networks that name none of their own (RFC 6052, section 2.1).
	WellKnown = netip.MustParsePrefix("64:ff9b::/96") //nolint:gochecknoglobals // a constant
	// LocalUse has prefixes of networks that translate private addresses, too (RFC 8215); most have 96 bits.
	LocalUse = netip.MustParsePrefix("64:ff9b:1::/48") //nolint:gochecknoglobals // a constant
	// lengths are those of prefixes, by the code of RFC 8781.
	lengths = [...]int{96, 64, 56, 48, 40, 32} //nolint:gochecknoglobals // a constant

	// known are the prefixes of networks that this host is in, as far as they are dialed through or have worked, the last one
	// first. Like its routes they are the process's: whoever judges an address has to see through them.
	known atomic.Pointer[[]netip.Prefix] //nolint:gochecknoglobals // see above
)

// mostKnown bounds known.
const mostKnown = 8

// Embed puts an IPv4 address into a prefix (RFC 6052, section 2.2): octet 8 stays zero.
func Embed(p netip.Prefix, v4 netip.Addr) netip.Addr {
	b := p.Masked().Addr().As16()
	i := p.Bits() / 8
	for _, x := range v4.As4() {
		if i == 8 {
			i++
		}
		b[i] = x
		i++
	}
	return netip.AddrFrom16(b)
}

// extract returns the IPv4 address that Embed put into p.
func extract(p netip.Prefix, a netip.Addr) (netip.Addr, bool) {
	if !p.Contains(a) {
		return netip.Addr{}, false
	}
	b, i := a.As16(), p.Bits()/8
	var v4 [4]byte
	for k := range v4 {
		if i == 8 {
			i++
		}
		v4[k] = b[i]
		i++
	}
	out := netip.AddrFrom4(v4)
	return out, Embed(p, out) == a
}

// Inside is the IPv4 address that a leads to through NAT64, or a itself, unmapped.
func Inside(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if !a.Is6() {
		return a
	}
	plain := a.WithZone("")
	all := through()
	if LocalUse.Contains(plain) {
		all = append(all, netip.PrefixFrom(plain, 96).Masked())
	}
	for _, p := range all {
		if v4, ok := extract(p, plain); ok {
			return v4
		}
	}
	return a
}

// through are the prefixes that Inside sees through, apart from those in LocalUse.
func through() []netip.Prefix {
	all := []netip.Prefix{WellKnown}
	if p := known.Load(); p != nil {
		all = append(all, *p...)
	}
	return all
}

// Behind are the prefixes whose addresses lead to v4's hosts, by what Inside sees through, apart from those in LocalUse.
func Behind(v4 netip.Prefix) (out []netip.Prefix) {
	for _, p := range through() {
		bits := p.Bits() + v4.Bits()
		if p.Bits() <= 64 && bits > 64 { // octet 8
			bits += 8
		}
		out = append(out, netip.PrefixFrom(Embed(p, v4.Masked().Addr()), bits))
	}
	return out
}

// learn adds a prefix to those that Inside sees through.
func learn(p netip.Prefix) {
	for {
		old := known.Load()
		var all []netip.Prefix
		if old != nil {
			all = *old
		}
		if p == WellKnown || slices.Contains(all, p) {
			return
		}
		all = append([]netip.Prefix{p}, all[:min(len(all), mostKnown-1)]...)
		if known.CompareAndSwap(old, &all) {
			return
		}
	}
}

// forget removes a prefix from those: what it holds are hosts of IPv6 again.
func forget(p netip.Prefix) {
	for {
		old := known.Load()
		if old == nil || !slices.Contains(*old, p) {
			return
		}
		all := slices.DeleteFunc(slices.Clone(*old), func(x netip.Prefix) bool { return x == p })
		if known.CompareAndSwap(old, &all) {
			return
		}
	}
}

// usable reports whether p can be a NAT64's prefix on a host with these addresses. One that holds the host itself would take its
// neighbours for IPv4 hosts.
func usable(p netip.Prefix, own []netip.Addr) bool {
	a := p.Addr()
	return slices.Contains(lengths[:], p.Bits()) && a.Is6() && !a.Is4In6() && a.IsGlobalUnicast() && a.As16()[8] == 0 &&
		!slices.ContainsFunc(own, p.Contains)
}

// public reports whether NAT64 may lead to an IPv4 address: one of the internet (RFC 6052, section 3.1). Addresses of Services,
// of pods and of sites are private, or shared.
func public(a netip.Addr) bool {
	return a.Is4() && a.IsGlobalUnicast() && !a.IsPrivate() && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}

// special are the other ranges that are nobody's on the internet (RFC 6890).
var special = []netip.Prefix{ //nolint:gochecknoglobals // a constant
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"),
}
