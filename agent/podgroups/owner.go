package podgroups

import (
	"maps"
	"net/netip"

	"edgemesh/internal/membership/mesh"
)

// SetBlocks takes the blocks of the members of s, whose pods' addresses are inside. Nothing is done where these are as before.
func (p *Peers) SetBlocks(s mesh.State) {
	blocks, lengths := map[netip.Prefix]string{}, map[int]bool{}
	for _, n := range s.Nodes {
		for _, b := range n.PodCIDRs {
			blocks[b.Masked()], lengths[b.Bits()] = n.Name, true
		}
	}
	if p.blocks != nil && maps.Equal(blocks, p.blocks) {
		return
	}
	p.blocks = blocks
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
