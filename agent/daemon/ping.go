package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
)

// pingTimeout bounds one ping: clients wait for 10 s.
const pingTimeout = 9500 * time.Millisecond

// Ping implements control.Backend. The error is ErrNoTarget, or says why no
// probe could be made; lost probes are in the reply.
func (b *backend) Ping(ctx context.Context, r control.PingRequest) (control.PingReply, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	plan, _ := b.force.plan()
	node, ip, err := target(plan.Plan, r.Target)
	if err != nil {
		return control.PingReply{}, err
	}
	out := control.PingReply{Target: r.Target, Node: node.Name}
	if ip.IsValid() {
		out.PodIP = ip.String()
		out.Probes, err = echo(ctx, ip, r.Count)
	} else if node.Name == plan.Self.Name {
		return out, fmt.Errorf("ping %s: that is this node", r.Target)
	} else if gateway := b.lan.gateway(node); gateway.IsValid() { // the path in use is the kernel's
		out.Probes, err = echo(ctx, gateway, r.Count)
	} else {
		out.Probes = b.pingNode(ctx, plan.id(node.PeerID), r.Count)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return out, fmt.Errorf("ping %s: %w", r.Target, err)
	}
	if node.Name != plan.Self.Name {
		p, _ := b.node.PeerStatus(plan.id(node.PeerID))
		st := describeLAN(b.lan, node, control.PeerStatus{Path: string(p.Path.Kind), Transport: p.Path.Transport})
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
func (b *backend) pingNode(ctx context.Context, id peer.ID, count int) []control.PingResult {
	var out []control.PingResult
	for seq := 1; seq <= count; seq++ {
		r := control.PingResult{Seq: seq}
		started := time.Now()
		probe, cancel := context.WithTimeout(ctx, pingWait)
		rtt, path, err := b.node.Ping(probe, id)
		cancel()
		if err != nil {
			r.Error = err.Error()
		} else {
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
