package daemon

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/admit"
	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/agent/mesh"
	"edgemesh/agent/nodeip"
	"edgemesh/agent/observe"
	"edgemesh/internal/causes"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p/socket"
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
}

// Status implements control.Backend.
func (b *backend) Status() control.Status {
	plan, _ := b.force.plan()
	st := b.node.Status()
	return control.Status{
		Node: b.cfg.NodeName, PeerID: b.id.String(), Version: b.opts.Version, StartedAt: b.started, Site: plan.Self.Site, NAT: describe.NAT(st),
		Addresses: describe.Texts(b.kernel.addresses()), Relays: describe.Relays(st.Relays), Peers: b.peers(),
		Pools: pools(b.kernel.pods, b.log), Fallbacks: b.degraded, Problems: b.problems(),
	}
}

// LogLevel implements control.Backend.
func (b *backend) LogLevel() *slog.LevelVar { return b.opts.level() }

// peer is how one other member is reached.
func (d *daemon) peer(m mesh.Node) control.PeerStatus {
	id := admit.ID(m.PeerID)
	p, _ := d.node.PeerStatus(id)
	st, _ := d.lan.status(m.PeerID)
	return describe.LAN(describe.Peer(m, p, d.tunnel.StatsOf(tunnel.PeerID(id))), st)
}

// peers lists all other members.
func (d *daemon) peers() []control.PeerStatus {
	plan, _ := d.force.plan()
	out := []control.PeerStatus{}
	for _, m := range plan.ByName() {
		out = append(out, d.peer(m))
	}
	return out
}

// inUse lists the members to which there is a path, or for which packets wait, in order of name, and counts the others,
// of whom nothing is worked out.
func (d *daemon) inUse() (used []control.PeerStatus, idle int) {
	plan, _ := d.force.plan()
	known := map[mesh.PeerID]bool{}
	for _, p := range d.node.Status().Peers {
		known[mesh.PeerID(p.Peer.String())] = true
	}
	for _, p := range d.tunnel.Stats().Peers {
		known[mesh.PeerID(peer.ID(p.Peer).String())] = true
	}
	for m := range plan.Members() {
		if st, _ := d.lan.status(m.PeerID); known[m.PeerID] || st.Kind != "" {
			if s := d.peer(*m); s.Path != describe.Idle {
				used = append(used, s)
				continue
			}
		}
		idle++
	}
	slices.SortFunc(used, func(x, y control.PeerStatus) int { return strings.Compare(x.Node, y.Node) })
	return used, idle
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
		out = append(out, nodeip.Missing(plan.Plan)...)
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
