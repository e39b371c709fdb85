package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
	"edgemesh/tunnel"
	"edgemesh/tunnel/p2p"
)

// pathIdle is the path of a member never talked to, or let go.
const pathIdle = "idle"

var _ control.Backend = (*daemon)(nil)

// current returns the plan in force and the membership's problem, if any.
func (d *daemon) current() (mesh.Plan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plan, d.problem
}

// Status implements control.Backend.
func (d *daemon) Status() control.Status {
	return control.Status{Node: d.cfg.NodeName, PeerID: d.id.String(), Relays: d.relayStatus(), Peers: d.peerStatus(), Pools: d.pools(), Fallbacks: d.lacks, Problems: d.problems()}
}

// peerStatus lists all other members.
func (d *daemon) peerStatus() []control.PeerStatus {
	plan, _ := d.current()
	out := []control.PeerStatus{}
	traffic := map[tunnel.PeerID]tunnel.PeerStats{}
	for _, p := range d.tunnel.Stats().Peers {
		traffic[p.Peer] = p
	}
	for _, m := range plan.Members {
		id := peer.ID(plan.IDs[m.PeerID])
		p, _ := d.node.PeerStatus(id)
		out = append(out, d.lan.describe(m, peerStatus(m, p, traffic[tunnel.PeerID(id)])))
	}
	return out
}

func (d *daemon) relayStatus() []control.RelayStatus {
	out := []control.RelayStatus{}
	for _, r := range d.node.Status().Relays {
		s := control.RelayStatus{
			PeerID: r.ID.String(), Addr: r.Addr, Connected: r.Connected, Reserved: r.Reserved, Spare: r.Spare, Error: r.Error,
		}
		if r.RTT > 0 {
			s.RTTMs = millis(r.RTT)
		}
		out = append(out, s)
	}
	return out
}

func peerStatus(m mesh.Node, p p2p.PeerStatus, t tunnel.PeerStats) control.PeerStatus {
	s := control.PeerStatus{
		Node: m.Name, PeerID: string(m.PeerID), PodCIDRs: texts(m.PodCIDRs),
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
	if p.Path.Kind == p2p.KindNone && !p.Wanted && !waiting(t) {
		return s
	}
	s.Path, s.Transport, s.Relay, s.Reason = string(p.Path.Kind), p.Path.Transport, p.Path.Relay, p.Reason
	if p.Path.RTT > 0 {
		s.RTTMs = millis(p.Path.RTT)
	}
	if !p.Since.IsZero() {
		s.Since = &p.Since
	}
	return s
}

// texts never is nil: JSON has lists, not null.
func texts(prefixes []netip.Prefix) []string {
	out := make([]string, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// waiting says whether packets wait for a path.
func waiting(t tunnel.PeerStats) bool {
	return slices.ContainsFunc(t.Lanes[:], func(l tunnel.LaneStats) bool {
		return l.State == tunnel.LaneConnecting || l.QueuedPackets > 0
	})
}

// oneLine is text with its lines joined by "; ": errors may bring several.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "; ")
}

func millis(d time.Duration) *float64 {
	ms := float64(d.Microseconds()) / 1000
	return &ms
}

// Ping implements control.Backend. The error is ErrNoTarget, or says why no
// probe could be made; lost probes are in the reply.
func (d *daemon) Ping(ctx context.Context, r control.PingRequest) (control.PingReply, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	plan, _ := d.current()
	node, ip, err := target(plan, r.Target)
	if err != nil {
		return control.PingReply{}, err
	}
	out := control.PingReply{Target: r.Target, Node: node.Name}
	if ip.IsValid() {
		out.PodIP = ip.String()
		out.Probes, err = echo(ctx, ip, r.Count)
	} else if node.Name == plan.Self.Name {
		return out, fmt.Errorf("ping %s: that is this node", r.Target)
	} else if gateway := d.lan.gateway(node); gateway.IsValid() { // the path in use is the kernel's
		out.Probes, err = echo(ctx, gateway, r.Count)
	} else {
		out.Probes = d.pingNode(ctx, peer.ID(plan.IDs[node.PeerID]), r.Count)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return out, fmt.Errorf("ping %s: %w", r.Target, err)
	}
	if node.Name != plan.Self.Name {
		p, _ := d.node.PeerStatus(peer.ID(plan.IDs[node.PeerID]))
		st := d.lan.describe(node, control.PeerStatus{Path: string(p.Path.Kind), Transport: p.Path.Transport})
		out.Path, out.Transport = st.Path, st.Transport
	} else {
		out.Path = "local"
	}
	summarize(&out)
	return out, nil
}

// target finds the member a ping means: by name, or as owner of a pod's address.
func target(plan mesh.Plan, text string) (mesh.Node, netip.Addr, error) {
	all := append([]mesh.Node{plan.Self}, plan.Members...)
	ip, err := netip.ParseAddr(text)
	if err != nil {
		for _, n := range all {
			if n.Name == text {
				return n, netip.Addr{}, nil
			}
		}
		return mesh.Node{}, ip, fmt.Errorf("ping %s: %w (see `edgemesh-agent status` for the names)", text, ErrNoTarget)
	}
	for _, n := range all {
		for _, b := range n.PodCIDRs {
			if b.Contains(ip) {
				return n, ip, nil
			}
		}
	}
	return mesh.Node{}, ip, fmt.Errorf("ping %s: %w: no member's podCIDRs contain it", text, ErrNoTarget)
}

// pingNode sends count authenticated echoes over the path in use.
func (d *daemon) pingNode(ctx context.Context, id peer.ID, count int) []control.PingResult {
	var out []control.PingResult
	for seq := 1; seq <= count; seq++ {
		r := control.PingResult{Seq: seq}
		var rtt time.Duration
		var path p2p.Path
		started := time.Now()
		probe, cancel := context.WithTimeout(ctx, pingWait)
		rtt, path, r.Error = pingOnce(probe, d.node, id)
		cancel()
		if r.Error == "" {
			r.RTTMs, r.Path = millis(rtt), string(path.Kind)
		}
		out = append(out, r)
		if seq == count || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(started.Add(pingInterval))):
		}
	}
	return out
}

func pingOnce(ctx context.Context, n *p2p.Node, id peer.ID) (time.Duration, p2p.Path, string) {
	rtt, path, err := n.Ping(ctx, id)
	if err != nil {
		return 0, path, err.Error()
	}
	return rtt, path, ""
}

// summarize fills in the reply's numbers from its probes.
func summarize(r *control.PingReply) {
	r.Sent = len(r.Probes)
	var sum float64
	for _, p := range r.Probes {
		if p.RTTMs == nil {
			continue
		}
		v := *p.RTTMs
		r.Received++
		sum += v
		if r.MinMs == nil || v < *r.MinMs {
			r.MinMs = &v
		}
		if r.MaxMs == nil || v > *r.MaxMs {
			r.MaxMs = &v
		}
	}
	if r.Received > 0 {
		avg := sum / float64(r.Received)
		r.AvgMs = &avg
	}
}
