package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/agent/control"
	"edgemesh/agent/describe"
	"edgemesh/agent/echo"
	"edgemesh/internal/cause"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p"
	"edgemesh/tunnel/p2p/who/admit"
)

const (
	// pingTimeout bounds one ping of so many probes: clients wait for 10 s.
	pingTimeout = 9500 * time.Millisecond
	// pingInterval is the pause between two probes where the client names none, leastInterval the shortest.
	pingInterval  = 250 * time.Millisecond
	leastInterval = 50 * time.Millisecond
)

// pinger pings other nodes and their pods.
type pinger struct {
	reach reach
}

// Ping pings the target. The error is ErrNoTarget, or says why no
// probe could be made; lost probes are in the reply.
func (p pinger) Ping(ctx context.Context, r control.PingRequest, each func(control.PingResult)) (control.PingReply, error) {
	if r.Count > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, pingTimeout)
		defer cancel()
	}
	plan := p.reach.plan()
	node, ip, err := target(plan, r.Target)
	if err != nil {
		return control.PingReply{}, err
	}
	one := &pinging{reach: p.reach, node: node, id: admit.ID(node.PeerID), local: node.Name == plan.Self.Name, each: each, count: r.Count,
		interval: pingInterval, out: control.PingReply{Target: r.Target, Node: node.Name, Probes: []control.PingResult{}}}
	if r.IntervalMs > 0 {
		one.interval = max(leastInterval, time.Duration(r.IntervalMs)*time.Millisecond)
	}
	gateway := p.reach.lan.gateway(node)
	switch {
	case ip.IsValid():
		one.out.PodIP = ip.String()
		err = one.echo(ctx, ip)
	case one.local:
		return one.out, fmt.Errorf("ping %s: that is this node", r.Target)
	case gateway.IsValid(): // the path in use is the kernel's
		err = one.echo(ctx, gateway)
	default:
		one.probe(ctx)
	}
	if err != nil && ctx.Err() == nil {
		return one.out, fmt.Errorf("ping %s: %w", r.Target, err)
	}
	st := one.status()
	one.out.Path, one.out.Transport, one.out.Relay, one.out.Reason = st.Path, st.Transport, st.Relay, st.Reason
	if r.Timeline && !one.local {
		one.out.Timeline = one.timeline(ctx)
	}
	slices.SortFunc(one.out.Probes, func(x, y control.PingResult) int { return x.Seq - y.Seq })
	return one.out, nil
}

// pinging is one ping.
type pinging struct {
	reach    reach
	node     mesh.Node
	id       peer.ID
	local    bool
	count    int // 0: until the client is gone
	interval time.Duration
	each     func(control.PingResult)
	out      control.PingReply
}

// timeline is the last first contact with the target.
func (p *pinging) timeline(ctx context.Context) *control.Timeline {
	steps := func(c p2p.Contact) []control.Step {
		out := []control.Step{}
		for _, e := range c.Events {
			out = append(out, control.Step{Step: string(e.Step), Ms: float64(e.After.Microseconds()) / 1000})
		}
		return out
	}
	here := p.reach.node.Contact(p.id)
	out := &control.Timeline{Here: steps(here), There: []control.Step{}}
	if len(here.Events) > 0 {
		out.Ago = wording.Duration(here.Age.Truncate(time.Second))
	}
	there, err := p.reach.node.ContactThere(ctx, p.id)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	out.There = steps(there)
	return out
}

// add takes the outcome of one probe.
func (p *pinging) add(r control.PingResult) {
	p.out.Add(r, p.count > 0)
	p.each(r)
}

// status says how packets reach the target now.
func (p *pinging) status() control.PeerStatus {
	if p.local {
		return control.PeerStatus{Path: "local"}
	}
	return p.reach.path(p.node.PeerID)
}

// onPath adds to an answered probe which path it took.
func (p *pinging) onPath(r control.PingResult) control.PingResult {
	st := p.status()
	r.Path, r.Transport, r.Relay, r.Endpoint, r.Reason = st.Path, st.Transport, st.Relay, st.Endpoint, st.Reason
	return r
}

// echo sends ICMP echo requests.
func (p *pinging) echo(ctx context.Context, ip netip.Addr) error {
	return echo.Run(ctx, ip, p.count, p.interval, func(e echo.Result) {
		r := control.PingResult{Seq: e.Seq}
		if e.Err != nil {
			r.Cause, r.Error = cause.NotSent, e.Err.Error()
			if errors.Is(e.Err, echo.ErrLost) {
				r.Cause = cause.NoAnswer
			}
			r.Reason = p.status().Reason
		} else {
			r.RTTMs = describe.Millis(e.RTT)
			r = p.onPath(r)
		}
		p.add(r)
	})
}

// probe sends authenticated echoes over the path in use.
func (p *pinging) probe(ctx context.Context) {
	for seq := 1; ctx.Err() == nil; seq++ {
		started := time.Now()
		one, cancel := context.WithTimeout(ctx, echo.Wait)
		rtt, path, err := p.reach.node.Ping(one, p.id)
		cancel()
		if errors.Is(ctx.Err(), context.Canceled) {
			return // the client is gone
		}
		r := p.onPath(control.PingResult{Seq: seq})
		if err != nil {
			r = control.PingResult{Seq: seq, Reason: r.Reason, Cause: p2p.Cause(err), Error: err.Error()}
		} else {
			r.RTTMs = describe.Millis(rtt)
			r.Path, r.Transport, r.Relay, r.Endpoint = string(path.Kind), path.Transport, path.Relay, path.Addr
		}
		p.add(r)
		if seq == p.count {
			return
		}
		wake.Sleep(ctx, time.Until(started.Add(p.interval)))
	}
}

// target finds the member a ping means: by name, or as owner of a pod's address.
func target(plan mesh.Plan, text string) (mesh.Node, netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		var names []string
		for _, n := range plan.Nodes {
			if n.Name == text {
				return n, netip.Addr{}, nil
			}
			names = append(names, n.Name)
		}
		return mesh.Node{}, ip, fmt.Errorf("%s: %w%s; `edgemesh-agent status --all` lists the nodes", text, ErrNoTarget, wording.Offer(text, names))
	}
	if n, ok := plan.Owner(ip); ok {
		return n, ip, nil
	}
	ranges := plan.Subnet.ClusterCIDRs
	if !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(ip) }) {
		return mesh.Node{}, ip, fmt.Errorf("%s: %w: it is outside the cluster's pod ranges %v", text, ErrNoTarget, ranges)
	}
	return mesh.Node{}, ip, fmt.Errorf("%s: %w: it is in the cluster's pod ranges %v, but no member's podCIDRs contain it", text, ErrNoTarget, ranges)
}
