package daemon

import (
	"context"
	"reflect"
	"slices"
	"sync"

	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
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
}

// onBroken reports an unusable membership; the last good one stays.
func (m *membership) onBroken(err error) {
	m.force.setProblem(err)
	m.log.Error("membership is unusable; the last good one stays in force", "source", m.source, "err", err)
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
