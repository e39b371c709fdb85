package nat64

import "net/netip"

// Name has IPv4 addresses alone, so that an IPv6 one in an answer was made by DNS64 (RFC 7050).
const Name = "ipv4only.arpa"

// wellKnown are the addresses of Name.
var wellKnown = [...]netip.Addr{netip.AddrFrom4([4]byte{192, 0, 0, 170}), netip.AddrFrom4([4]byte{192, 0, 0, 171})} //nolint:gochecknoglobals // a constant

// byNames returns the prefixes in an answer for Name. An address that has one of the well-known ones at several places says
// nothing (RFC 7050, section 3), nor does one without.
func byNames(all []netip.Addr) (out []netip.Prefix) {
	for _, a := range all {
		if !a.Is6() || a.Is4In6() {
			continue
		}
		var found []netip.Prefix
		for _, bits := range lengths {
			p := netip.PrefixFrom(a, bits).Masked()
			if v4, _ := extract(p, a); v4 == wellKnown[0] || v4 == wellKnown[1] {
				found = append(found, p)
			}
		}
		if len(found) == 1 {
			out = append(out, found[0])
		}
	}
	return out
}
