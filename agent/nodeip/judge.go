package nodeip

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"edgemesh/agent/control"
	"edgemesh/agent/mesh"
)

// check is the name of the findings.
const check = "node-ip"

// Judge says what is wrong with the addresses that this node's kubelet reports (p.Self.NodeIPs), and what to do about it.
// here are those of the node's mesh addresses that the host has.
func Judge(p mesh.Plan, here []netip.Addr) []control.Finding {
	wanted := mesh.Addresses(p.Self.PodCIDRs)
	mine := text(wanted)
	set := fmt.Sprintf("run `edgemesh-agent install --node-ip` on this node, or set kubelet's --node-ip (edgecore: nodeIP) to %s and restart it", mine)
	if len(p.Self.NodeIPs) == 0 {
		return []control.Finding{control.Warningf(check, set, "kubelet reports no address: its --node-ip names one that this host does not have")}
	}
	var out []control.Finding
	warn := func(detail string, args ...any) { out = append(out, control.Warningf(check, set, detail, args...)) }
	other := 0
	for _, a := range p.Self.NodeIPs {
		in := slices.IndexFunc(p.Routes, func(r mesh.Route) bool { return r.Prefix.Contains(a) })
		switch {
		case slices.Contains(wanted, a) && !slices.Contains(here, a):
			out = append(out, control.Brokenf(check, "see the other findings about the bridge or IPv6; where the host has no IPv6, give kubelet the other address only",
				"kubelet reports %s, which this host does not have", a))
		case slices.Contains(wanted, a):
		case slices.Contains(p.Host.Former, a) && mesh.Inside(p.Host.ClusterCIDRs, netip.PrefixFrom(a, a.BitLen())):
			warn("kubelet reports %s, of a block that this node no longer has; it stays on the bridge until kubelet's setting follows, but no other node reaches it", a)
		case in < 0:
			other++
		case p.Routes[in].Self:
			warn("kubelet reports %s, which is not the first address of this node's first block: the mesh address is %s", a, mine)
		default:
			out = append(out, control.Brokenf(check, set, "kubelet reports %s, which belongs to node %s: logs, exec and Services of this node go there", a, owner(p, p.Routes[in].Peer)))
		}
	}
	switch {
	case len(out) > 0:
	case other == len(p.Self.NodeIPs) && len(here) == 0: // cniMode keep, for instance
		out = append(out, control.Okayf(check, "kubelet reports %s, which other sites cannot reach; this host has no mesh address that it could report", text(p.Self.NodeIPs)))
	case other > 0 && other < len(p.Self.NodeIPs) && !slices.Contains(wanted, p.Self.NodeIPs[0]):
		warn("kubelet reports %s: the first is the Node's address for most programs, and other sites cannot reach it", text(p.Self.NodeIPs))
	case other == len(p.Self.NodeIPs):
		out = append(out, control.Okayf(check, "kubelet reports %s, which other sites cannot reach; `edgemesh-agent install --node-ip` makes it %s", text(p.Self.NodeIPs), mine))
	default:
		out = append(out, control.Okayf(check, "kubelet reports %s, reached by its mesh address from everywhere", text(p.Self.NodeIPs)))
	}
	return out
}

func owner(p mesh.Plan, id mesh.PeerID) string {
	for _, m := range p.Members {
		if m.PeerID == id {
			return m.Name
		}
	}
	return string(id)
}

func text(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
