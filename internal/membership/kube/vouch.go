package kube

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
)

const (
	// vouchEvery is how often the Nodes of open disputes are read again, mostVouched how many of them at a time.
	vouchEvery  = time.Minute
	mostVouched = 64
	// mostGone is how many members that left are remembered with their blocks.
	mostGone = 4096
)

// disputes are NodeRecords that give a member other blocks than before, or blocks that another member has or had last. Such a
// record is the word of whoever has the controller's token: until the Node itself says the same, the blocks stay as they were.
// It belongs to known.
type disputes struct {
	open map[string]dispute        // by node
	gone map[string][]netip.Prefix // the blocks of members that left
	read func(names []string)      // reads these Nodes, now and then; each answer comes as vouched
	log  *slog.Logger
}

// dispute is what a NodeRecord says.
type dispute struct {
	uid    string // of the Node
	blocks []string
	named  bool // in the log
}

// vet takes what a NodeRecord says of blocks out of n until the Node vouches for it. cur is the Node of that name in force, or
// nil; members are those in force.
func (d *disputes) vet(n, cur *api.Node, members []mesh.Node) {
	if cur != nil && slices.Equal(cur.Spec.PodCIDRs, n.Spec.PodCIDRs) || !d.contested(n, cur, members) {
		d.end(n.Meta.Name)
		return
	}
	said := dispute{uid: n.Meta.UID, blocks: n.Spec.PodCIDRs}
	if old, open := d.open[n.Meta.Name]; !open || old.uid != said.uid || !slices.Equal(old.blocks, said.blocks) {
		d.open[n.Meta.Name] = said
		d.request()
	}
	n.Spec.PodCIDRs = nil
	if cur != nil {
		n.Spec.PodCIDRs = cur.Spec.PodCIDRs
	}
}

// contested reports whether n changes the blocks of a member, or has some of another one.
func (d *disputes) contested(n, cur *api.Node, members []mesh.Node) bool {
	var held blockSet
	for name, blocks := range d.gone {
		for _, b := range blocks {
			held.add(b, name)
		}
	}
	for _, m := range members {
		if m.Name == n.Meta.Name && cur != nil {
			return true
		}
		for _, b := range m.PodCIDRs {
			held.add(b, m.Name)
		}
	}
	return slices.ContainsFunc(n.Spec.PodCIDRs, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		o, clash := held.find(p.Masked())
		return err == nil && clash && o.node != n.Meta.Name
	})
}

// end ends the dispute about a node, if there is one.
func (d *disputes) end(name string) {
	if _, open := d.open[name]; open {
		delete(d.open, name)
		d.request()
	}
}

func (d *disputes) request() { d.read(slices.Sorted(maps.Keys(d.open))) }

// take takes a Node that was read because of a dispute; cur is that of its name in force, or nil. It returns the blocks that
// count from now on, and whether they change.
func (d *disputes) take(m vouched, cur *api.Node) (blocks []string, changed bool) {
	said, open := d.open[m.name]
	if !open || cur == nil {
		return nil, false
	}
	log := d.log.With("node", m.name, "record", said.blocks, "before", cur.Spec.PodCIDRs)
	switch {
	case m.err == nil && m.node.Meta.UID == said.uid && slices.Equal(m.node.Spec.PodCIDRs, said.blocks):
		log.Info("a node's blocks changed, as its NodeRecord and its Node say")
	case apierrors.IsForbidden(m.err):
		log.Warn("a NodeRecord changes a node's blocks, and this program may not read the Node: the record is believed")
	case m.err == nil && !said.named:
		log.Warn("a NodeRecord gives a node blocks that its Node does not have: they do not count. If this lasts, another process has the controller's "+
			"credentials: delete the controllers' pods, which ends their tokens, and find out who was root on their nodes", "has", m.node.Spec.PodCIDRs)
		said.named = true
		d.open[m.name] = said
		return nil, false
	default:
		return nil, false
	}
	d.end(m.name)
	return said.blocks, true
}

// left remembers the blocks of members that were there and are no longer.
func (d *disputes) left(were, are []mesh.Node) {
	stays := nodesByName(are)
	for _, n := range were {
		if _, ok := stays[n.Name]; ok {
			continue
		}
		for name := range d.gone {
			if len(d.gone) < mostGone {
				break
			}
			delete(d.gone, name)
		}
		d.gone[n.Name] = n.PodCIDRs
	}
	maps.DeleteFunc(d.gone, func(name string, _ []netip.Prefix) bool { _, back := stays[name]; return back })
}

// voucher reads Nodes that NodeRecords disagree with. All of it belongs to the goroutine in run.
type voucher struct {
	c     *client.Client
	out   chan<- any    // vouched
	names chan []string // latest
}

// run reads them, until ctx ends.
func (v *voucher) run(ctx context.Context) {
	var names []string
	again := time.NewTicker(vouchEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case names = <-v.names:
		case <-again.C:
		}
		for _, name := range names[:min(len(names), mostVouched)] {
			m := vouched{name: name, node: &api.Node{}}
			rctx, cancel := context.WithTimeout(ctx, requestTimeout)
			m.err = v.c.Get(rctx, api.Nodes().Path(name), m.node)
			cancel()
			select {
			case v.out <- m:
			case <-ctx.Done():
				return
			}
		}
	}
}
