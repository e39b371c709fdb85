package diagnose

import (
	"strings"

	"edgemesh/agent/control"
	"edgemesh/agent/findings"
	"edgemesh/internal/wording"
)

// Pools judges how many addresses are left for pods. Those kept for deleted pods are given away when no other is free, so
// they count as free.
func Pools(all []control.Pool) []findings.Finding {
	const remedy = "delete pods of this node, and lower maxPods of its kubelet so that the next ones go elsewhere; `edgemesh-cni ipam list` shows who has the " +
		"addresses. With a membership file, add a block to the node's podCIDRs"
	var out []findings.Finding
	for _, p := range all {
		blocks := strings.Join(p.Blocks, ", ")
		used := uint64(max(0, p.Used))
		switch {
		case used >= p.Size:
			out = append(out, findings.Brokenf("pool", remedy, "pods use every address of %s (%s): new pods get none", blocks, wording.Number(p.Size)))
		case used*10 >= p.Size*9:
			out = append(out, findings.Warningf("pool", remedy, "%s of %s addresses of %s are used by pods", wording.Number(used), wording.Number(p.Size), blocks))
		default:
			out = append(out, findings.Okayf("pool", "%s of %s addresses of %s are used by pods, %s kept for deleted ones", wording.Number(used), wording.Number(p.Size), blocks, wording.Number(p.Kept)))
		}
	}
	return out
}
