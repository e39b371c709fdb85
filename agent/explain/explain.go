// Package explain follows a packet from this node to one address, step by step, and lets the agent at the other end follow
// the answer. The first step that is broken is the cause.
//
//	explain.go  the steps from here
//	steps.go    those that both ends take: policy, kernel, route, path, counters
//	far.go      the steps at the other end, about the querying member alone
//	wire.go     query and answer, and how often a member may send one
package explain

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/agent/control"
	"edgemesh/agent/diagnose"
	"edgemesh/agent/echo"
	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
)

const (
	// echoes is how many packets each step sends, and interval how far they are apart.
	echoes   = 2
	interval = 250 * time.Millisecond
	// largeEchoes is how many of full size: on a lossy link some of them come back, through an MTU hole none.
	largeEchoes = 5
)

// Agent is what the steps need of the running agent.
type Agent interface {
	// Plan is the membership in force, and what is wrong with its source.
	Plan() (mesh.Plan, findings.Finding)
	// Peer says how another member is reached now.
	Peer(mesh.Node) control.PeerStatus
	// Ping probes the agent there over the tunnel, and says over which path the answer came.
	Ping(context.Context, mesh.Node) (rtt time.Duration, over string, err error)
	// Host compares the kernel with what is wanted, and names what blocks packets, those between a pod of this node and a far one among them;
	// either may be invalid.
	Host(ctx context.Context, own, far netip.Addr) []findings.Finding
	// HasPod reports whether a pod of this node has the address.
	HasPod(netip.Addr) (bool, error)
	// Policy says what NetworkPolicies do to packets for a pod of this node, or of its pods to one of another; from may be invalid.
	Policy(from, to netip.Addr) findings.Finding
	// Open opens a stream to the agent of another member.
	Open(context.Context, mesh.Node) (Stream, error)
}

// To explains what happens to packets from this node to ip, which is node's, or to node itself without one.
func To(ctx context.Context, a Agent, node mesh.Node, ip netip.Addr) []findings.Finding {
	plan, membership := a.Plan()
	if !ip.IsValid() {
		ip = gatewayOf(node)
	}
	e := end{agent: a, plan: plan, node: node, ip: ip, local: node.Name == plan.Self.Name}
	out := []findings.Finding{e.owner()}
	if membership.Severity != findings.OK {
		out = append(out, membership)
	}
	own, far := netip.Addr{}, e.ip
	if e.local {
		own, far = e.ip, own
	}
	out = append(append(out, e.policy()), e.kernel(ctx, own, far)...)
	out = append(out, e.route())
	if e.local {
		return append(append(out, a.Policy(netip.Addr{}, ip)), e.reach(ctx)...)
	}
	agent := e.ping(ctx) // connects, so that there is a path to describe
	out = append(out, a.Policy(netip.Addr{}, ip), e.path(agent.Severity == findings.Broken), agent, e.counters())
	var there, reached []findings.Finding
	var wg sync.WaitGroup
	if agent.Severity != findings.Broken {
		wg.Go(func() { there = e.farSide(ctx) })
	}
	reached = e.reach(ctx)
	wg.Wait()
	there = blamed(there, reached)
	rest := consequences(there, reached) // before there is copied: it names the victims
	return slices.Concat(out, there, rest)
}

// gatewayOf is a node's own address among its pods.
func gatewayOf(n mesh.Node) netip.Addr {
	if len(n.PodCIDRs) == 0 {
		return netip.Addr{}
	}
	return mesh.Gateway(n.PodCIDRs[0])
}

func (e end) owner() findings.Finding {
	i := slices.IndexFunc(e.node.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(e.ip) })
	if i < 0 {
		return findings.Brokenf("owner", "give the node a block in the membership", "%s owns no pod addresses", e.node.Name)
	}
	here := ""
	if e.local {
		here = ", this node"
	}
	return findings.Okayf("owner", "%s is in block %s of node %s%s", e.ip, e.node.PodCIDRs[i], e.node.Name, here)
}

// ping probes the agent there, over the tunnel.
func (e end) ping(ctx context.Context) findings.Finding {
	ctx, cancel := context.WithTimeout(ctx, echo.Wait)
	defer cancel()
	rtt, over, err := e.agent.Ping(ctx, e.node)
	if err != nil {
		return findings.Brokenf("agent", "run doctor on "+e.node.Name+" and `edgemesh-agent netcheck` on both nodes: is the agent there running, and does it have a reservation at a relay?",
			"the agent of %s does not answer: %v", e.node.Name, err)
	}
	return findings.Okayf("agent", "the agent of %s answers in %v, %s", e.node.Name, rtt.Round(10*time.Microsecond), over)
}

// reach sends packets to the node itself and to the pod: what the first one passes, and the second one does not, is the far
// node's.
func (e end) reach(ctx context.Context) []findings.Finding {
	gateway := gatewayFor(e.node, e.ip)
	atNode := echoed(ctx, gateway, 0, echoes)
	out := []findings.Finding{e.answered("node", gateway, atNode,
		"run doctor on "+e.node.Name+": its TUN, routes, FORWARD policy or hostAccess drop what the tunnel delivers")}
	if size := mtu(e.ip); atNode == echoes && !e.local && size > 0 {
		out = append(out, diagnose.Large(e.node.Name, gateway.String(), e.agent.Peer(e.node).Path, size, echoed(ctx, gateway, size, largeEchoes), largeEchoes))
	}
	if gateway == e.ip {
		return out
	}
	remedy := "check that the pod runs (`kubectl get pods -A -o wide`), and NetworkPolicies for it; then run doctor on " + e.node.Name
	if atNode == 0 {
		remedy = "see the steps above: the node itself is not reached"
	}
	return append(out, e.answered("pod", e.ip, echoed(ctx, e.ip, 0, echoes), remedy))
}

func (e end) answered(check string, ip netip.Addr, n int, remedy string) findings.Finding {
	if n == 0 {
		return findings.Brokenf(check, remedy, "%s answers none of %d ICMP echo requests", ip, echoes)
	}
	if n < echoes {
		return findings.Warningf(check, "look at the loss with `edgemesh-agent ping "+e.node.Name+" --count 0`", "%s answers %d of %d ICMP echo requests", ip, n, echoes)
	}
	return findings.Okayf(check, "%s answers %d of %d ICMP echo requests", ip, n, echoes)
}

// blamed makes a cause of what the other end's firewall may be doing, where its pod answers there and not here.
func blamed(there, reached []findings.Finding) []findings.Finding {
	lost := slices.ContainsFunc(reached, func(f findings.Finding) bool { return f.ID == "pod" && f.Severity == findings.Broken })
	for i, f := range there {
		if lost && f.Severity == findings.Warning && slices.Contains([]string{"nftables", "iptables"}, f.ID) {
			there[i].Severity = findings.Broken
			there[i].Text = strings.Replace(f.Text, "pods may be unreachable", "pods are unreachable", 1)
		}
	}
	return there
}

// consequences makes what is not answered here a victim of the first that is broken at the other end, and returns the rest.
func consequences(there, reached []findings.Finding) []findings.Finding {
	cause := slices.IndexFunc(there, func(f findings.Finding) bool { return f.Severity == findings.Broken })
	return slices.DeleteFunc(slices.Clone(reached), func(f findings.Finding) bool {
		follows := cause >= 0 && f.Severity == findings.Broken && (f.ID == "node" || f.ID == "pod")
		if follows {
			there[cause].Victims = append(there[cause].Victims, f.ID+" "+f.Text)
		}
		return follows
	})
}

// farSide queries the agent at the other end.
func (e end) farSide(ctx context.Context) []findings.Finding {
	all, err := fetch(ctx, e.agent, e.node, query{From: gatewayFor(e.plan.Self, e.ip).String(), To: e.ip.String()})
	if err != nil {
		f := findings.Okayf("there", "%s does not report its side, as an agent of an older release, or one that starts: %v", e.node.Name, err)
		f.Node = e.node.Name
		return []findings.Finding{f}
	}
	for i := range all {
		all[i].Node = e.node.Name
	}
	return all
}
