package kube

import (
	"net/netip"
	"slices"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// MostBlocks is how many PodBlocks of each IP version count for a node: the first ones by the API server's clock. A node
// needs one. It may have a second one for a while: a claim whose answer was lost, or a block of a range that the PodNetwork
// listed before and lists again. Whoever claims more, with the node's credentials, wants the addresses of others.
const MostBlocks = 2

// SplitBlocks divides blocks, of any nodes, into those that count and the surplus. Agents and relays make routes of the first
// alone, and the controller deletes the others: all of them get the same result, in whatever order they received the blocks.
// Blocks that are being deleted are in neither, nor the first ones that are outside ranges or no blocks at all: API servers before
// Kubernetes 1.31 take these. Both results are in order of creation.
func SplitBlocks(blocks []*api.PodBlock, ranges []netip.Prefix) (count, surplus []*api.PodBlock) {
	sorted := slices.SortedFunc(slices.Values(blocks), func(a, b *api.PodBlock) int { return a.Meta.Older(&b.Meta) })
	type holder struct {
		node   string
		v6     bool
		counts bool
	}
	has := map[holder]int{}
	for _, b := range sorted {
		if b.Meta.DeletionTimestamp != nil {
			continue
		}
		p, err := b.Prefix()
		h := holder{b.Spec.NodeName, p.Addr().Is6(), err == nil && mesh.Inside(ranges, p)}
		has[h]++
		switch {
		case has[h] > MostBlocks:
			surplus = append(surplus, b)
		case h.counts:
			count = append(count, b)
		}
	}
	return count, surplus
}

// Hoarders are the nodes that have blocks in surplus, sorted.
func Hoarders(surplus []*api.PodBlock) []string {
	var out []string
	for _, b := range surplus {
		out = append(out, b.Spec.NodeName)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
