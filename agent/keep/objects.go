package keep

import "edgemesh/agent/kube/api"

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

var (
	_ api.Object = (*BlockAffinity)(nil)
	_ api.Object = (*CiliumNode)(nil)
)
