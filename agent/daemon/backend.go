package daemon

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/agent/diagnose"
	"edgemesh/agent/observe"
	"edgemesh/internal/causes"
	"edgemesh/internal/membership/admit"
	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/admission/enroll"
	"edgemesh/tunnel/p2p/carrier/socket"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/path/peers"
	"edgemesh/tunnel/tun"
)

var _ control.Backend = (*backend)(nil)

// backend answers the operator: status, ping, doctor. It changes nothing.
type backend struct {
	*daemon
	observe.Node // tells other members which paths this node uses, and asks them
	// degraded lists what this host did not provide at start.
	degraded []control.Fallback
	started  time.Time
	found    struct { // for observed
		sync.Mutex
		problems []control.Finding
		at       time.Time
	}
}

// problemsFor is for how long a map's problems hold.
const problemsFor = 15 * time.Second

// Status implements control.Backend.
func (b *backend) Status(all bool) control.Status {
	s := b.paths(all)
	plan, _ := b.force.plan()
	s.Node, s.PeerID, s.Site, s.Fallbacks = b.cfg.NodeName, b.id.String(), plan.Self.Site, b.degraded
	s.Addresses, s.Pools, s.Problems = describe.Texts(b.kernel.addresses()), pools(b.kernel.pods, b.log), b.problems()
	return s
}

// paths is the part of the status that changes from second to second.
func (b *backend) paths(all bool) control.Status {
	st := b.node.Status()
	used, idle := b.peers(all)
	return control.Status{Version: b.opts.Version, StartedAt: b.started, NAT: describe.NAT(st), Relays: describe.Relays(st.Relays), Peers: used, Idle: idle}
}

// observed is what a map is told, each second while one is open: only the members in use, and problems of problemsFor ago,
// for which routes and files are read.
func (b *backend) observed() control.Status {
	s := b.paths(false)
	b.found.Lock()
	defer b.found.Unlock()
	if time.Since(b.found.at) >= problemsFor {
		b.found.problems, b.found.at = b.problems(), time.Now()
	}
	s.Problems = b.found.problems
	return s
}

// LogLevel implements control.Backend.
func (b *backend) LogLevel() *slog.LevelVar { return b.opts.level() }

// visits are those to controllers that observe.
func (d *daemon) visits(a *observe.Answerer) observe.Visits {
	plan := func() mesh.Plan { p, _ := d.force.plan(); return p.Plan }
	visit := func(ctx context.Context, by []mesh.PeerID, answer func(mesh.PeerID, observe.Stream)) error {
		return d.deputy.Visit(ctx, plan().Relays, by, func(id peer.ID, s enroll.Stream) { answer(mesh.PeerID(id.String()), s) })
	}
	return observe.Visits{Plan: plan, Changed: d.force.watched, Visit: visit, Answer: a.Answer, Log: d.log}
}

// peer is how one other member is reached.
func (d *daemon) peer(m mesh.Node) control.PeerStatus {
	id := admit.ID(m.PeerID)
	p, _ := d.node.PeerStatus(id)
	st, _ := d.lan.status(m.PeerID)
	return describe.LAN(describe.Peer(m, p, d.tunnel.StatsOf(tunnel.PeerID(id))), st)
}

// peers lists all other members in order of name, or those to which there is a path or for which packets wait, and counts
// those left out. Of one that was never used little is worked out.
func (d *daemon) peers(all bool) (out []control.PeerStatus, idle int) {
	plan, _ := d.force.plan()
	known := map[mesh.PeerID]bool{}
	for _, id := range d.node.Status().Peers {
		known[mesh.PeerID(id.String())] = true
	}
	for _, p := range d.tunnel.Stats().Peers {
		known[mesh.PeerID(peer.ID(p.Peer).String())] = true
	}
	out = []control.PeerStatus{} // JSON has lists, not null
	for m := range plan.Members() {
		switch st, _ := d.lan.status(m.PeerID); {
		case known[m.PeerID] || st.Kind != "":
			if s := d.peer(*m); all || s.Path != describe.Idle {
				out = append(out, s)
				continue
			}
		case all:
			never := peers.Status{Path: paths.Path{Kind: paths.KindNone}}
			out = append(out, describe.LAN(describe.Peer(*m, never, tunnel.PeerStats{}), st))
			continue
		}
		idle++
	}
	slices.SortFunc(out, func(x, y control.PeerStatus) int { return strings.Compare(x.Node, y.Node) })
	return out, idle
}

// problems are what status reports about this host: why the membership is outdated, and
// the kernel's findings.
func (b *backend) problems() []control.Finding {
	plan, problem := b.force.plan()
	var out []control.Finding
	if f := b.checkMembership(plan, problem); f.Severity != control.OK {
		out = append(out, f)
	}
	for _, f := range b.checkRefused(plan) {
		if f.Check == "keys" || f.Check == "handshakes" {
			out = append(out, f)
		}
	}
	if b.cfg.Membership.Kubernetes != nil {
		out = append(out, diagnose.NodeIPMissing(plan.Plan)...)
	}
	return oneLined(append(out, b.kernel.findings(plan.Host)...))
}

// oneLined has each finding's detail on one line.
func oneLined(all []control.Finding) []control.Finding {
	for i := range all {
		all[i].Detail = causes.OneLine(all[i].Detail)
	}
	return all
}

// allOffloads are those of a kernel since 6.2.
const allOffloads = tun.Checksum | tun.TSO4 | tun.TSO6 | tun.TSOECN | tun.USO4 | tun.USO6

// degradations lists what this host does not provide: for connections, and for the device.
func degradations(dev tun.Device, of []socket.Fallback) []control.Fallback {
	var out []control.Fallback
	for _, f := range of {
		out = append(out, control.Fallback(f))
	}
	switch have := dev.Offloads(); {
	case dev.Kind() == "portable":
		out = append(out, control.Fallback{What: "offloads",
			Effect: "the TUN carries single packets: several times the CPU for the same throughput",
			Remedy: "use a kernel whose TUN has IFF_VNET_HDR"})
	case have&allOffloads != allOffloads:
		out = append(out, control.Fallback{What: "offloads",
			Effect: "the TUN's offloads are " + have.String() + ": the rest is done in software",
			Remedy: "use Linux 6.2 or later for UDP super-segments (uso4, uso6)"})
	}
	return out
}

// reportDegraded logs what this host does not provide.
func reportDegraded(log *slog.Logger, all []control.Fallback) {
	for _, f := range all {
		log.Warn("running degraded: "+f.What, "effect", f.Effect, "remedy", f.Remedy)
	}
}
