package kube

import (
	"net/netip"
	"slices"

	"edgemesh/agent/kube/api"
	"edgemesh/agent/mesh"
)

// want is what the registrar needs to know: about this node, and what its blocks
// depend on.
type want struct {
	node     *api.Node     // own Node, nil: unknown
	mesh     *api.MeshNode // own MeshNode, nil: none
	own      []*api.PodBlock
	network  *api.PodNetwork
	ranges   []netip.Prefix // the cluster's
	blocks   []netip.Prefix // own, as resolved
	plugin   []netip.Prefix // own, as another plugin gives them that has the pods
	complete bool           // plugin is all there is
	prefer   []netip.Prefix // own, as they were
	used     *blockSet      // everybody else's blocks
	orphans  []string       // PodBlocks of nodes that do not exist
	// allocator: some Node has podCIDRs that count, so the cluster gives out blocks itself.
	allocator bool
}

// registration is what is known about this node; self is how the API lists it;
// state has the kept members, too.
func (k *known) registration(o objects, state mesh.State, self mesh.Node) want {
	name := k.cfg.NodeName
	w := want{
		node:      k.node(name),
		mesh:      o.meshNodes[name],
		network:   o.network,
		ranges:    state.PodCIDRs,
		blocks:    self.PodCIDRs,
		complete:  o.plugins.Complete,
		plugin:    o.plugins.Inside(state.PodCIDRs, name),
		allocator: slices.ContainsFunc(o.nodes, func(n *api.Node) bool { return !claims(n, state.PodCIDRs) }),
		used:      &blockSet{},
	}
	exists := map[string]bool{}
	for _, n := range o.nodes {
		exists[n.Meta.Name] = true
		list, _ := prefixes(n.Spec.PodCIDRs) // a bad one is reported by resolve
		for _, p := range list {
			w.used.add(p, n.Meta.Name)
		}
	}
	for _, b := range o.blocks {
		p, err := netip.ParsePrefix(b.Spec.CIDR)
		if err != nil {
			continue
		}
		if b.Spec.NodeName == name {
			w.own = append(w.own, b)
			continue
		}
		w.used.add(p, b.Spec.NodeName)
		if !exists[b.Spec.NodeName] {
			w.orphans = append(w.orphans, b.Meta.Name)
		}
	}
	for _, n := range state.Nodes {
		for _, p := range n.PodCIDRs {
			if n.Name == name {
				w.prefer = append(w.prefer, p)
			} else {
				w.used.add(p, n.Name)
			}
		}
	}
	return w
}
