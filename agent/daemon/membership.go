package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/admit"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/memory"
	"edgemesh/internal/wake"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/who/members"
)

// membership brings what the source says into force, in this order:
//
//	source ──State──▶ planFor ──▶ snapshot   on disk, for an offline start
//	                          ──▶ p2p        who may connect, and the relays
//	                          ──▶ tunnel     whose packets are admitted, and where they go
//	                          ──▶ lan        whose LAN addresses are probed
//	                          ──▶ kernel     routes, rules, sysctls; then what the CNI plugin reads
type membership struct {
	*daemon

	mu sync.Mutex // one change at a time, until it is in force; locked before every other mutex of this package
}

// onState brings a changed membership into force. It refuses a state without this node,
// which does not say what this node should do; the others cut it off themselves.
func (m *membership) onState(ctx context.Context, s mesh.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	began := time.Now()
	was, _ := m.force.plan()
	p, err := was.next(s, m.cfg, m.id)
	if err != nil {
		m.onBroken(err)
		return
	}
	news, err := p.since(was)
	if err != nil {
		m.onBroken(err)
		return
	}
	p.Plan = m.lan.complete(p.Plan)
	wan, before, problem := m.force.set(s.WANCIDRs, p, nil)
	if err := m.saved.SaveStep(s, before.Plan, p.Plan); err != nil {
		m.log.Error("could not save the membership; an offline start would use an older one", "err", err)
	}
	if !slices.Equal(s.WANCIDRs, wan) {
		m.log.Warn("wanCIDRs changed; restart the agent to use them")
	}
	if !slices.Equal(p.Host.ClusterCIDRs, before.Host.ClusterCIDRs) {
		m.tellForward(p)
	}
	if problem != nil {
		m.log.Info("membership is valid again", "source", m.source)
	}
	if p.Watched.Until != before.Watched.Until || !slices.Equal(p.Watched.By, before.Watched.By) {
		m.force.watched.Wake()
	}
	if p.Equal(before.Plan) {
		return
	}
	news.tell(m.daemon)
	defer news.trim()
	m.verify(p)
	if err := m.apply(ctx, p); err != nil {
		m.log.Error("could not apply the changed membership everywhere; retrying", "err", err)
	}
	m.log.Info("membership changed", "members", len(p.Nodes), "relays", len(p.Relays), "took", time.Since(began).Round(10*time.Microsecond))
	if f := m.kernel.strays(p.Host); f.Severity != control.OK && !slices.Equal(p.Self.PodCIDRs, before.Self.PodCIDRs) {
		m.log.Warn("this node's blocks changed: pods that were made before are cut off", "blocks", p.Self.PodCIDRs, "before", before.Self.PodCIDRs,
			"pods", f.Detail, "remedy", f.Remedy)
	}
}

// onBroken reports an unusable membership; the last good one stays.
func (m *membership) onBroken(err error) {
	m.force.setProblem(err)
	m.log.Error("membership is unusable; the last good one stays in force", "source", m.source, "err", err)
}

// close leaves the snapshot in a form that every version reads.
func (m *membership) close() {
	if err := m.saved.Close(); err != nil {
		m.log.Warn("could not write the membership's snapshot as a whole; an older version would start with an older one", "err", err)
	}
}

// onConfirmed lets new pods have addresses, once these are known to be of this node's blocks.
func (m *membership) onConfirmed(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-m.kernel.confirmed:
	}
	if err := m.kernel.apply(ctx); err != nil {
		m.log.Error("could not give the node's blocks to the CNI plugin; retrying", "err", err)
	}
	m.kernel.changed.Wake() // the API hears that pods can be made
}

// replan brings this node's changed part in native and VXLAN paths into force; the
// membership is the same.
func (m *membership) replan(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, _ := m.force.plan()
	p.Plan = m.lan.complete(p.Plan)
	m.force.setPlan(p)
	if err := m.apply(ctx, p); err != nil {
		m.log.Error("could not apply the changed uplinks everywhere; retrying", "err", err)
	}
}

// apply makes LAN paths and the kernel hold what p says.
func (m *membership) apply(ctx context.Context, p plan) error {
	m.lan.setPlan(p.Plan)
	return m.kernel.apply(ctx)
}

// plan is what this node should hold.
type plan struct {
	mesh.Plan
	relays []peer.AddrInfo // as p2p has them
}

// planFor derives this node's plan from s and checks that s and the key agree
// on who this node is.
func planFor(s mesh.State, cfg config.Config, id peer.ID) (plan, error) {
	return plan{}.next(s, cfg, id)
}

// next is planFor for the State that follows.
func (p plan) next(s mesh.State, cfg config.Config, id peer.ID) (plan, error) {
	self := cfg.NodeName
	m, err := p.Next(s, self)
	if errors.Is(err, mesh.ErrNotMember) && s.Bans(self, mesh.PeerID(id.String())) {
		return plan{}, fmt.Errorf("banned: %w: it is listed there, and all others refuse it; an administrator can remove %s or %s from the list", err, self, id)
	}
	if n, listed := s.Node(self); errors.Is(err, mesh.ErrNotMember) && listed && !s.Carries(n) {
		return plan{}, fmt.Errorf("admitLabel: %w: it lacks the label %s, so all others refuse it; only an administrator can give it: kubectl label node %s %s, "+
			"or nodes[].labels in a membership file", err, s.AdmitLabel, self, mesh.LabelArgument(s.AdmitLabel))
	}
	if errors.Is(err, mesh.ErrNotMember) {
		return plan{}, fmt.Errorf("nodes: %w; add {name: %s, peerID: %s, podCIDRs: […]}, or set nodeName to the name it is listed under", err, self, id)
	}
	if err != nil {
		return plan{}, err
	}
	m.Host.Keep, m.Host.Promisc, m.Host.Forward = cfg.CNIMode == config.CNIKeep, cfg.CNI.PromiscMode, cfg.Forward
	if m.Self.PeerID != mesh.PeerID(id.String()) {
		return plan{}, fmt.Errorf("nodes: %s has peerID %s, but this node's key is %s; correct the membership, or restore the node's identity.key",
			self, m.Self.PeerID, id)
	}
	relays, err := admit.Membership(nil, m.Relays, nil, admit.Decode)
	return plan{Plan: m, relays: relays.Relays}, err
}

// news is what p2p and the tunnel are told of a plan that follows another one.
type news struct {
	members members.Change
	routes  tunnel.Change
	all     bool // routes are all there are, for this node's own are others now
}

// since says what is new since was. The IDs were checked when the membership was read.
func (p plan) since(was plan) (n news, err error) {
	c := p.Since(was.Plan)
	m, err := admit.Membership(c.Come, nil, p.Host.ClusterCIDRs, admit.Decode)
	if err != nil {
		return n, err
	}
	gone, err := admit.Membership(c.Gone, nil, nil, admit.Decode)
	if err != nil {
		return n, err
	}
	m.Relays = p.relays
	m.Banned, _ = admit.PeerIDs(p.Banned) // the others are names of nodes that are not listed
	n.members.Membership = m
	for _, x := range gone.Members {
		n.members.Gone = append(n.members.Gone, x.ID)
		n.routes.Gone = append(n.routes.Gone, tunnel.PeerID(x.ID))
	}
	if n.all = !slices.Equal(p.Self.PodCIDRs, was.Self.PodCIDRs); n.all && len(c.Come) != len(p.Nodes) {
		c.Come = p.Nodes
		if m, err = admit.Membership(c.Come, nil, nil, admit.Decode); err != nil {
			return n, err
		}
	}
	for i, x := range c.Come {
		for _, b := range x.PodCIDRs {
			n.routes.Come = append(n.routes.Come, tunnel.Route{Prefix: b, Peer: tunnel.PeerID(m.Members[i].ID), Self: x.Name == p.Self.Name})
		}
	}
	return n, nil
}

// many is after how many routes memory is worth a collection: some MB were built and replaced.
const many = 5000

// trim gives back what bringing n into force has left behind, beside all else.
func (n news) trim() {
	if len(n.routes.Come)+len(n.routes.Gone) >= many {
		go memory.Trim()
	}
}

// tell tells them.
func (n news) tell(d *daemon) {
	d.node.ChangeMembership(n.members)
	if n.all {
		d.tunnel.SetRoutes(n.routes.Come)
	} else {
		d.tunnel.ChangeRoutes(n.routes)
	}
}

// verify has everything told again if p2p does not have as many members as p: one of the steps to it was wrong.
func (m *membership) verify(p plan) {
	have, want := m.node.Members(), len(p.Nodes)-1
	if have == want {
		return
	}
	all, err := p.since(plan{})
	m.log.Error("the tunnel's members were not those of the membership; it is told all of them again", "have", have, "want", want, "err", err)
	if err == nil {
		m.node.SetMembership(all.members.Membership)
		m.tunnel.SetRoutes(all.routes.Come)
	}
}

// inForce is the membership and the plan in force.
type inForce struct {
	mu      sync.Mutex     // nothing else is locked while it is held
	wan     []netip.Prefix // of the membership
	now     plan
	watched wake.One // woken when others may want to know the paths, or for longer
	problem error    // why the source's membership is not in force, nil when it is
}

// plan returns the plan in force, and the membership's problem, if any.
func (f *inForce) plan() (plan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.problem
}

// inside reports whether an address is one of the cluster's pods.
func (f *inForce) inside(a netip.Addr) bool {
	p, _ := f.plan()
	return mesh.Inside(p.Host.ClusterCIDRs, netip.PrefixFrom(a, a.BitLen()))
}

// set replaces what is in force and returns what was.
func (f *inForce) set(wan []netip.Prefix, p plan, problem error) (wanBefore []netip.Prefix, before plan, was error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanBefore, before, was = f.wan, f.now, f.problem
	f.wan, f.now, f.problem = wan, p, problem
	return wanBefore, before, was
}

// setPlan replaces the plan alone, setProblem what is wrong with the membership.
func (f *inForce) setPlan(p plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = p
}

func (f *inForce) setProblem(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problem = err
}
