package podgroups

import (
	"iter"
	"net/netip"

	"edgemesh/agent/policy"
	"edgemesh/internal/membership/mesh"
)

// Owners says whose block has an address, for the members of s.
func Owners(s mesh.State) func(netip.Addr) string {
	blocks, lengths := map[netip.Prefix]string{}, map[int]bool{}
	for _, n := range s.Nodes {
		for _, b := range n.PodCIDRs {
			blocks[b.Masked()], lengths[b.Bits()] = n.Name, true
		}
	}
	return func(a netip.Addr) string {
		for bits := range lengths { // blocks do not overlap
			if p, err := a.Prefix(bits); err == nil && blocks[p] != "" {
				return blocks[p]
			}
		}
		return ""
	}
}

// Isolated are the namespaces of policies, and in which directions these isolate.
func Isolated(all iter.Seq[policy.Policy]) map[string][2]bool {
	out := map[string][2]bool{}
	for p := range all {
		d, more := out[p.Namespace], p.Isolates()
		out[p.Namespace] = [2]bool{d[0] || more[0], d[1] || more[1]}
	}
	return out
}
