package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nat64"
)

// Access is one family's part in mesh.Access.
type Access struct {
	Closed bool            // not every pod and node reaches this node's ports
	Nodes  []Match         // the addresses of those who do all the same
	Ports  []mesh.HostPort // open to everyone
	Deny   []netip.Prefix  // what pods do not reach through this node
	Inside []Match         // likewise: what leads to IPv4 addresses of Deny's through NAT64
}

// Match are the addresses that are Addr where Mask has ones. It is written like a prefix, Addr/Mask.
type Match struct{ Addr, Mask netip.Addr }

func (m Match) String() string { return fmt.Sprintf("%s/%s", m.Addr, m.Mask) }

func (m Match) has(a netip.Addr) bool {
	return m.Addr.BitLen() == a.BitLen() && combine(a, m.Mask, func(x, y byte) byte { return x & y }) == m.Addr
}

func accessOf(w mesh.Host, f Family) Access {
	if !f.Wanted {
		return Access{}
	}
	out := Access{Ports: w.Access.HostPorts, Deny: ofVersion(w.Access.PodDenyCIDRs, f.V6)}
	if f.V6 {
		for _, p := range ofVersion(w.Access.PodDenyCIDRs, false) {
			out.Deny = append(out.Deny, nat64.Behind(p)...)
			out.Inside = append(out.Inside, insideLocalUse(p))
		}
	}
	switch w.Access.HostAccess {
	case mesh.HostNone:
		out.Closed = true
	case mesh.HostNodes:
		out.Closed, out.Nodes = true, gatewaysOf(ofVersion(w.Nodes, f.V6), f.Ranges)
	}
	return out
}

// insideLocalUse matches what leads to hosts of an IPv4 prefix through any prefix of 96 bits in nat64.LocalUse.
func insideLocalUse(v4 netip.Prefix) Match {
	low := netip.PrefixFrom(netip.IPv6Unspecified(), 96)
	or := func(x, y byte) byte { return x | y }
	mask := combine(maskOf(nat64.LocalUse.Addr(), nat64.LocalUse.Bits()), nat64.Embed(low, maskOf(v4.Addr(), v4.Bits())), or)
	return Match{Addr: combine(nat64.LocalUse.Addr(), nat64.Embed(low, v4.Addr()), or), Mask: mask}
}

// forwardOf leaves out what is of the cluster's own ranges: those may not come from outside.
func forwardOf(w mesh.Host, f Family) mesh.Forward {
	if !f.Wanted {
		return mesh.Forward{}
	}
	from := slices.DeleteFunc(ofVersion(w.Forward.From, f.V6), func(p netip.Prefix) bool { return slices.ContainsFunc(f.Ranges, p.Overlaps) })
	return mesh.Forward{From: from, Ports: w.Forward.Ports}
}

// gatewaysOf matches the gateways of blocks, and no pod: as many matches as there are ranges where all blocks have one
// length. In a range, each address whose bits behind the shortest length of a block are 1 is the first address of the block
// it is in, whatever that block's length is. Gateways of longer blocks that are not among these have matches of their own.
func gatewaysOf(blocks, ranges []netip.Prefix) (out []Match) {
	for _, r := range ranges {
		in := slices.DeleteFunc(slices.Clone(blocks), func(b netip.Prefix) bool { return !mesh.Inside([]netip.Prefix{r}, b) })
		if len(in) == 0 {
			continue
		}
		shortest := slices.MinFunc(in, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() }).Bits()
		first := Match{Addr: mesh.Gateway(r), Mask: combine(maskOf(r.Addr(), r.Bits()), maskOf(r.Addr(), shortest),
			func(inRange, inBlock byte) byte { return inRange | ^inBlock })}
		out = append(out, first)
		slices.SortFunc(in, mesh.ComparePrefix)
		for _, b := range in {
			if a := mesh.Gateway(b); !first.has(a) {
				out = append(out, Match{a, maskOf(a, a.BitLen())})
			}
		}
	}
	return out
}

// maskOf is a's family's mask of that length.
func maskOf(a netip.Addr, bits int) netip.Addr {
	ones, _ := netip.AddrFromSlice(slices.Repeat([]byte{0xff}, a.BitLen()/8))
	p, _ := ones.Prefix(bits)
	return p.Addr()
}

// combine calls f for the bytes of two addresses of one family.
func combine(a, b netip.Addr, f func(x, y byte) byte) netip.Addr {
	out := a.AsSlice()
	for i, y := range b.AsSlice() {
		out[i] = f(out[i], y)
	}
	c, _ := netip.AddrFromSlice(out)
	return c
}
