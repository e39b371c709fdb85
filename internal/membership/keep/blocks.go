package keep

import (
	"net/netip"
	"slices"
	"strings"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// Kinds are the objects in which network plugins with their own allocator say which blocks
// their nodes have. They are watched once any node keeps its plugin.
func Kinds() []api.Kind {
	return []api.Kind{
		{Name: "blockaffinities", Kind: "BlockAffinity", Group: "crd.projectcalico.org", Version: "v1", Foreign: true,
			New: func() api.Object { return new(BlockAffinity) }},
		{Name: "ciliumnodes", Kind: "CiliumNode", Group: "cilium.io", Version: "v2", Foreign: true,
			New: func() api.Object { return new(CiliumNode) }},
	}
}

// MeteredAnnotation says true or false of whether each byte on a node's uplink is paid for.
const MeteredAnnotation = "network.edgemesh.io/metered"

// Annotations picks from a Node's annotations those of network plugins, see the
// package internal/cni/detect, and MeteredAnnotation.
func Annotations(all map[string]string) map[string]string {
	var out map[string]string
	for k, v := range all {
		if slices.ContainsFunc([]string{"flannel.alpha.coreos.com/", "projectcalico.org/", "network.cilium.io/", "io.cilium.network.", MeteredAnnotation},
			func(prefix string) bool { return strings.HasPrefix(k, prefix) }) {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}

// Blocks are those that other plugins have given to nodes. The zero value is empty.
type Blocks struct {
	byNode map[string][]netip.Prefix
	// Complete: every kind was read, or does not exist. Failing: one cannot be read now.
	Complete, Failing bool
}

// Add records the blocks in o. It ignores what is not a prefix, which the other plugin must
// correct.
func (b *Blocks) Add(o api.Object) {
	switch o := o.(type) {
	case *BlockAffinity:
		if o.Meta.DeletionTimestamp == nil && o.Confirmed() {
			b.add(o.Spec.Node, o.Spec.CIDR)
		}
	case *CiliumNode:
		b.add(o.Meta.Name, o.CIDRs()...)
	}
}

func (b *Blocks) add(node string, cidrs ...string) {
	if b.byNode == nil {
		b.byNode = map[string][]netip.Prefix{}
	}
	list := b.byNode[node]
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil {
			list = append(list, p.Masked())
		}
	}
	slices.SortFunc(list, mesh.ComparePrefix)
	b.byNode[node] = slices.Compact(list)
}

// Of returns all blocks of a node.
func (b Blocks) Of(node string) []netip.Prefix { return b.byNode[node] }

// Inside returns the blocks of a node that are inside one of ranges.
func (b Blocks) Inside(ranges []netip.Prefix, node string) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(b.byNode[node]), func(p netip.Prefix) bool { return !mesh.Inside(ranges, p) })
}

// Choose returns the blocks of a node that keeps its plugin. ok is false where no
// plugin gives it any: its blocks then come from where every node's do. As long as the
// plugins' lists are not complete, the blocks it had before stay, or it waits.
func (b Blocks) Choose(ranges []netip.Prefix, node string, had []netip.Prefix) (list []netip.Prefix, ok bool) {
	if !b.Complete {
		return had, had != nil || !b.Failing
	}
	list = b.Inside(ranges, node)
	return list, len(list) > 0
}

// BlockAffinity is crd.projectcalico.org/v1 (libcalico-go, lib/apis): Calico's
// allocator has bound a block to a node.
type BlockAffinity struct {
	Meta api.Meta          `json:"metadata"`
	Spec BlockAffinitySpec `json:"spec"`
}

// BlockAffinitySpec says whose block it is, and whether that is final.
type BlockAffinitySpec struct {
	State   string `json:"state"` // confirmed, pending or pendingDeletion
	Node    string `json:"node"`
	CIDR    string `json:"cidr"`
	Deleted string `json:"deleted"` // "true" while it is given up
}

// Confirmed reports whether addresses of the block may be in use on its node.
func (b *BlockAffinity) Confirmed() bool {
	return b.Spec.State == "confirmed" && b.Spec.Deleted != "true"
}

// CiliumNode is cilium.io/v2 (pkg/k8s/apis/cilium.io/v2, pkg/ipam/types): what
// Cilium's operator gave the node of that name.
type CiliumNode struct {
	Meta api.Meta       `json:"metadata"`
	Spec CiliumNodeSpec `json:"spec"`
}

// CiliumNodeSpec has the blocks of the IPAM modes cluster-pool and kubernetes, and
// those of multi-pool.
type CiliumNodeSpec struct {
	IPAM struct {
		PodCIDRs []string `json:"podCIDRs"`
		Pools    struct {
			Allocated []struct {
				CIDRs []string `json:"cidrs"`
			} `json:"allocated"`
		} `json:"pools"`
	} `json:"ipam"`
}

// CIDRs lists all blocks.
func (n *CiliumNode) CIDRs() []string {
	out := n.Spec.IPAM.PodCIDRs
	for _, p := range n.Spec.IPAM.Pools.Allocated {
		out = append(out[:len(out):len(out)], p.CIDRs...)
	}
	return out
}

// Metadata implements api.Object.
func (b *BlockAffinity) Metadata() *api.Meta { return &b.Meta }

// Metadata implements api.Object.
func (n *CiliumNode) Metadata() *api.Meta { return &n.Meta }
