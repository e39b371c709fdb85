package explain

import (
	"context"
	"net/netip"
	"slices"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
)

// answer is this node's side of the pair: what it makes of packets that a peer sends from one of its addresses to one of ours.
func answer(ctx context.Context, a Agent, peer mesh.Node, from, to netip.Addr) []findings.Finding {
	plan, membership := a.Plan()
	e := end{agent: a, plan: plan, node: peer, ip: from}
	out := []findings.Finding{e.pair(to)}
	if membership.Severity != findings.OK {
		out = append(out, findings.Warningf(membership.ID, "run doctor there", "this node's membership is outdated"))
	}
	if out[0].Severity == findings.Broken {
		return out
	}
	policy := e.policy()
	if policy.Severity == findings.Broken { // they answer, all the same
		policy.Severity = findings.Warning
	}
	out = append(append(out, policy), e.kernel(ctx, to, from)...)
	out = append(out, e.route(), e.path(false), e.counters())
	if to != gatewayFor(plan.Self, to) {
		out = append(out, a.Policy(from, to), e.pod(ctx, to))
	}
	return out
}

// pair compares what the two nodes believe of each other: where their memberships differ, packets are refused.
func (e end) pair(to netip.Addr) findings.Finding {
	const remedy = "the nodes' memberships differ: see `membership` in `edgemesh-agent doctor` on both, and bring the older one up to date"
	has := func(blocks []netip.Prefix, ip netip.Addr) bool {
		return slices.ContainsFunc(blocks, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	switch {
	case !has(e.plan.Self.PodCIDRs, to):
		return findings.Brokenf("owner", remedy, "%s is not in this node's blocks %v: packets to it are refused here", to, e.plan.Self.PodCIDRs)
	case !has(e.node.PodCIDRs, e.ip):
		return findings.Brokenf("owner", remedy, "%s is not in the blocks %v that %s has here: packets from there are refused", e.ip, e.node.PodCIDRs, e.node.Name)
	}
	return findings.Okayf("owner", "%s is this node's, %s is %s's", to, e.ip, e.node.Name)
}

// pod probes a pod of this node.
func (e end) pod(ctx context.Context, ip netip.Addr) findings.Finding {
	const runs = "check that the pod runs, and has this address: `kubectl get pods -A -o wide`"
	has, err := e.agent.HasPod(ip)
	switch {
	case err != nil:
		return findings.Warningf("pod", "run doctor there", "the records of pods' addresses cannot be read")
	case !has:
		return findings.Brokenf("pod", runs, "no pod of this node has the address %s", ip)
	case echoed(ctx, ip, 0, echoes) == 0:
		return findings.Brokenf("pod", "look into the pod: is its network namespace as it was made (`ip addr`, `ip route`), does it answer ICMP?",
			"%s is a pod's, which does not answer its own node either", ip)
	}
	return findings.Okayf("pod", "%s answers its own node", ip)
}
