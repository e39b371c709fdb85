package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/agent/kube/api"
	"edgemesh/agent/mesh"
)

// pluginKinds are where other network plugins with an allocator of their own keep
// which blocks their nodes have. They are followed as soon as a node's pods are kept
// by another plugin. Flannel and kindnet use Node.spec.podCIDRs.
func pluginKinds() []kind {
	return []kind{
		{name: "blockaffinities", kind: "BlockAffinity", group: "crd.projectcalico.org", version: "v1", foreign: true,
			new: func() api.Object { return new(api.BlockAffinity) }},
		{name: "ciliumnodes", kind: "CiliumNode", group: "cilium.io", version: "v2", foreign: true,
			new: func() api.Object { return new(api.CiliumNode) }},
	}
}

// pluginAnnotations picks from a Node's annotations those that tell of a network
// plugin, see the package cni/detect.
func pluginAnnotations(all map[string]string) map[string]string {
	var out map[string]string
	for k, v := range all {
		if slices.ContainsFunc([]string{"flannel.alpha.coreos.com/", "projectcalico.org/", "network.cilium.io/", "io.cilium.network."},
			func(prefix string) bool { return strings.HasPrefix(k, prefix) }) {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}

// Annotations are those of the own Node that tell of network plugins, as last heard;
// nil before anything was. It may be called at any time.
func (s *Source) Annotations() map[string]string {
	if a := s.annotations.Load(); a != nil {
		return *a
	}
	return nil
}

// store finds the store of a kind.
func (l *loop) store(k kind) *store {
	return cmp.Or(l.stores[k.name], l.plugins[k.name])
}

// lookAtPlugins adds to o what is known of other plugins' blocks. They are first
// asked for when a node needs them.
func (l *loop) lookAtPlugins(o *objects) {
	if n := find[*api.Node](l.stores["nodes"], l.cfg.NodeName); n != nil {
		l.annotations.Store(&n.Meta.Annotations)
	}
	needed := l.cfg.Keep
	for _, m := range o.meshNodes {
		needed = needed || m.Kept()
	}
	if needed && !l.follows && l.follow != nil {
		l.follows = true
		for _, k := range pluginKinds() {
			l.follow(k)
		}
	}
	o.settled, o.plugin = true, map[string][]netip.Prefix{}
	if !needed {
		return
	}
	for name, st := range l.plugins {
		o.settled = o.settled && (st.listed || st.absent)
		o.doubt = o.doubt || l.troubles[name] != nil
	}
	each(l.plugins["blockaffinities"], func(b *api.BlockAffinity) {
		if b.Meta.DeletionTimestamp == nil && b.Confirmed() {
			o.addPlugin(b.Spec.Node, b.Spec.CIDR)
		}
	})
	each(l.plugins["ciliumnodes"], func(n *api.CiliumNode) { o.addPlugin(n.Meta.Name, n.CIDRs()...) })
}

// addPlugin notes blocks of a node; what is no prefix is another plugin's to mend.
func (o *objects) addPlugin(node string, cidrs ...string) {
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil {
			o.plugin[node] = append(o.plugin[node], p.Masked())
		}
	}
	slices.SortFunc(o.plugin[node], comparePrefix)
	o.plugin[node] = slices.Compact(o.plugin[node])
}

// pluginBlocks are the blocks of a node whose pods another plugin has. ok is false
// where no plugin tells: such a node has its blocks as any other. Without an answer
// yet, what it had before stands, or it has to wait.
func (r *resolver) pluginBlocks(o objects, base mesh.State, m *api.MeshNode, ranges []netip.Prefix) (list []netip.Prefix, ok bool) {
	if !m.Kept() {
		return nil, false
	}
	if !o.settled {
		for _, n := range base.Nodes {
			if n.Name == m.Meta.Name {
				return n.PodCIDRs, true
			}
		}
		return nil, !o.doubt
	}
	all := o.plugin[m.Meta.Name]
	list = within(all, ranges)
	if len(list) < len(all) {
		r.problem("Node %s: its network plugin gives pods addresses of %v; only what is inside the PodNetwork's podCIDRs %v is carried", m.Meta.Name, all, ranges)
	}
	return list, len(list) > 0
}

// within picks the prefixes that are inside one of ranges.
func within(list, ranges []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return contains(r, p) }) {
			out = append(out, p)
		}
	}
	return out
}

// miss notes an API server's word that there is no such kind, or that it is kept
// from us. It reports whether that is news. What was read before stays unless the
// kind is gone.
func (s *store) miss(why error) bool {
	news := !s.absent
	s.absent = true
	if apierrors.IsNotFound(why) && len(s.items) > 0 {
		clear(s.items)
		news = true
	}
	return news
}
