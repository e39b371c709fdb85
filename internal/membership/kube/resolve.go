package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"edgemesh/internal/membership/file"
	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// objects is what the API holds, as far as is known.
type objects struct {
	nodes     []*api.Node
	meshNodes map[string]*api.MeshNode
	blocks    []*api.PodBlock
	network   *api.PodNetwork // nil: not known
	plugins   keep.Blocks     // those of nodes that keep another network plugin
}

// resolve turns objects into a membership. A member has a Node, a MeshNode of
// that name, and a block that nobody else has; what contradicts itself is left
// out and named in problems, so that one wrong object costs one node, not the whole
// network. base has the cluster's settings where there is no PodNetwork.
func resolve(o objects, base mesh.State) (mesh.State, []string) {
	s := base
	s.Nodes, s.Signed, s.Signer, s.News = nil, nil, "", nil
	r := resolver{relays: map[mesh.PeerID]bool{}, peers: map[string]string{}}
	if o.network != nil {
		if n, ok := r.network(o.network); ok {
			s = n
		}
		s.Banned, s.AdmitLabel = r.listed(o.network, "banned", o.network.Spec.Banned), r.admitLabel(o.network, base)
		s.Controllers, s.Observers = r.controllers(o.network), r.listed(o.network, "observers", o.network.Spec.Observers)
		s.Signed = slices.Clone(o.network.Spec.Signed)
		s.Signer, s.News = o.network.Status.Signer, slices.Clone(o.network.Status.Signed)
		s.PolicyController = o.network.Status.Policies != nil || o.network.Status.RecordsLease != ""
		s.PolicyNamespaces = o.network.Status.Policies
	}
	known := map[mesh.PeerID]bool{} // members that are relays, as in a snapshot
	for _, n := range base.Nodes {
		known[n.PeerID] = o.network == nil
	}
	for _, x := range s.Relays {
		r.relays[x.PeerID] = !known[x.PeerID]
	}
	counts := map[*api.PodBlock]bool{}
	first, _ := SplitBlocks(o.blocks, s.PodCIDRs)
	for _, b := range first {
		counts[b] = true
	}
	claimed := map[string][]netip.Prefix{}
	for _, b := range o.blocks {
		// What is outside the ranges is refused with the node it is of.
		if p, ok := r.block(b); ok && (counts[b] || !mesh.Inside(s.PodCIDRs, p)) {
			claimed[b.Spec.NodeName] = append(claimed[b.Spec.NodeName], p)
		}
	}
	// Where two claim a block or a peer ID, the one that was first keeps it.
	nodes := slices.Clone(o.nodes)
	slices.SortFunc(nodes, func(a, b *api.Node) int { return a.Meta.Older(&b.Meta) })
	var given, taken, kept []candidate
	r.keys(o.meshNodes)
	for _, n := range nodes {
		m := o.meshNodes[n.Meta.Name]
		if n.Signed != "" {
			s.Signed = append(s.Signed, n.Signed)
		}
		if n.Meta.DeletionTimestamp != nil || m == nil || m.Meta.DeletionTimestamp != nil {
			continue
		}
		if list, ok := r.keptBlocks(o.plugins, base, m, s.PodCIDRs); ok {
			kept = append(kept, candidate{n.Meta.Name, m, list})
		} else if list := r.nodeBlocks(n, s.PodCIDRs); len(list) > 0 {
			given = append(given, candidate{n.Meta.Name, m, list})
		} else if list := claimed[n.Meta.Name]; len(list) > 0 {
			slices.SortFunc(list, mesh.ComparePrefix)
			taken = append(taken, candidate{n.Meta.Name, m, list})
		}
	}
	// The cluster's own allocator comes first: what it gave cannot be changed. Other
	// plugins' come last: their agents write them without our admission policies.
	for _, c := range slices.Concat(given, taken, kept) {
		if n, ok := r.member(c, s.PodCIDRs); ok {
			s.Nodes = append(s.Nodes, n)
		}
	}
	slices.SortFunc(s.Nodes, func(a, b mesh.Node) int { return strings.Compare(a.Name, b.Name) })
	if o.network != nil && o.network.Spec.MemberRelays {
		s.Relays = append(s.Relays, r.memberRelays(s, o.meshNodes)...)
	}
	slices.Sort(r.problems)
	return s, r.problems
}

// candidate is a node that might be a member.
type candidate struct {
	name   string
	mesh   *api.MeshNode
	blocks []netip.Prefix
}

type resolver struct {
	relays   map[mesh.PeerID]bool
	peers    map[string]string // whose a peer ID is
	used     blockSet
	problems []string
}

func (r *resolver) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// network reads the PodNetwork; false keeps the previous one.
func (r *resolver) network(n *api.PodNetwork) (mesh.State, bool) {
	s, err := ReadNetwork(n)
	if err != nil {
		r.problem("PodNetwork %s: %v; the previous one stays in force", n.Meta.Name, err)
		return s, false
	}
	if s.Relays, err = file.ParseRelays(n.Spec.Relays, s.PodCIDRs); err != nil {
		r.problem("PodNetwork %s: %v", n.Meta.Name, err)
	}
	return s, true
}

// ReadNetwork reads a PodNetwork's ranges and access, and checks them: API servers before Kubernetes 1.31 do not.
func ReadNetwork(n *api.PodNetwork) (mesh.State, error) {
	s := mesh.State{Encryption: cmp.Or(mesh.Encryption(n.Spec.Encryption), mesh.EncryptionAuto)}
	s.EnforcerNamespaces = n.Spec.EnforcerNamespaces
	s.MirrorPods = mesh.MirrorPods(n.Spec.MirrorPods)
	s.NetworkPolicy, s.Carrier.Sealed = mesh.NetworkPolicy(n.Spec.NetworkPolicy), mesh.Sealed(n.Spec.Carrier.Sealed)
	var err error
	for _, of := range []struct {
		field   string
		written []string
		read    *[]netip.Prefix
	}{{"podCIDRs", n.Spec.PodCIDRs, &s.PodCIDRs}, {"wanCIDRs", n.Spec.WANCIDRs, &s.WANCIDRs}, {"lan.trusted", n.Spec.LAN.Trusted, &s.LAN.Trusted}} {
		if *of.read, err = canonical(of.field, of.written); err != nil {
			return s, err
		}
	}
	if s.Access, err = file.ParseAccess(n.Spec.HostAccess, n.Spec.HostPorts, n.Spec.PodDenyCIDRs); err != nil {
		return s, err
	}
	if err := s.Validate(); err != nil {
		return s, err
	}
	for _, p := range s.PodCIDRs {
		if p.Bits() > n.BlockBits(p) {
			return s, fmt.Errorf("podCIDRs: %s is smaller than one block (blockSize, blockSizeIPv6)", p)
		}
	}
	return s, nil
}

// listed reads whom the PodNetwork bans, or lets observe: whatever else is wrong in it, and beside entries that cannot be read.
func (r *resolver) listed(n *api.PodNetwork, field string, written []string) []string {
	list, err := file.ParseIdentities(field, written)
	if err != nil {
		r.problem("PodNetwork %s: %v", n.Meta.Name, err)
	}
	return list
}

// controllers reads whom nodes may reach before they are members: those that the PodNetwork's author names, else those that
// say so themselves, which takes the controllers' own right to write the status.
func (r *resolver) controllers(n *api.PodNetwork) []mesh.PeerID {
	list, err := file.ParseControllers(n.Controllers())
	if err != nil {
		r.problem("PodNetwork %s: %v", n.Meta.Name, err)
	}
	return list
}

// admitLabel reads which label nodes must carry. One that cannot be read leaves those admitted that were.
func (r *resolver) admitLabel(n *api.PodNetwork, base mesh.State) string {
	if err := mesh.CheckAdmitLabel(n.Spec.AdmitLabel); err != nil {
		r.problem("PodNetwork %s: admitLabel: %v; the previous one stays in force", n.Meta.Name, err)
		return base.AdmitLabel
	}
	return n.Spec.AdmitLabel
}

// maxMemberRelays bounds how many nodes count as relays because they say so.
const maxMemberRelays = 32

// memberRelays are the members that say they are relays, under their own peer ID:
// a node cannot make another one a relay.
func (r *resolver) memberRelays(s mesh.State, all map[string]*api.MeshNode) []mesh.Relay {
	var out []mesh.Relay
	for _, n := range s.Nodes {
		m := all[n.Name]
		if m == nil || len(m.Status.RelayAddresses) == 0 || len(out) == maxMemberRelays {
			continue
		}
		var list []string
		for _, a := range m.Status.RelayAddresses[:min(len(m.Status.RelayAddresses), api.MaxRelayAddresses)] {
			list = append(list, a+"/p2p/"+string(n.PeerID))
		}
		relays, err := file.ParseRelays(list, s.PodCIDRs)
		if err != nil {
			r.problem("MeshNode %s: status.relayAddresses: %v", n.Name, err)
		}
		for _, x := range relays {
			if x.PeerID == n.PeerID {
				out = append(out, x)
			}
		}
	}
	return out
}

// keys notes who bound a peer ID first: a node cannot push another one out by copying its
// peer ID.
func (r *resolver) keys(all map[string]*api.MeshNode) {
	for name, m := range all {
		other := all[r.peers[m.Spec.PeerID]]
		if other == nil || m.Meta.Older(&other.Meta) < 0 {
			r.peers[m.Spec.PeerID] = name
		}
	}
}

// block reads a claim. Its name is what makes it unique.
func (r *resolver) block(b *api.PodBlock) (netip.Prefix, bool) {
	p, err := b.Prefix()
	if err != nil {
		r.problem("PodBlock %s: %v", b.Meta.Name, err)
		return p, false
	}
	return p, b.Meta.DeletionTimestamp == nil
}

// nodeBlocks are the blocks that the cluster gave a Node, as far as they count.
func (r *resolver) nodeBlocks(n *api.Node, ranges []netip.Prefix) []netip.Prefix {
	if _, err := prefixes(n.Spec.PodCIDRs); err != nil {
		r.problem("Node %s: %v", n.Meta.Name, err)
	}
	inside, outside := counting(n, ranges)
	for _, b := range outside {
		r.problem("Node %s: podCIDR %s is outside the PodNetwork's podCIDRs %v and does not count", n.Meta.Name, b, ranges)
	}
	return inside
}

// counting separates the podCIDRs of a Node that are inside the pod network from those
// that an allocator with another range gave, which are ignored. If one of them cannot be
// read, all are ignored.
func counting(n *api.Node, ranges []netip.Prefix) (inside, outside []netip.Prefix) {
	list, err := prefixes(n.Spec.PodCIDRs)
	if err != nil {
		return nil, nil
	}
	for _, b := range list {
		if mesh.Inside(ranges, b) {
			inside = append(inside, b)
		} else {
			outside = append(outside, b)
		}
	}
	return inside, outside
}

// keptBlocks are the blocks of a node that keeps another network plugin; ok is false
// if its blocks come from where every node's do.
func (r *resolver) keptBlocks(plugins keep.Blocks, base mesh.State, m *api.MeshNode, ranges []netip.Prefix) (list []netip.Prefix, ok bool) {
	name := m.Meta.Name
	if !m.Kept() {
		return nil, false
	}
	list, ok = plugins.Choose(ranges, name, mesh.ByName(base.Nodes)[name].PodCIDRs)
	if all := plugins.Of(name); plugins.Complete && len(list) < len(all) {
		r.problem("Node %s: its network plugin gives pods addresses of %v; only what is inside the PodNetwork's podCIDRs %v is carried", name, all, ranges)
	}
	return list, ok
}

// mustClaim reports whether a Node has to claim its blocks.
func mustClaim(n *api.Node, ranges []netip.Prefix) bool {
	inside, _ := counting(n, ranges)
	return len(inside) == 0
}

// member checks c against the members before it.
func (r *resolver) member(c candidate, ranges []netip.Prefix) (mesh.Node, bool) {
	id, err := file.ParsePeerID("spec.peerID", c.mesh.Spec.PeerID)
	if err == nil && string(id) != c.mesh.Spec.PeerID {
		err = fmt.Errorf("spec.peerID: write %s as %s", c.mesh.Spec.PeerID, id)
	}
	switch owner := r.peers[c.mesh.Spec.PeerID]; {
	case err != nil:
		r.problem("MeshNode %s: %v", c.name, err)
		return mesh.Node{}, false
	case owner != c.name:
		r.problem("MeshNode %s: peer ID %s belongs to node %s; every node needs its own key", c.name, id, owner)
		return mesh.Node{}, false
	case r.relays[id]:
		r.problem("MeshNode %s: peer ID %s belongs to a relay; an agent and a relay on one host need separate state directories, and a node that is "+
			"itself a relay (relay.enabled) is not listed in the PodNetwork: set memberRelays there", c.name, id)
		return mesh.Node{}, false
	}
	n := mesh.Node{Name: c.name, PeerID: id}
	for _, b := range c.blocks {
		inside := mesh.Inside(ranges, b)
		other, clash := r.used.find(b)
		switch {
		case !inside:
			r.problem("Node %s: block %s is outside the PodNetwork's podCIDRs %v", c.name, b, ranges)
		case b.Addr().BitLen()-b.Bits() < 2:
			r.problem("Node %s: block %s is too small to hold a gateway and a pod", c.name, b)
		case clash && other.node != c.name:
			r.problem("Node %s: block %s overlaps %s of node %s", c.name, b, other.prefix, other.node)
		case clash:
			// the same block twice
		default:
			r.used.add(b, c.name)
			n.PodCIDRs = append(n.PodCIDRs, b)
		}
	}
	return n, len(n.PodCIDRs) > 0
}

// carry notes at which site s's nodes are and which of them carry the label that it requires, or MovedLabel, as the API says now; of those
// that it does not list, what is known stays. It writes s.Nodes.
func carry(s mesh.State, nodes func(name string) *api.Node) {
	admit, _, _ := strings.Cut(s.AdmitLabel, "=")
	for i, m := range s.Nodes {
		n := nodes(m.Name)
		if n == nil {
			continue
		}
		s.Nodes[i].Site, s.Nodes[i].Labels = n.Meta.Labels[mesh.SiteLabel], nil
		for _, key := range []string{admit, mesh.MovedLabel} {
			if value, ok := n.Meta.Labels[key]; ok {
				if s.Nodes[i].Labels == nil {
					s.Nodes[i].Labels = map[string]string{}
				}
				s.Nodes[i].Labels[key] = value
			}
		}
	}
}

// report notes which addresses the named node's kubelet reports, as the API says now. While it reports none, the last ones
// stay: that is how a kubelet behaves that does not find its --node-ip on the host. It writes s.Nodes.
func report(s mesh.State, self string, nodes func(name string) *api.Node, last mesh.State) {
	i := slices.IndexFunc(s.Nodes, func(n mesh.Node) bool { return n.Name == self })
	if i < 0 {
		return // a relay
	}
	was, _ := last.Node(self)
	s.Nodes[i].NodeIPs, s.Nodes[i].Unreported = was.NodeIPs, was.Unreported
	if n := nodes(self); n != nil {
		s.Nodes[i].Report(n.InternalIPs())
	}
}

// merge adds to s the kept members that it lacks, unless they conflict with one it has.
func merge(s mesh.State, kept map[string]keptMember) mesh.State {
	if len(kept) == 0 {
		return s
	}
	var used blockSet
	names, peers := map[string]bool{}, map[mesh.PeerID]bool{}
	for _, r := range s.Relays {
		peers[r.PeerID] = true
	}
	for _, n := range s.Nodes {
		names[n.Name], peers[n.PeerID] = true, true
		for _, b := range n.PodCIDRs {
			used.add(b, n.Name)
		}
	}
	for name, n := range kept {
		clash := names[name] || peers[n.PeerID] || slices.ContainsFunc(n.PodCIDRs, func(b netip.Prefix) bool {
			_, c := used.find(b)
			return c || !mesh.Inside(s.PodCIDRs, b)
		})
		if !clash {
			s.Nodes = append(s.Nodes, n.Node)
		}
	}
	slices.SortFunc(s.Nodes, func(a, b mesh.Node) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// canonical reads the ranges in a field of the PodNetwork. They must be written as every program writes them: API servers before
// Kubernetes 1.31 do not check that.
func canonical(field string, list []string) ([]netip.Prefix, error) {
	out, err := prefixes(list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	for i, p := range out {
		if p.String() != list[i] {
			return nil, fmt.Errorf("%s[%d]: %s is not a CIDR in canonical form, with no bits set beyond its length; did you mean %s?", field, i, list[i], p)
		}
	}
	return out, nil
}

func prefixes(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a prefix in CIDR notation", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
