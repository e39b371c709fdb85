package daemon

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
	"edgemesh/agent/observe"
	"edgemesh/internal/causes"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/paths"
	"edgemesh/tunnel/p2p/peers"
	"edgemesh/tunnel/p2p/relays"
	"edgemesh/tunnel/p2p/socket"
	"edgemesh/tunnel/tun"
)

// pathIdle is the path of a member that was never used, or was disconnected.
const pathIdle = "idle"

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
		Node: b.cfg.NodeName, PeerID: b.id.String(), Version: b.opts.Version, StartedAt: b.started, Site: plan.Self.Site, NAT: natStatus(st),
		Addresses: texts(b.kernel.addresses()), Relays: relayStatus(st.Relays), Peers: b.peerStatus(),
		Pools: pools(b.kernel.pods, b.log), Fallbacks: b.degraded, Problems: b.problems(),
	}
}

// LogLevel implements control.Backend.
func (b *backend) LogLevel() *slog.LevelVar { return b.opts.level() }

// peerStatus lists all other members.
func (b *backend) peerStatus() []control.PeerStatus { return b.peers(false) }

// peers lists the other members; inUse leaves out who was never talked to: of a thousand members that is nearly everybody.
func (b *backend) peers(inUse bool) []control.PeerStatus {
	plan, _ := b.force.plan()
	out := []control.PeerStatus{}
	traffic := map[tunnel.PeerID]tunnel.PeerStats{}
	for _, p := range b.tunnel.Stats().Peers {
		traffic[p.Peer] = p
	}
	for _, m := range plan.ByName() {
		id := plan.id(m.PeerID)
		p, known := b.node.PeerStatus(id)
		t, counted := traffic[tunnel.PeerID(id)]
		if inUse && !known && (!counted || t.Idle) {
			continue
		}
		out = append(out, describeLAN(b.lan, m, peerStatus(m, p, t)))
	}
	return out
}

func natStatus(st p2p.Status) control.NAT {
	return control.NAT{Kind: st.Kind.String(), Detail: st.NAT, Router: st.Router}
}

func relayStatus(all []relays.Status) []control.RelayStatus {
	out := []control.RelayStatus{}
	for _, r := range all {
		s := control.RelayStatus{
			PeerID: r.ID.String(), Addr: r.Addr, Proxy: r.Proxy, Connected: r.Connected, Reserved: r.Reserved, Spare: r.Spare, Error: r.Error,
		}
		if r.RTT > 0 {
			s.RTTMs = millis(r.RTT)
		}
		out = append(out, s)
	}
	return out
}

func punchStatus(p *peers.Punch) *control.Punch {
	if p == nil {
		return nil
	}
	out := &control.Punch{Attempts: p.Failed, Last: p.Last, Missing: p.Missing, Tried: p.Dials, Awaits: string(p.Await)}
	if out.Tried == nil {
		out.Tried = []string{}
	}
	if !p.Next.IsZero() {
		out.Next = &p.Next
	}
	return out
}

func peerStatus(m mesh.Node, p peers.Status, t tunnel.PeerStats) control.PeerStatus {
	s := control.PeerStatus{
		Node: m.Name, Site: m.Site, PeerID: string(m.PeerID), PodCIDRs: texts(m.PodCIDRs),
		Path: pathIdle, TxBytes: t.TxBytes, RxBytes: t.RxBytes, Drops: t.Drops.Total(),
	}
	for _, r := range tunnel.Reasons() {
		if n := t.Drops.Of(r); n > 0 {
			if s.DropsBy == nil {
				s.DropsBy = map[string]uint64{}
			}
			s.DropsBy[r.String()] = n
		}
	}
	if p.Path.Kind == paths.KindNone && !p.Wanted && !waiting(t) {
		return s
	}
	s.Path, s.Transport, s.Endpoint, s.Relay, s.Reason = string(p.Path.Kind), p.Path.Transport, p.Path.Addr, p.Path.Relay, p.Reason
	s.Detour, s.Punch = p.Detour, punchStatus(p.Punch)
	if p.Path.RTT > 0 {
		s.RTTMs = millis(p.Path.RTT)
	}
	if !p.Since.IsZero() {
		s.Since = &p.Since
	}
	var delay time.Duration
	for _, l := range t.Lanes {
		delay = max(delay, l.Delay)
	}
	if delay > 0 {
		s.QueueMs = millis(delay)
	}
	if rate := t.Lanes[tunnel.StreamLane].Rate; rate > 0 {
		mbps := math.Round(rate*8/1e4) / 100
		s.RateMbps = &mbps
	}
	return s
}

// describeLAN puts a native or VXLAN path in place of the tunnel's in a member's status,
// or adds why there is none.
func describeLAN(l *lanPaths, m mesh.Node, s control.PeerStatus) control.PeerStatus {
	st, ok := l.status(m.PeerID)
	if !ok {
		return s
	}
	s.LANBytes = st.Received
	if st.Kind == "" {
		if s.Path != pathIdle && st.Reason != "" {
			s.Reason = joinReasons(s.Reason, st.Reason)
		}
		return s
	}
	s.Path, s.Transport, s.Reason = string(st.Kind), string(st.Kind), st.Reason
	if st.Kind == mesh.Native {
		s.Transport = "ip"
	}
	s.Since, s.RTTMs, s.Relay, s.Endpoint = &st.Since, nil, "", st.Via.String()
	if st.RTT > 0 {
		s.RTTMs = millis(st.RTT)
	}
	return s
}

func joinReasons(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// texts is never nil: JSON has lists, not null.
func texts[T fmt.Stringer](all []T) []string {
	out := make([]string, 0, len(all))
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}

// waiting reports whether packets wait for a path.
func waiting(t tunnel.PeerStats) bool {
	return slices.ContainsFunc(t.Lanes[:], func(l tunnel.LaneStats) bool {
		return l.State == tunnel.LaneConnecting || l.QueuedPackets > 0
	})
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
	return oneLined(append(out, b.kernel.findings(plan.Host)...))
}

// oneLined has each finding's detail on one line.
func oneLined(all []control.Finding) []control.Finding {
	for i := range all {
		all[i].Detail = causes.OneLine(all[i].Detail)
	}
	return all
}

func millis(d time.Duration) *float64 {
	ms := float64(d.Microseconds()) / 1000
	return &ms
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
