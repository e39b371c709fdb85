package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
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
	relays   []mesh.Relay   // the cluster's
	// controllers write what the API does not take from this node.
	controllers []mesh.PeerID
	// allocator: some Node has podCIDRs that count, so the cluster gives out blocks itself.
	allocator bool
}

// registration is what is known about this node; self is how the API lists it;
// state has the kept members, too.
func (k *known) registration(o objects, state mesh.State, self mesh.Node) want {
	name := k.cfg.NodeName
	w := want{
		node:      k.feed.whole(k.node(name)),
		mesh:      o.meshNodes[name],
		network:   o.network,
		ranges:    state.PodCIDRs,
		blocks:    self.PodCIDRs,
		complete:  o.plugins.Complete,
		plugin:    o.plugins.Inside(state.PodCIDRs, name),
		allocator: slices.ContainsFunc(o.nodes, func(n *api.Node) bool { return !mustClaim(n, state.PodCIDRs) }),
		used:      &blockSet{},
		relays:    state.Relays, controllers: state.Controllers,
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
		p, err := b.Prefix()
		if err != nil {
			continue // reported by resolve
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

// again requests another round after a while; nothing failed.
type again struct{ after time.Duration }

func (a again) Error() string { return fmt.Sprintf("in %v", a.after) }

// sift joins the failures among errs; without any, it requests another round as soon as
// the first of errs wants one.
func sift(errs ...error) error {
	var failed []error
	var soonest error
	least := time.Duration(0)
	for _, err := range errs {
		var later again
		switch {
		case err == nil:
		case !errors.As(err, &later):
			failed = append(failed, err)
		case soonest == nil || later.after < least:
			soonest, least = later, later.after
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	return soonest
}
