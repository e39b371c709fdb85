package decide

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"edgemesh/internal/membership/mesh"
)

const (
	vxlanSlot   = mesh.ProbeSlots - 1 // native candidates have the others
	vxlanCost4  = 50                  // bytes: Ethernet 14, VXLAN 8, UDP 8, IPv4 20 (RFC 7348)
	vxlanCost6  = 70                  // the same in IPv6
	minMTU      = 1280                // RFC 8200 section 5; less is not worth it
	maxNative   = mesh.ProbeSlots - 1
	biggestPath = mesh.PodMTU
)

// candidate is one possible path to a peer.
type candidate struct {
	v6    bool // of the pods
	kind  mesh.PathKind
	slot  int
	local netip.Addr
	link  string // that has local; unused for VXLAN
	via   netip.Addr
	mac   MAC // of the link that has via; none where VXLAN may be routed
	mtu   int // bytes
}

// trackKey names a candidate in packets.
type trackKey struct {
	v6   bool
	slot int
}

// version is an IP version's place in an array of both.
func version(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

func (c candidate) key() trackKey { return trackKey{c.v6, c.slot} }

// global reports whether only the probes' hop limit shows that both ends are on one link: the addresses are not private.
func (c candidate) global() bool { return mesh.GlobalUnderlay(c.via) }

// same reports whether c and o are the same path.
func (c candidate) same(o candidate) bool {
	c.slot, o.slot = 0, 0
	return c == o
}

func (c candidate) String() string {
	if c.kind == mesh.VXLAN {
		return fmt.Sprintf("vxlan to %s", c.via)
	}
	return fmt.Sprintf("%s on %s", c.via, c.link)
}

// pair is an address of ours and one of the peer's.
type pair struct{ us, them Address }

// candidates lists the possible paths between two offers, the same on both sides except
// for the point of view. low says that our peer ID is the lower one, uplinks has the links
// of our addresses, v4 and v6 say which pods both nodes have. round is that of the
// initiator's offer.
func candidates(us, them Offer, uplinks []mesh.Uplink, low bool, round int, v4, v6 bool) []candidate {
	var out []candidate
	if us.PodsOnly != them.PodsOnly { // one end would drop what the other one sends
		return out
	}
	pairs := pairsOf(us, them, low)
	for _, pods := range []struct{ v6, there bool }{{false, v4}, {true, v6}} {
		if !pods.there {
			continue
		}
		if us.NoNative == "" && them.NoNative == "" {
			out = append(out, nativeCandidates(append(slices.Clone(pairs), globalPairs(us, them, low, true)...), uplinks, pods.v6)...)
		}
		if us.NoVXLAN == "" && them.NoVXLAN == "" && us.VXLANPort == them.VXLANPort && us.VXLANIPv6 == them.VXLANIPv6 {
			if c, ok := vxlanCandidate(pairs, us, round, pods.v6); ok {
				out = append(out, c)
			}
		}
	}
	return out
}

// pairsOf lists all pairs of one IP version whose addresses differ, in an order that
// both sides agree on: those on a common prefix first, IPv4 first.
func pairsOf(us, them Offer, low bool) []pair {
	has := func(o Offer, a netip.Addr) bool {
		return slices.ContainsFunc(o.Addrs, func(x Address) bool { return x.Addr == a })
	}
	var out []pair
	for _, a := range us.Addrs {
		for _, b := range them.Addrs {
			if a.Addr.Is4() == b.Addr.Is4() && !has(us, b.Addr) && !has(them, a.Addr) {
				out = append(out, pair{a, b})
			}
		}
	}
	rank := func(p pair) int {
		r := 0
		if !p.onLink() {
			r += 2
		}
		if p.us.Addr.Is6() {
			r++
		}
		return r
	}
	slices.SortFunc(out, func(x, y pair) int {
		x1, x2, y1, y2 := x.us, x.them, y.us, y.them
		if !low {
			x1, x2, y1, y2 = x2, x1, y2, y1
		}
		return cmp.Or(cmp.Compare(rank(x), rank(y)), x1.Addr.Compare(y1.Addr), x2.Addr.Compare(y2.Addr))
	})
	return out
}

// globalPairs lists the pairs of global addresses on a common prefix, of trusted networks or of others.
func globalPairs(us, them Offer, low, trusted bool) []pair {
	trust := us.trust
	us.Addrs, them.Addrs = us.Global, them.Global
	return slices.DeleteFunc(pairsOf(us, them, low), func(p pair) bool {
		return !p.onLink() || trust.Covers(p.us.Addr, p.them.Addr) != trusted
	})
}

// onLink reports whether each address is inside the other's prefix.
func (p pair) onLink() bool {
	return netip.PrefixFrom(p.us.Addr, p.us.Bits).Masked().Contains(p.them.Addr) &&
		netip.PrefixFrom(p.them.Addr, p.them.Bits).Masked().Contains(p.us.Addr)
}

// cloned reports whether the two links have the same MAC, as machines cloned from one
// image may: no frame gets from one to the other.
func (p pair) cloned() bool { return p.us.MAC == p.them.MAC && p.us.MAC != MAC{} }

// nativeCandidates are the first few pairs on a common prefix.
func nativeCandidates(pairs []pair, uplinks []mesh.Uplink, v6 bool) []candidate {
	var out []candidate
	slot := -1
	for _, p := range pairs {
		if !p.onLink() || v6 && p.us.Addr.Is4() {
			continue
		}
		if slot++; slot == maxNative { // the same pair has the same slot on both sides
			break
		}
		i := slices.IndexFunc(uplinks, func(u mesh.Uplink) bool { return u.Addr == p.us.Addr })
		mtu := min(biggestPath, p.us.MTU, p.them.MTU)
		if i < 0 || mtu < minMTU || p.us.MAC == (MAC{}) || p.them.MAC == (MAC{}) || p.cloned() {
			continue
		}
		out = append(out, candidate{v6: v6, kind: mesh.Native, slot: slot, local: p.us.Addr, link: uplinks[i].Link, via: p.them.Addr, mac: p.them.MAC, mtu: mtu})
	}
	return out
}

// vxlanCandidate is one pair, in each round another one.
func vxlanCandidate(pairs []pair, us Offer, round int, v6 bool) (candidate, bool) {
	ways := vxlanPairs(pairs, us)
	if len(ways) == 0 {
		return candidate{}, false
	}
	p := ways[round%len(ways)]
	cost := vxlanCost4
	if us.VXLANIPv6 {
		cost = vxlanCost6
	}
	mtu := min(biggestPath, min(p.us.MTU, p.them.MTU)-cost)
	if mtu < minMTU {
		return candidate{}, false
	}
	return candidate{v6: v6, kind: mesh.VXLAN, slot: vxlanSlot, local: p.us.Addr, via: p.them.Addr, mac: p.mac, mtu: mtu}, true
}

// vxlanPair is a pair for VXLAN, whose outer packets must come from mac, unless that is zero.
type vxlanPair struct {
	pair
	mac MAC
}

// vxlanPairs are those of the underlay's IP version: on one link, where the MAC proves the sender as it does for native
// paths, and those that the membership trusts, whatever carries them. Those on one link come first.
func vxlanPairs(pairs []pair, us Offer) (out []vxlanPair) {
	for _, p := range pairs {
		if p.us.Addr.Is6() == us.VXLANIPv6 && p.onLink() && !p.cloned() && p.us.MAC != (MAC{}) && p.them.MAC != (MAC{}) {
			out = append(out, vxlanPair{p, p.them.MAC})
		}
	}
	for _, p := range pairs {
		if p.us.Addr.Is6() == us.VXLANIPv6 && us.trust.Covers(p.us.Addr, p.them.Addr) {
			out = append(out, vxlanPair{pair: p})
		}
	}
	return out
}

// untrusted is a pair that VXLAN is not tried on, or fails on, because the membership trusts no network with both, and why it
// needs that.
func (p *peer) untrusted() (x pair, why string) {
	us, them := p.us, p.them
	if us.NoVXLAN != "" || them.NoVXLAN != "" || us.VXLANPort != them.VXLANPort || us.VXLANIPv6 != them.VXLANIPv6 {
		return x, ""
	}
	pairs := pairsOf(us, them, p.low)
	proved := vxlanPairs(pairs, us)
	if slices.ContainsFunc(proved, func(x vxlanPair) bool { return x.mac == MAC{} }) {
		return x, ""
	}
	if len(proved) > 0 {
		failed := false
		for _, v6 := range []bool{false, true} {
			t := p.tracks[trackKey{v6, vxlanSlot}]
			failed = failed || t != nil && t.why != "" && !t.lost
		}
		for _, t := range p.tracks { // the kernel knows better
			failed = failed && (t.c.via != proved[0].them.Addr || t.why != Unresolved && t.why != Filtered)
		}
		if !failed {
			return x, ""
		}
		return proved[0].pair, "something between %s and %s may put its own MAC into packets (a repeater, a cloud's subnet)"
	}
	i := slices.IndexFunc(pairs, func(x pair) bool { return x.us.Addr.Is6() == us.VXLANIPv6 })
	switch {
	case i < 0:
		return x, ""
	case !pairs[i].onLink():
		why = "%s and %s are not on one link"
	case pairs[i].cloned():
		why = "%s and %s have the same MAC (cloned machines)"
	default:
		why = "the links of %s and %s have no MACs"
	}
	return pairs[i], why
}
