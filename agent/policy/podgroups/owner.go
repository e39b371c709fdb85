package podgroups

import (
	"maps"
	"net/netip"

	"edgemesh/internal/membership/mesh"
)

// SetState takes the blocks of the members of s, whose pods' addresses are inside, and whether static pods count. Nothing is done where
// these are as before.
func (p *Peers) SetState(s mesh.State) {
	blocks, lengths := map[netip.Prefix]string{}, map[int]bool{}
	for _, n := range s.Nodes {
		for _, b := range n.PodCIDRs {
			blocks[b.Masked()], lengths[b.Bits()] = n.Name, true
		}
	}
	mirrors := s.MirrorPods == mesh.MirrorAllow
	if p.blocks != nil && maps.Equal(blocks, p.blocks) && mirrors == p.mirrors {
		return
	}
	p.blocks, p.mirrors = blocks, mirrors
	p.Owner = func(a netip.Addr) string {
		for bits := range lengths { // blocks do not overlap
			if p, err := a.Prefix(bits); err == nil && blocks[p] != "" {
				return blocks[p]
			}
		}
		return ""
	}
	p.Reconsider()
}
