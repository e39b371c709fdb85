package diagnose

import (
	"net/netip"
	"slices"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nodeip"
	"edgemesh/internal/wording"
)

// nodeIP is the name of the findings.
const nodeIP = "node-ip"

// NodeIP says what is wrong with the addresses that this node's kubelet reports (p.Self.NodeIPs), and what to do about it.
// stateDir holds the record of what `edgemesh-agent install` configured kubelet with.
func NodeIP(p mesh.Plan, stateDir string) []findings.Finding {
	configured, err := nodeip.Recorded(stateDir)
	var here []netip.Addr
	if err == nil {
		here, err = nodeip.Present(slices.Concat(mesh.Addresses(p.Self.PodCIDRs), p.Self.NodeIPs, configured))
	}
	if err != nil {
		return []findings.Finding{findings.Warningf(nodeIP, "fix the cause", "the addresses that kubelet reports could not be checked: %v", err)}
	}
	return judgeNodeIP(p, configured, here)
}

// NodeIPReported says whether this node's kubelet reports a mesh address.
func NodeIPReported(p mesh.Plan) bool {
	wanted := mesh.Addresses(p.Self.PodCIDRs)
	return slices.ContainsFunc(p.Self.NodeIPs, func(a netip.Addr) bool { return slices.Contains(wanted, a) })
}

// NodeIPMissing is NodeIP's finding of a Node that has no address at all; it looks at nothing but p.
func NodeIPMissing(p mesh.Plan) []findings.Finding {
	if len(p.Self.NodeIPs) > 0 && !p.Self.Unreported {
		return nil
	}
	return []findings.Finding{findings.Warningf("node-ip-missing", nodeIPRemedy(p), "kubelet reports no address: its --node-ip names one that this host does not have; "+
		"logs, exec and Services of this node lead nowhere")}
}

// nodeIPRemedy gives the Node its mesh addresses.
func nodeIPRemedy(p mesh.Plan) string {
	return wording.Sprintf("run `edgemesh-agent install --node-ip` on this node (and `--form daemonset`, if the cluster runs the agent), or set kubelet's --node-ip (edgecore: nodeIP) to %s and restart it",
		mesh.Addresses(p.Self.PodCIDRs))
}

// judgeNodeIP is NodeIP. here are those of all these addresses that the host has.
func judgeNodeIP(p mesh.Plan, configured, here []netip.Addr) []findings.Finding {
	wanted := mesh.Addresses(p.Self.PodCIDRs)
	set := nodeIPRemedy(p)
	if missing := NodeIPMissing(p); missing != nil {
		return missing
	}
	var out []findings.Finding
	warn := func(detail string, args ...any) { out = append(out, findings.Warningf(nodeIP, set, detail, args...)) }
	other := 0
	for _, a := range p.Self.NodeIPs {
		owner, owned := p.Owner(a)
		switch {
		case slices.Contains(wanted, a) && !slices.Contains(here, a):
			out = append(out, findings.Brokenf(nodeIP, "see the other findings about the bridge or IPv6; where the host has no IPv6, give kubelet the other address only",
				"kubelet reports %s, which this host does not have", a))
		case slices.Contains(wanted, a):
		case owned && owner.Name == p.Self.Name:
			warn("kubelet reports %s, which is not the first address of this node's first block: the mesh address is %s", a, wanted)
		case owned:
			out = append(out, findings.Brokenf(nodeIP, set, "kubelet reports %s, which belongs to node %s: logs, exec and Services of this node go there", a, owner.Name))
		case !slices.Contains(here, a):
			warn("kubelet reports %s, which this host does not have: it refuses to report an address that the host lacks, and the Node keeps the former one", a)
		case mesh.Inside(p.Host.ClusterCIDRs, netip.PrefixFrom(a, a.BitLen())):
			warn("kubelet reports %s, of a block that this node no longer has; it stays on the bridge until kubelet's setting follows, but no other node reaches it", a)
		case slices.Contains(configured, a):
			warn("kubelet reports %s, as configured, which is no longer this node's mesh address: that is %s", a, wanted)
		default:
			other++
		}
	}
	if len(out) == 0 {
		out = notFollowed(p, configured, here)
	}
	switch {
	case len(out) > 0:
	case other == len(p.Self.NodeIPs) && !slices.ContainsFunc(wanted, func(a netip.Addr) bool { return slices.Contains(here, a) }): // cniMode keep, for instance
		out = append(out, findings.Okayf(nodeIP, "kubelet reports %s, which other sites cannot reach; this host has no mesh address that it could report", p.Self.NodeIPs))
	case other > 0 && other < len(p.Self.NodeIPs) && !slices.Contains(wanted, p.Self.NodeIPs[0]):
		warn("kubelet reports %s: the first is the Node's address for most programs, and other sites cannot reach it", p.Self.NodeIPs)
	case other == len(p.Self.NodeIPs):
		out = append(out, findings.Okayf(nodeIP, "kubelet reports %s, which other sites cannot reach; `edgemesh-agent install --node-ip` makes it %s", p.Self.NodeIPs, wanted))
	default:
		out = append(out, findings.Okayf(nodeIP, "kubelet reports %s, reached by its mesh address from everywhere", p.Self.NodeIPs))
	}
	return out
}

// notFollowed is for a kubelet that reports other addresses than configured. One that refuses an address
// that the host lacks leaves what the Node had: only this comparison shows it.
func notFollowed(p mesh.Plan, configured, here []netip.Addr) []findings.Finding {
	if !slices.ContainsFunc(configured, func(a netip.Addr) bool { return !slices.Contains(p.Self.NodeIPs, a) }) {
		return nil
	}
	wanted := mesh.Addresses(p.Self.PodCIDRs)
	for _, a := range configured {
		switch {
		case slices.Contains(here, a):
		case slices.Contains(wanted, a):
			return []findings.Finding{findings.Warningf(nodeIP, "see the other findings about the bridge or IPv6; where the host has no IPv6, run `edgemesh-agent install --node-ip` again",
				"kubelet is configured to report %s, which this host does not have: it refuses that, and the Node keeps %s", a, p.Self.NodeIPs)}
		default:
			return []findings.Finding{findings.Warningf(nodeIP, "run `edgemesh-agent install --node-ip` again, or with =off",
				"kubelet is configured to report %s, which is no longer this node's and which this host does not have: it refuses that, and the Node keeps %s", a, p.Self.NodeIPs)}
		}
	}
	return []findings.Finding{findings.Warningf(nodeIP, "wait a minute; then restart kubelet (k3s, edgecore), and look for another --node-ip on its command line, which overrules ours; "+
		"`edgemesh-agent install --node-ip=off` gives up the mesh address",
		"kubelet is configured to report %s, and the Node has %s", configured, p.Self.NodeIPs)}
}
