package kube

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
)

const (
	// The Node of an open dispute is read again after vouchSoon, then each time half as often, down to vouchRarely.
	vouchSoon, vouchRarely = 2 * time.Second, time.Minute
	// mostVouched Nodes are read immediately, later ones vouchPace a second: 200 that come in place of others, with their blocks,
	// are members after 17 s.
	mostVouched, vouchPace = 64, 8
	// mostGone is how many members that left are remembered with their blocks, and goneFor how long: allocators use blocks again.
	mostGone = 4096
	goneFor  = time.Hour
)

// disputes are NodeRecords that give a member, or one that left, other blocks than before, or blocks that another one has or had
// last. Such a record is the word of whoever has the controller's token: until the Node itself says the same, the blocks stay as
// they were. It belongs to known.
type disputes struct {
	open    map[string]dispute // by node
	serial  int                // of the last dispute
	changed bool               // open differs from what read knows
	gone    map[string]departed
	held    *holders // of the members in force and of gone; nil: to be made
	now     func() time.Time
	read    func(open map[string]int) // reads these Nodes, now and then; each answer comes as vouched
	log     *slog.Logger
}

// departed is what a member had that left.
type departed struct {
	blocks []netip.Prefix
	at     time.Time
}

// dispute is what a NodeRecord says.
type dispute struct {
	serial int
	uid    string // of the Node
	blocks []string
	named  bool   // in the log
	failed string // why the Node could not be read, as logged
}

func newDisputes(log *slog.Logger) disputes {
	return disputes{open: map[string]dispute{}, gone: map[string]departed{}, now: time.Now, read: func(map[string]int) {}, log: log}
}

// vet takes what a NodeRecord says of blocks out of n until the Node vouches for it. cur is the Node of that name in force, or
// nil; last is the State in force, or the snapshot.
func (d *disputes) vet(n, cur *api.Node, last mesh.State) {
	members := last.Nodes
	var before []string
	if cur != nil {
		before = cur.Spec.PodCIDRs
		if cur.Meta.UID == n.Meta.UID {
			n.Meta.CreationTimestamp = cur.Meta.CreationTimestamp // of two that have a block, the older one keeps it
		}
	} else if i := slices.IndexFunc(members, func(m mesh.Node) bool { return m.Name == n.Meta.Name }); i >= 0 { // of the snapshot
		for _, b := range members[i].PodCIDRs {
			before = append(before, b.String())
		}
	}
	if slices.Equal(before, n.Spec.PodCIDRs) || !d.contested(n, cur, last) {
		d.end(n.Meta.Name)
		return
	}
	said := dispute{uid: n.Meta.UID, blocks: n.Spec.PodCIDRs}
	if old, open := d.open[n.Meta.Name]; !open || old.uid != said.uid || !slices.Equal(old.blocks, said.blocks) {
		d.serial++
		said.serial = d.serial
		d.open[n.Meta.Name], d.changed = said, true
	}
	n.Spec.PodCIDRs = before
}

// contested reports whether n has other blocks than the member of its name has or had, or any of another one.
func (d *disputes) contested(n, cur *api.Node, last mesh.State) bool {
	if d.held == nil {
		d.held = d.holders(last.Nodes)
	}
	var blocks []netip.Prefix
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			blocks = append(blocks, p.Masked())
		}
	}
	slices.SortFunc(blocks, mesh.ComparePrefix)
	had, known := d.held.blocks[n.Meta.Name]
	counts := blocks
	if cur == nil { // the member's may be PodBlocks, which no Node names; those out of the ranges are another allocator's
		counts, _ = counting(n, last.PodCIDRs)
		slices.SortFunc(counts, mesh.ComparePrefix)
		known = known && len(counts) > 0
	}
	if known && !slices.Equal(had, counts) {
		return true
	}
	return slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return d.held.byAnother(b, n.Meta.Name) })
}

// holders are members and those that left, with their blocks.
type holders struct {
	blocks map[string][]netip.Prefix // sorted
	names  bart.Table[[]string]
}

func (d *disputes) holders(members []mesh.Node) *holders {
	h := &holders{blocks: make(map[string][]netip.Prefix, len(members)+len(d.gone))}
	add := func(name string, blocks []netip.Prefix) {
		blocks = slices.SortedFunc(slices.Values(blocks), mesh.ComparePrefix)
		h.blocks[name] = blocks
		for _, b := range blocks {
			names, _ := h.names.Get(b)
			h.names.Insert(b, append(names, name))
		}
	}
	for name, g := range d.gone {
		if d.now().Sub(g.at) < goneFor {
			add(name, g.blocks)
		}
	}
	for _, m := range members {
		add(m.Name, m.PodCIDRs)
	}
	return h
}

// byAnother reports whether any block that overlaps p is of another one than name.
func (h *holders) byAnother(p netip.Prefix, name string) bool {
	for _, overlapping := range []iter.Seq2[netip.Prefix, []string]{h.names.Supernets(p), h.names.Subnets(p)} {
		for _, names := range overlapping {
			if slices.ContainsFunc(names, func(n string) bool { return n != name }) {
				return true
			}
		}
	}
	return false
}

// end ends the dispute about a node, if there is one.
func (d *disputes) end(name string) {
	if _, open := d.open[name]; open {
		delete(d.open, name)
		d.changed = true
	}
}

// prune ends disputes about what is no longer recorded, and has the Nodes of open ones read.
func (d *disputes) prune(recorded func(name string) bool) {
	for name := range d.open {
		if !recorded(name) {
			d.end(name)
		}
	}
	if !d.changed {
		return
	}
	open := make(map[string]int, len(d.open))
	for name, said := range d.open {
		open[name] = said.serial
	}
	d.changed = false
	d.read(open)
}

// take takes a Node that was read because of a dispute; cur is that of its name in force. It reports whether the record's blocks
// count from now on.
func (d *disputes) take(m vouched, cur *api.Node) (blocks []string, counts bool) {
	said, open := d.open[m.name]
	if !open || cur == nil || m.serial != said.serial {
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
	case m.err != nil && m.lasts && said.failed != m.err.Error():
		log.Warn("a NodeRecord changes a node's blocks, and the Node cannot be read: they do not count until it says the same", "err", m.err)
		said.failed = m.err.Error()
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
	d.held = nil
	stays := mesh.ByName(are)
	maps.DeleteFunc(d.gone, func(name string, g departed) bool {
		_, back := stays[name]
		return back || d.now().Sub(g.at) >= goneFor
	})
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
		d.gone[n.Name] = departed{n.PodCIDRs, d.now()}
	}
}

// voucher reads Nodes that NodeRecords disagree with. All of it belongs to the goroutine in run.
type voucher struct {
	c    *client.Client
	out  chan<- any          // vouched
	open chan map[string]int // latest: serial numbers of disputes, by node

	next map[string]reading // by node
	pace *rate.Limiter
}

// reading is when the Node of a dispute is read next: new ones first.
type reading struct {
	serial int
	at     time.Time
	wait   time.Duration // before that
}

// run reads them, until ctx ends.
func (v *voucher) run(ctx context.Context) {
	v.pace = rate.NewLimiter(vouchPace, mostVouched)
	for {
		var again <-chan time.Time
		if len(v.next) > 0 {
			again = time.After(time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case open := <-v.open:
			v.follow(open)
		case <-again:
		}
		for _, name := range v.due(time.Now()) {
			m := v.get(ctx, name)
			select {
			case v.out <- m:
			case <-ctx.Done():
				return
			}
		}
	}
}

// follow takes over which disputes are open.
func (v *voucher) follow(open map[string]int) {
	were := v.next
	v.next = make(map[string]reading, len(open))
	for name, serial := range open {
		v.next[name] = reading{serial: serial}
		if r, ok := were[name]; ok && r.serial == serial {
			v.next[name] = r
		}
	}
}

// due are the nodes to read now, those that wait longest first, and counts them as read.
func (v *voucher) due(now time.Time) []string {
	var names []string
	for name, r := range v.next {
		if !r.at.After(now) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(v.next[a].at.Compare(v.next[b].at), cmp.Compare(a, b)) })
	names = names[:min(len(names), int(v.pace.TokensAt(now)))]
	v.pace.AllowN(now, len(names))
	for _, name := range names {
		r := v.next[name]
		r.wait = min(max(2*r.wait, vouchSoon), vouchRarely)
		r.at = now.Add(r.wait)
		v.next[name] = r
	}
	return names
}

func (v *voucher) get(ctx context.Context, name string) vouched {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r := v.next[name]
	m := vouched{name: name, serial: r.serial, node: &api.Node{}, lasts: r.wait == vouchRarely}
	m.err = v.c.Get(ctx, api.Nodes().Path(name), m.node)
	return m
}
