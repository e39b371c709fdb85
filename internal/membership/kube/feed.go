package kube

import (
	"log/slog"
	"maps"
	"slices"

	"edgemesh/internal/membership/kube/api"
)

// feed is where the membership's Nodes come from: the API's Nodes, or the NodeRecords that a controller keeps of them.
// One of the two is in force, and what the other one says waits in next until it may take over. It belongs to known.
type feed struct {
	nodes    *store                // of those in force
	name     string                // of this node
	own      func(api.Object) bool // an object is this node's
	readSelf func()                // reads this node's own Node again
	log      *slog.Logger

	records bool      // the NodeRecords are in force
	next    *store    // of the other kind, while that is followed
	version uint64    // of next
	self    *api.Node // this node's own Node, while the NodeRecords are in force: they have neither its annotations nor its conditions
}

// reset puts the Nodes in force.
func (f *feed) reset() { f.records, f.next, f.version, f.self = false, nil, 0, nil }

// refuse puts the NodeRecords in force because Nodes may not be listed: only what a controller keeps may take the place of Nodes that
// were listed. It reports whether it did. While no controller keeps them, Nodes are tried on.
func (f *feed) refuse(kept bool) bool {
	if f.records || f.nodes.listed && !kept {
		return false
	}
	f.self = find[*api.Node](f.nodes, f.name)
	f.records, f.next = true, nil
	return true
}

// kind is the kind in force, and other the other one.
func (f *feed) kind() api.Kind  { return feedKind(f.records) }
func (f *feed) other() api.Kind { return feedKind(!f.records) }

func feedKind(records bool) api.Kind {
	if records {
		return api.NodeRecords()
	}
	return api.Nodes()
}

// follows are the plurals of the kinds to follow: the one in force, and both until the other one may take over. kept says
// that a controller keeps the NodeRecords.
func (f *feed) follows(kept bool) map[string]bool {
	kinds := map[string]bool{f.kind().Name: true}
	if kept == f.records {
		f.next = nil
		return kinds
	}
	kinds[f.other().Name] = true
	if f.next == nil {
		f.next = newStore(api.Nodes(), f.own)
	}
	return kinds
}

// isNodes reports whether the membership's Nodes may come from that kind.
func isNodes(k api.Kind) bool { return k.Name == api.Nodes().Name || k.Name == api.NodeRecords().Name }

// asNode is the Node that o stands for.
func asNode(o api.Object) api.Object {
	if r, ok := o.(*api.NodeRecord); ok {
		return r.Node()
	}
	return o
}

// asNodes makes a list of NodeRecords one of Nodes.
func asNodes(m *listed) {
	m.kind = api.Nodes()
	for i, o := range m.items {
		m.items[i] = asNode(o)
	}
}

// list takes a list that came as one of the kind from. It is the caller's if that is in force; otherwise the feed reports
// whether it changed anything. another says that the list is of another history.
func (f *feed) list(from api.Kind, m *listed, another bool) (inForce, changed bool) {
	switch {
	case from.Name == f.kind().Name:
		return true, false
	case f.next == nil || m.proof == nil || another:
		return false, false
	}
	f.next.setList(m.items, m.rv, true)
	f.version = m.rv
	return false, f.changeOver()
}

// event takes an event of a Node or a NodeRecord, likewise, and makes it one of a Node.
func (f *feed) event(e *event) (inForce, changed bool) {
	from := e.kind
	e.kind, e.obj = api.Nodes(), asNode(e.obj)
	n, ok := e.obj.(*api.Node)
	if !ok {
		return false, false
	}
	if from.Name == f.kind().Name {
		if f.records && f.own(n) {
			f.readSelf()
		}
		return true, false
	}
	if f.records && e.what != deleted && f.own(n) && (f.self == nil || version(n.Meta.ResourceVersion) > version(f.self.Meta.ResourceVersion)) {
		changed = f.self == nil || !sameContent(f.self, n)
		f.self = n
	}
	if f.next != nil {
		f.next.apply(*e)
		f.version = max(f.version, version(n.Meta.ResourceVersion))
		return false, f.changeOver() || changed
	}
	return false, changed
}

// changeOver puts the other kind in force if it may be. NodeRecords may once they say what the Nodes say, so that the
// membership does not change; Nodes always may. It reports whether it did.
func (f *feed) changeOver() bool {
	if f.next == nil || !f.next.proved || !f.nodes.proved || !f.records && !sameNodes(f.nodes, f.next) {
		return false
	}
	f.self = nil
	if !f.records {
		f.self = find[*api.Node](f.nodes, f.name)
	}
	f.nodes.replace(f.next, f.version, f.records)
	f.records, f.next = !f.records, nil
	f.log.Info("the membership's Nodes come from another kind now", "kind", f.kind().Name)
	return true
}

// sameNodes reports whether both have the same Nodes, as far as a NodeRecord says.
func sameNodes(a, b *store) bool {
	return len(a.items) == len(b.items) && !slices.ContainsFunc(slices.Collect(maps.Keys(a.items)), func(name string) bool {
		x, y := find[*api.Node](a, name), find[*api.Node](b, name)
		return x == nil || y == nil || !x.RecordSpec().Equal(y.RecordSpec())
	})
}

// whole is this node's Node n with all that is known of it.
func (f *feed) whole(n *api.Node) *api.Node {
	if n == nil || f.self == nil || f.self.Meta.UID != n.Meta.UID {
		return n
	}
	whole := *n
	whole.Meta.Annotations, whole.Status = f.self.Meta.Annotations, f.self.Status
	return &whole
}
