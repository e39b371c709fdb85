package kube

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
)

// known is what is known of the membership: from the snapshot, and then from the API.
// The goroutine that runs the loop owns it. It has no clock but that of disputes; its only I/O is
// history.save.
type known struct {
	cfg     Config
	stores  map[string]*store // by plural
	plugins map[string]*store // the same, of the kinds in the package keep
	history history
	last    mesh.State // handed out last, or the snapshot
	have    bool       // there is a last one
	relist  func(kind string)
	feed    feed
	polled  bool // Nodes are listed from time to time, not watched

	disputes disputes
}

func newKnown(cfg Config) *known {
	k := &known{
		cfg: cfg, stores: map[string]*store{}, plugins: map[string]*store{},
		history: history{stateDir: cfg.StateDir, kept: map[string]keptMember{}},
		relist:  func(string) {}, disputes: newDisputes(cfg.Log),
	}
	for _, x := range api.Kinds() {
		k.stores[x.Name] = newStore(x, k.own)
	}
	for _, x := range keep.Kinds() {
		k.plugins[x.Name] = newStore(x, func(api.Object) bool { return false })
	}
	k.stores["nodes"].vet = k.vet
	k.feed = feed{nodes: k.stores["nodes"], name: cfg.NodeName, own: k.own, readSelf: func() { k.relist(selfKey) }, log: cfg.Log}
	return k
}

// own reports whether o is this node's.
func (k *known) own(o api.Object) bool {
	if b, ok := o.(*api.PodBlock); ok {
		return b.Spec.NodeName == k.cfg.NodeName
	}
	return o.Metadata().Name == k.cfg.NodeName && k.cfg.NodeName != ""
}

// begin starts from a snapshot. Without memory its history is unknown, as if the API
// had lost its data.
func (k *known) begin(snap mesh.State, m *memory) {
	k.last, k.have = snap, true
	k.history.keep(snap.Nodes, func(name string) bool { return m == nil || slices.Contains(m.Retained, name) })
	if m == nil {
		return
	}
	k.history.cluster, k.history.saved, k.history.ids = m.Cluster, *m, m.Objects
	for name, rv := range m.Versions {
		if st, ok := k.stores[name]; ok {
			st.floor = rv
		}
	}
}

// store finds the store of a kind.
func (k *known) store(x api.Kind) *store { return cmp.Or(k.stores[x.Name], k.plugins[x.Name]) }

// node and meshNode return the object of that name, nil if there is none.
func (k *known) node(name string) *api.Node { return find[*api.Node](k.stores["nodes"], name) }
func (k *known) meshNode(name string) *api.MeshNode {
	return find[*api.MeshNode](k.stores["meshnodes"], name)
}

// ids are the UIDs of the objects that make the named member, if the API lists both.
func (k *known) ids(name string) (objectIDs, bool) {
	node, bound := k.node(name), k.meshNode(name)
	if node == nil || bound == nil {
		return objectIDs{}, false
	}
	return objectIDs{Node: node.Meta.UID, Mesh: bound.Meta.UID}, true
}

// takeList takes a list, and notices when the API has another history than the one
// known so far. It reports whether anything changed.
func (k *known) takeList(m listed) bool {
	if isNodes(m.kind) {
		defer k.pruneDisputes()
		if inForce, changed := k.takeNodes(&m); !inForce {
			return changed
		}
	}
	st := k.store(m.kind)
	if m.missing != nil {
		return st.miss(m.missing)
	}
	if m.proof == nil {
		k.cfg.Log.Debug("list is unproved: objects missing from it stay", "kind", m.kind.Name, "items", len(m.items), "reason", m.reason)
		k.history.keepSelf(k.last.Nodes, k.cfg.NodeName)
		return st.setList(m.items, m.rv, false)
	}
	k.cfg.Log.Debug("list is proved", "kind", m.kind.Name, "items", len(m.items), "version", m.rv)
	switch {
	case k.history.cluster == "":
		k.history.cluster = m.proof.cluster
	case k.history.cluster != m.proof.cluster, m.rv < st.floor:
		k.newHistory(m)
	}
	changed := st.setList(m.items, m.rv, true)
	return k.feed.changeOver() || changed
}

// takeNodes takes a list of Nodes or NodeRecords, which it makes one of Nodes. It reports whether k is to take that, too;
// otherwise whether anything changed.
func (k *known) takeNodes(m *listed) (inForce, changed bool) {
	from := m.kind
	asNodes(m)
	another := m.proof != nil && k.history.cluster != "" && (m.proof.cluster != k.history.cluster || m.rv < k.stores["nodes"].floor)
	if another && k.feed.records {
		k.newHistory(*m) // back to Nodes
		return from.Name == m.kind.Name, true
	}
	return k.feed.list(from, m, another)
}

// vet takes out of a Node that a NodeRecord stands for what needs the Node's own word first.
func (k *known) vet(o api.Object) {
	if n, ok := o.(*api.Node); ok && k.feed.records {
		k.disputes.vet(n, k.node(n.Meta.Name), k.last)
	}
}

// pruneDisputes ends the disputes about NodeRecords that are gone or no longer in force.
func (k *known) pruneDisputes() {
	k.disputes.prune(func(name string) bool { return k.feed.records && k.node(name) != nil })
}

// takeVouched takes a Node that was read because of a dispute. It reports whether anything changed.
func (k *known) takeVouched(m vouched) bool {
	defer k.pruneDisputes()
	cur := k.node(m.name)
	blocks, counts := k.disputes.take(m, cur)
	if !counts || !k.feed.records {
		return false
	}
	now := *cur
	now.Spec.PodCIDRs = blocks
	if m.err == nil {
		now.Meta.CreationTimestamp = m.node.Meta.CreationTimestamp
	}
	k.stores["nodes"].items[m.name] = &now
	return true
}

// newHistory starts over: the API's data was lost, restored from a backup, or is
// another cluster's. Nobody leaves because of that.
func (k *known) newHistory(m listed) {
	k.cfg.Log.Warn("the API's data was lost, restored from a backup, or is another cluster's; members it does not list stay until they register again, or until the annotation "+
		api.ForgetAnnotation+" on the PodNetwork names them",
		"cluster", m.proof.cluster, "before", k.history.cluster, "version", m.rv, "known", k.store(m.kind).floor)
	k.history.cluster = m.proof.cluster
	k.history.keep(k.last.Nodes, func(string) bool { return true })
	k.feed.reset()
	for _, all := range []map[string]*store{k.stores, k.plugins} {
		for name, st := range all {
			st.forget()
			if name != m.kind.Name {
				k.relist(name)
			}
		}
	}
}

// takeEvent takes one event of a watch. It reports whether anything changed.
func (k *known) takeEvent(e event) bool {
	if isNodes(e.kind) {
		defer k.pruneDisputes()
		if inForce, changed := k.feed.event(&e); !inForce {
			return changed
		}
	}
	// A deletion is a proof too, if it concerns the member's own object and not an
	// earlier one of that name.
	if e.what == deleted {
		k.history.deleted(e.kind, e.obj.Metadata())
	}
	if k.polled && !k.feed.records && e.kind.Name == "meshnodes" {
		name := e.obj.Metadata().Name
		_, member := k.last.Node(name)
		if known := k.node(name) != nil && (member || e.what == deleted); known == (e.what == deleted) {
			k.relist("nodes") // one has come or gone, or has got its block, and only a list says so
		}
	}
	st := k.store(e.kind)
	if e.kind.Name == "podnetworks" && e.what != deleted && st.listed && !st.proved && len(st.items) == 0 {
		k.relist(e.kind.Name) // the list was empty, which proves nothing; this one can be proved
	}
	changed := st.apply(e)
	return k.feed.changeOver() || changed
}

// allListed reports whether every kind was listed in this history, allProved whether
// every one of these lists is proved.
func (k *known) allListed() bool { return every(k.stores, func(s *store) bool { return s.listed }) }
func (k *known) allProved() bool { return every(k.stores, func(s *store) bool { return s.proved }) }

func every(stores map[string]*store, is func(*store) bool) bool {
	return !slices.ContainsFunc(slices.Collect(maps.Values(stores)), func(s *store) bool { return !is(s) })
}

// relistUnproved requests new lists of the kinds that are unproved so far.
func (k *known) relistUnproved() {
	for name, st := range k.stores {
		if !st.proved {
			k.relist(name)
		}
	}
}

// relistAll requests new lists of all kinds that the membership is made of.
func (k *known) relistAll() {
	for name := range k.stores {
		k.relist(name)
	}
	k.relist(api.NodeRecords().Name)
}

// objects collects what resolve needs. failing says that a kind of another plugin
// cannot be read now.
func (k *known) objects(failing bool) objects {
	o := objects{
		meshNodes: map[string]*api.MeshNode{},
		network:   find[*api.PodNetwork](k.stores["podnetworks"], api.NetworkName),
		plugins:   keep.Blocks{Complete: true},
	}
	each(k.stores["nodes"], func(n *api.Node) { o.nodes = append(o.nodes, n) })
	each(k.stores["meshnodes"], func(m *api.MeshNode) { o.meshNodes[m.Meta.Name] = m })
	each(k.stores["podblocks"], func(b *api.PodBlock) { o.blocks = append(o.blocks, b) })
	if !k.anyKept() {
		return o
	}
	o.plugins.Failing = failing
	for _, st := range k.plugins {
		o.plugins.Complete = o.plugins.Complete && (st.listed || st.absent)
		each(st, o.plugins.Add)
	}
	return o
}

// anyKept reports whether any node keeps another network plugin.
func (k *known) anyKept() bool {
	kept := k.cfg.Keep
	each(k.stores["meshnodes"], func(m *api.MeshNode) { kept = kept || m.Kept() })
	return kept
}

// derive makes the membership out of all that is known. present are the members that the
// API lists, without the kept ones.
func (k *known) derive(o objects) (state mesh.State, present map[string]mesh.Node, problems []string) {
	if k.allProved() {
		k.history.release(o.network)
	}
	found, problems := resolve(o, k.last)
	if found.PolicyProved = k.stores["podnetworks"].proved; !found.PolicyProved && k.have {
		found.NetworkPolicy, found.MirrorPods, found.EnforcerNamespaces = k.last.NetworkPolicy, k.last.MirrorPods, k.last.EnforcerNamespaces // a cache opens no node
	}
	present = mesh.ByName(found.Nodes)
	k.history.back(present)
	state = merge(found, k.history.kept)
	carry(state, k.node)
	report(state, k.cfg.NodeName, func(name string) *api.Node { return k.feed.whole(k.node(name)) }, k.last)
	k.history.identify(state, k.ids)
	return state, present, problems
}

// accept brings state into force. Which history it belongs to is saved first.
func (k *known) accept(state mesh.State) {
	k.save(true)
	k.disputes.left(k.last.Nodes, state.Nodes)
	k.last, k.have = state, true
}

// save keeps the membership's history across restarts, see history.save.
func (k *known) save(always bool) {
	versions := map[string]uint64{}
	for name, st := range k.stores {
		if st.floor > 0 {
			versions[name] = st.floor
		}
	}
	if err := k.history.save(versions, always); err != nil {
		k.cfg.Log.Error("could not save "+MemoryFile+"; after a restart no removal until then counts as proved", "err", err)
	}
}

// incomplete says why there is no membership to hand out, nil when there is. early
// means that there was none yet, and that it is too soon to accept unproved lists.
func (k *known) incomplete(state mesh.State, self mesh.Node, early bool) error {
	if len(state.PodCIDRs) == 0 {
		return fmt.Errorf("PodNetwork %s: missing or invalid; apply one with podCIDRs and relays", api.NetworkName)
	}
	if early && !k.allProved() {
		return errors.New("the API's lists are not proved to be current yet")
	}
	if k.cfg.ReadOnly {
		return nil
	}
	if early && k.lacksFamily(state.PodCIDRs, self.PodCIDRs) {
		return fmt.Errorf("node %s does not have a block of each IP version yet", k.cfg.NodeName)
	}
	n, ok := mesh.ByName(state.Nodes)[k.cfg.NodeName]
	if !ok {
		return fmt.Errorf("node %s: %w", k.cfg.NodeName, ErrNotMember)
	}
	if n.PeerID != k.cfg.PeerID {
		return fmt.Errorf("MeshNode %s has peer ID %s, this node's key is %s: %w", n.Name, n.PeerID, k.cfg.PeerID, ErrPeerID)
	}
	if !state.Carries(n) {
		return fmt.Errorf("node %s: %w %s, which admitLabel of the PodNetwork requires: all others refuse this node until an administrator admits it: kubectl label node %s %s",
			n.Name, ErrNotAdmitted, state.AdmitLabel, n.Name, mesh.LabelArgument(state.AdmitLabel))
	}
	return nil
}

// lacksFamily reports whether a node that claims its blocks still waits for one of an IP
// version.
func (k *known) lacksFamily(ranges, blocks []netip.Prefix) bool {
	n := k.node(k.cfg.NodeName)
	if k.cfg.Keep || n == nil || !mustClaim(n, ranges) {
		return false
	}
	return slices.ContainsFunc([]bool{true, false}, func(v4 bool) bool {
		return len(mesh.OfVersion(ranges, !v4)) > 0 && len(mesh.OfVersion(blocks, !v4)) == 0
	})
}

// absent says why the API does not list this node, nil when it does.
func (k *known) absent(present map[string]mesh.Node) error {
	self := k.cfg.NodeName
	if _, ok := present[self]; ok || k.cfg.ReadOnly {
		return nil
	}
	switch {
	case k.node(self) == nil && !k.stores["nodes"].latest:
		return fmt.Errorf("the API has no Node %s, or an edge cache without uplink says so: the list is not proved to be current. Check this node's uplink, that "+
			"nodeName is the name kubelet registers, and that the Node was not deleted", self)
	case k.node(self) == nil:
		return fmt.Errorf("the API has no Node %s: check that nodeName is the name kubelet registers, and that the Node was not deleted", self)
	case k.meshNode(self) == nil:
		return fmt.Errorf("the API has no MeshNode %s yet", self)
	}
	return fmt.Errorf("the API has no block for node %s yet", self)
}
