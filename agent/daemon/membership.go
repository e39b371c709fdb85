package daemon

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/findings"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/memory"
	"edgemesh/internal/wake"
	"edgemesh/internal/watchdog"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
)

// membership brings what the source says into force, in this order:
//
//	source ──State──▶ next    ──▶ snapshot   on disk, for an offline start
//	                          ──▶ p2p        who may connect, and the relays
//	                          ──▶ tunnel     whose packets are admitted, and where they go
//	                          ──▶ lan        whose LAN addresses are probed
//	                          ──▶ kernel     routes, rules, sysctls; then what the CNI plugin reads
type membership struct {
	cfg    config.Config
	id     peer.ID // of this node
	from   string  // the source's name
	force  *inForce
	ranges *rangeCheck
	saved  *snapshot.Keeper
	node   *p2p.Node
	tunnel *tunnel.Tunnel
	lan    *lanPaths
	kernel *kernel
	loop   *watchdog.Loop
	log    *slog.Logger
	who    source.Reporter

	mu       sync.Mutex // one change at a time, until it is in force; locked before every other mutex of this package
	trimming sync.WaitGroup
}

// onState brings a changed membership into force. It refuses a state without this node,
// which does not say what this node should do; the others cut it off themselves.
func (m *membership) onState(ctx context.Context, s mesh.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bring(ctx, s)
}

// retryRefused tries again, every 30 s, ranges that the host may no longer need.
func (m *membership) retryRefused(ctx context.Context) {
	for wake.Sleep(ctx, repairEvery) {
		m.mu.Lock()
		if m.force.whyRefused() != "" {
			m.bring(ctx, m.ranges.given)
		}
		m.mu.Unlock()
	}
}

// bring brings s into force. The caller holds mu.
func (m *membership) bring(ctx context.Context, s mesh.State) {
	ctx, end := m.loop.Begin(ctx) // not before the lock is taken: whoever has it may work for long
	defer end()
	began := time.Now()
	was, _ := m.force.plan()
	s, err := m.ranges.admit(s, was)
	if err != nil {
		m.onBroken(err)
		return
	}
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
		logForward(p.Host, m.cfg.Key("forward"), m.log)
	}
	m.kernel.setPolicies(s)
	if problem != nil {
		m.log.Info("membership is valid again", "source", m.from)
	}
	if p.Equal(before.Plan) {
		return
	}
	m.who.Report(p.Since(was.Plan), s)
	watchdog.Step(ctx)
	m.distribute(news)
	watchdog.Step(ctx)
	defer m.trim(news)
	m.verify(p)
	if err := m.apply(ctx, p); err != nil {
		m.log.Error("could not apply the changed membership everywhere; retrying", "err", err)
	}
	m.log.Info("membership changed", "members", len(p.Nodes), "relays", len(p.Relays), "took", time.Since(began).Round(10*time.Microsecond))
	if f := strays(m.kernel.pods, p.Host); f.Severity != findings.OK && !slices.Equal(p.Self.PodCIDRs, before.Self.PodCIDRs) {
		m.log.Warn("this node's blocks changed: pods that were made before are cut off", "blocks", p.Self.PodCIDRs, "before", before.Self.PodCIDRs,
			"pods", f.Text, "remedy", f.Remedy)
	}
}

// onBroken reports an unusable membership; the last good one stays.
func (m *membership) onBroken(err error) {
	if before := m.force.setProblem(err); before != nil && before.Error() == err.Error() {
		return // said already
	}
	m.log.Error("membership is unusable; the last good one stays in force", "source", m.from, "err", err)
}

// close waits for what runs in the background, and leaves the snapshot in a form that every version reads.
func (m *membership) close() {
	m.trimming.Wait()
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
	ctx, end := m.loop.Begin(ctx)
	defer end()
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

// many is after how many routes memory is worth a collection: some MB were built and replaced.
const many = 5000

// trim gives back, in the background, what bringing n into force has left behind.
func (m *membership) trim(n news) {
	if len(n.routes.Come)+len(n.routes.Gone) >= many {
		m.trimming.Go(memory.Trim)
	}
}

// distribute passes n to p2p and the tunnel.
func (m *membership) distribute(n news) {
	m.node.ChangeMembership(n.members)
	if n.all {
		m.tunnel.SetRoutes(n.routes.Come)
	} else {
		m.tunnel.ChangeRoutes(n.routes)
	}
}

// verify distributes the whole membership again if p2p does not have as many members as p: a step to it was wrong.
func (m *membership) verify(p plan) {
	have, want := m.node.Members(), len(p.Nodes)-1
	if have == want {
		return
	}
	all, err := p.since(plan{})
	m.log.Error("the tunnel's members were not those of the membership; all of them are set again", "have", have, "want", want, "err", err)
	if err == nil {
		m.node.SetMembership(all.members.Membership)
		m.tunnel.SetRoutes(all.routes.Come)
	}
}
