package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/agent/kube/api"
	"edgemesh/agent/mesh"
)

// loop owns what is known: it takes what reflectors and registrar hear, and hands
// out a State when that changes it.
type loop struct {
	*Source
	onState func(mesh.State)
	onErr   func(error)
	relist  map[string]chan struct{}
	follow  func(kind) // starts a reflector
	want    chan want  // to the registrar, nil without one

	problem error // of the registrar
	asked   bool  // for new lists, since the own MeshNode is there
	follows bool  // other plugins' kinds
	began   time.Time
}

// registered is the outcome of the registrar's last round.
type registered struct{ err error }

// run handles messages until ctx ends.
func (l *loop) run(ctx context.Context, in <-chan any) {
	l.began = time.Now()
	settled := time.NewTimer(0)
	defer settled.Stop()
	waiting := true
	// Without a snapshot the proof may never come (a cache that cannot rehearse).
	patience := time.NewTimer(l.tune.hearsay)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-in:
			if l.take(m) && !waiting {
				settled.Reset(l.tune.settle)
				waiting = true
			}
		case <-patience.C:
			l.update()
		case <-settled.C:
			waiting = false
			l.update()
		}
	}
}

// take notes one message. It reports whether update has something to do.
func (l *loop) take(m any) bool {
	switch m := m.(type) {
	case listed:
		return l.takeList(m)
	case event:
		// This is a proof too, if it is of what the member stands on and not of an
		// object that had its name before.
		if meta := m.obj.Metadata(); m.what == deleted && l.ids[meta.Name].of(m.kind) == meta.UID {
			delete(l.kept, meta.Name)
		}
		st := l.store(m.kind)
		if m.kind.name == "podnetworks" && m.what != deleted && st.listed && !st.proved && len(st.items) == 0 {
			l.askList(m.kind.name) // the list was empty, which proves nothing; this one can be proved
		}
		return st.apply(m)
	case trouble:
		// The first of its kind stands for the rest, which differ in ports and times.
		old := l.troubles[m.kind.name]
		if (old == nil) == (m.err == nil) && apierrors.ReasonForError(old) == apierrors.ReasonForError(m.err) {
			return false
		}
		l.troubles[m.kind.name] = m.err
		return true
	case registered:
		l.problem = m.err
		return true
	}
	return false
}

// update derives the State and hands it out if it is complete and new.
func (l *loop) update() {
	if !l.allListed() {
		l.report(errors.Join(l.problem, l.trouble()))
		return
	}
	o := l.objects()
	l.lookAtPlugins(&o)
	l.release(o.network)
	found, problems := resolve(o, l.last)
	present := nodesByName(found.Nodes)
	maps.DeleteFunc(l.kept, func(name string, _ keptMember) bool { _, ok := present[name]; return ok })
	state := merge(found, l.kept)
	l.identify(state)
	l.register(o, state, present[l.cfg.NodeName])

	err := l.incomplete(state, present[l.cfg.NodeName])
	if err == nil {
		err = state.Validate()
	}
	if err != nil {
		l.report(errors.Join(err, l.absent(o, present), l.problem, l.trouble()))
		return
	}
	if !l.have || !reflect.DeepEqual(state, l.last) {
		l.emit(state)
	} else if l.allProved() {
		l.remember(false)
	}
	if len(problems) > 0 {
		err = errors.New(strings.Join(problems, "\n"))
	}
	l.report(errors.Join(err, l.absent(o, present), l.problem, l.trouble()))
}

// identify notes which objects the members stand on; for those that the API does not
// list, what is known stays.
func (l *loop) identify(state mesh.State) {
	ids := make(map[string]objectIDs, len(state.Nodes))
	for _, m := range state.Nodes {
		node, bound := find[*api.Node](l.stores["nodes"], m.Name), find[*api.MeshNode](l.stores["meshnodes"], m.Name)
		if node != nil && bound != nil {
			ids[m.Name] = objectIDs{Node: node.Meta.UID, Mesh: bound.Meta.UID}
		} else if known, ok := l.ids[m.Name]; ok {
			ids[m.Name] = known
		}
	}
	l.ids = ids
}

// emit hands out a State; what says in which history it stands goes to the disk
// first.
func (l *loop) emit(state mesh.State) {
	l.remember(true)
	l.last, l.have = state, true
	l.onState(state)
}

// allListed says that every kind was listed in this history, proved or not.
func (l *loop) allListed() bool {
	for _, st := range l.stores {
		if !st.listed {
			return false
		}
	}
	return true
}

func (l *loop) allProved() bool {
	for _, st := range l.stores {
		if !st.proved {
			return false
		}
	}
	return true
}

// objects collects what resolve needs.
func (l *loop) objects() objects {
	o := objects{
		meshNodes: map[string]*api.MeshNode{},
		network:   find[*api.PodNetwork](l.stores["podnetworks"], api.NetworkName),
	}
	each(l.stores["nodes"], func(n *api.Node) { o.nodes = append(o.nodes, n) })
	each(l.stores["meshnodes"], func(m *api.MeshNode) { o.meshNodes[m.Meta.Name] = m })
	each(l.stores["podblocks"], func(b *api.PodBlock) { o.blocks = append(o.blocks, b) })
	return o
}

// incomplete says why there is no membership to hand out, nil when there is.
func (l *loop) incomplete(state mesh.State, self mesh.Node) error {
	if len(state.PodCIDRs) == 0 {
		return fmt.Errorf("PodNetwork %s: missing or invalid; apply one (it has podCIDRs and relays)", api.NetworkName)
	}
	early := !l.have && time.Since(l.began) < l.tune.hearsay
	if early && !l.allProved() {
		return errors.New("the API's lists are not proved to be fresh yet")
	}
	if l.cfg.ReadOnly {
		return nil
	}
	if n := find[*api.Node](l.stores["nodes"], l.cfg.NodeName); early && !l.cfg.Keep && n != nil && claims(n, state.PodCIDRs) {
		for _, v4 := range []bool{true, false} {
			if len(ofFamily(state.PodCIDRs, v4)) > 0 && len(ofFamily(self.PodCIDRs, v4)) == 0 {
				return fmt.Errorf("node %s has no block of each family yet", l.cfg.NodeName)
			}
		}
	}
	for _, n := range state.Nodes {
		if n.Name != l.cfg.NodeName {
			continue
		}
		if n.PeerID != l.cfg.PeerID {
			return fmt.Errorf("MeshNode %s has peer ID %s, this node's key is %s: %w", n.Name, n.PeerID, l.cfg.PeerID, ErrPeerID)
		}
		return nil
	}
	return fmt.Errorf("node %s: %w", l.cfg.NodeName, ErrNotMember)
}

// absent says why the API does not make this node a member, nil if it does. The
// node may still work with what it had, but others cut it off.
func (l *loop) absent(o objects, present map[string]mesh.Node) error {
	self := l.cfg.NodeName
	if _, ok := present[self]; ok || l.cfg.ReadOnly {
		return nil
	}
	switch {
	case find[*api.Node](l.stores["nodes"], self) == nil:
		return fmt.Errorf("the API has no Node %s; is nodeName the name kubelet registers, or was the Node deleted?", self)
	case o.meshNodes[self] == nil:
		return fmt.Errorf("the API has no MeshNode %s yet", self)
	}
	return fmt.Errorf("the API has no block for node %s yet", self)
}

// trouble joins what keeps the kinds from being followed.
func (l *loop) trouble() error {
	var all []error
	for _, name := range sortedKeys(l.troubles) {
		if err := l.troubles[name]; err != nil {
			all = append(all, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[0] // they mostly have the same cause
}

// report tells a problem once; when it has gone, the State once more.
func (l *loop) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == l.told {
		return
	}
	l.told = text
	switch {
	case err != nil:
		l.onErr(err)
	case l.have:
		l.onState(l.last)
	}
}

// register tells the registrar what is known about this node.
func (l *loop) register(o objects, state mesh.State, self mesh.Node) {
	if l.want == nil {
		return
	}
	w := want{
		node:      find[*api.Node](l.stores["nodes"], l.cfg.NodeName),
		mesh:      o.meshNodes[l.cfg.NodeName],
		network:   o.network,
		ranges:    state.PodCIDRs,
		blocks:    self.PodCIDRs,
		settled:   o.settled,
		plugin:    within(o.plugin[l.cfg.NodeName], state.PodCIDRs),
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
		if b.Spec.NodeName == l.cfg.NodeName {
			w.own = append(w.own, b)
			continue
		}
		w.used.add(p, b.Spec.NodeName)
		if !exists[b.Spec.NodeName] {
			w.orphans = append(w.orphans, b.Meta.Name)
		}
	}
	for _, n := range state.Nodes { // kept members among them
		for _, p := range n.PodCIDRs {
			if n.Name == l.cfg.NodeName {
				w.prefer = append(w.prefer, p)
			} else {
				w.used.add(p, n.Name)
			}
		}
	}
	for len(l.want) > 0 {
		select {
		case <-l.want:
		default:
		}
	}
	l.want <- w // there is room: nobody else sends
	// Before the own MeshNode was there, nothing could be proved.
	if there := w.mesh != nil; there != l.asked {
		l.asked = there
		for name, st := range l.stores {
			if there && !st.proved {
				l.askList(name)
			}
		}
	}
}
