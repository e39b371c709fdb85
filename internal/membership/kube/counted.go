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
// Blocks that are being deleted or are outside ranges are in neither. Both results are in order of creation.
func SplitBlocks(blocks []*api.PodBlock, ranges []netip.Prefix) (count, surplus []*api.PodBlock) {
	sorted := slices.SortedFunc(slices.Values(blocks), func(a, b *api.PodBlock) int { return a.Meta.Older(&b.Meta) })
	type holder struct {
		node string
		v6   bool
	}
	has := map[holder]int{}
	for _, b := range sorted {
		p, err := netip.ParsePrefix(b.Spec.CIDR)
		if err != nil || b.Meta.DeletionTimestamp != nil || !mesh.Inside(ranges, p) {
			continue
		}
		h := holder{b.Spec.NodeName, p.Addr().Is6()}
		if has[h]++; has[h] <= MostBlocks {
			count = append(count, b)
		} else {
			surplus = append(surplus, b)
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
