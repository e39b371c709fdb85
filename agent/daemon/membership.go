package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/admit"
	"edgemesh/agent/config"
	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/members"
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
	p, err := planFor(s, m.cfg, m.id)
	if err != nil {
		m.onBroken(err)
		return
	}
	p.Plan = m.lan.complete(p.Plan)
	state, before, problem := m.force.set(s, p, nil)
	if err := snapshot.Save(m.cfg.StateDir, s); err != nil {
		m.log.Error("could not save the membership; an offline start would use an older one", "err", err)
	}
	if !slices.Equal(s.WANCIDRs, state.WANCIDRs) {
		m.log.Warn("wanCIDRs changed; restart the agent to use them")
	}
	if !slices.Equal(p.Host.ClusterCIDRs, before.Host.ClusterCIDRs) {
		m.tellForward(p)
	}
	if problem != nil {
		m.log.Info("membership is valid again", "source", m.source)
	}
	if reflect.DeepEqual(p.Plan, before.Plan) {
		return
	}
	m.log.Info("membership changed", "members", len(p.Members)+1, "relays", len(p.Relays))
	if err := m.apply(ctx, p); err != nil {
		m.log.Error("could not apply the changed membership everywhere; retrying", "err", err)
	}
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

// apply makes every part hold what p says.
func (m *membership) apply(ctx context.Context, p plan) error {
	m.node.SetMembership(p.members)
	m.tunnel.SetRoutes(p.routes)
	m.lan.setPlan(p.Plan)
	return m.kernel.apply(ctx)
}

// plan is what this node should hold, for each part of the agent in its own terms.
type plan struct {
	mesh.Plan                    // for host, lan and CNI
	members   members.Membership // for p2p
	routes    []tunnel.Route     // for the tunnel
}

// id is a member's peer ID as connections have it, "" for one that has left.
func (p plan) id(of mesh.PeerID) peer.ID { return peer.ID(p.IDs[of]) }

// planFor derives this node's plan from s and checks that s and the key agree
// on who this node is.
func planFor(s mesh.State, cfg config.Config, id peer.ID) (plan, error) {
	self := cfg.NodeName
	m, err := mesh.NewPlan(s, self, admit.Decode)
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
	p := plan{Plan: m}
	return p, p.translate()
}

// translate fills in what p2p and the tunnel are told. The addresses were checked when
// the membership was read.
func (p *plan) translate() (err error) {
	known := func(id mesh.PeerID) (mesh.RawID, error) { return p.IDs[id], nil }
	if p.members, err = admit.Membership(p.Members, p.Relays, p.Host.ClusterCIDRs, known); err != nil {
		return err
	}
	p.members.Banned, _ = admit.PeerIDs(p.Banned) // the others are names of nodes that are not listed
	for _, r := range p.Routes {
		p.routes = append(p.routes, tunnel.Route{Prefix: r.Prefix, Peer: tunnel.PeerID(p.id(r.Peer)), Self: r.Self})
	}
	return nil
}

// inForce is the membership and the plan in force.
type inForce struct {
	mu      sync.Mutex // nothing else is locked while it is held
	state   mesh.State
	now     plan
	problem error // why the source's membership is not in force, nil when it is
}

// plan returns the plan in force, and the membership's problem, if any.
func (f *inForce) plan() (plan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.problem
}

// set replaces what is in force and returns what was.
func (f *inForce) set(s mesh.State, p plan, problem error) (state mesh.State, before plan, was error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, before, was = f.state, f.now, f.problem
	f.state, f.now, f.problem = s, p, problem
	return state, before, was
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
