package explain

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/echo"
	"edgemesh/agent/findings"
	"edgemesh/agent/host"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

// end is one of the two nodes, and what it looks at: an address of the other one.
type end struct {
	agent Agent
	plan  mesh.Plan
	node  mesh.Node // whose address it is
	ip    netip.Addr
	local bool // it is this node's
}

// policy looks for podDenyCIDRs that drop packets. NetworkPolicies are judged at the pod's node.
func (e end) policy() findings.Finding {
	for _, p := range e.plan.Host.Access.PodDenyCIDRs {
		if p.Contains(e.ip) {
			return findings.Brokenf("policy", "take it out of podDenyCIDRs in the membership", "podDenyCIDRs has %s: pods of this node do not reach %s", p, e.ip)
		}
	}
	if len(e.plan.Host.Access.PodDenyCIDRs) == 0 {
		return findings.Okayf("policy", "podDenyCIDRs is empty")
	}
	return findings.Okayf("policy", "none of %d podDenyCIDRs contains %s", len(e.plan.Host.Access.PodDenyCIDRs), e.ip)
}

// kernel names which of this node's rules, routes and devices are missing, or what blocks packets between a pod of it and a far one.
func (e end) kernel(ctx context.Context, own, far netip.Addr) []findings.Finding {
	for _, b := range slices.Concat(e.plan.Self.PodCIDRs, e.node.PodCIDRs) { // no pod has a node's address
		if own == mesh.Gateway(b) {
			own = netip.Addr{}
		}
		if far == mesh.Gateway(b) {
			far = mesh.LastAddr(b).Prev()
		}
	}
	all := e.agent.Host(ctx, own, far)
	bad := slices.DeleteFunc(slices.Clone(all), func(f findings.Finding) bool { return f.Severity == findings.OK })
	if len(bad) > 0 {
		return bad
	}
	var parts []string
	for _, f := range all {
		parts = append(parts, f.ID+": "+f.Text)
	}
	return []findings.Finding{findings.Okayf("kernel", "all in place: %s", strings.Join(parts, "; "))}
}

// route looks up where the kernel would send a packet: a pod's, where those of the node itself do not take the LAN path.
func (e end) route() findings.Finding {
	const remedy = "run `edgemesh-agent doctor`: its checks of routes and rules name what is missing or blocks packets"
	want, path, as := host.TUNName, "", &netlink.RouteGetOptions{}
	switch {
	case e.local && e.ip == gatewayOf(e.node):
		want = "lo"
	case e.local:
		want = host.BridgeName
	default:
		if path = e.agent.Peer(e.node).Path; path == string(mesh.VXLAN) {
			want = host.VXLANName
		} else if path == string(mesh.Native) {
			want = ""
		}
		if blocks := mesh.OfVersion(e.plan.Self.PodCIDRs, e.ip.Is6()); want != host.TUNName && e.plan.Host.Access.HostAccess.Closed() && len(blocks) > 0 {
			as.Iif, as.SrcAddr = host.BridgeName, mesh.LastAddr(blocks[0]).Prev().AsSlice()
		}
	}
	routes, err := netlink.RouteGetWithOptions(e.ip.AsSlice(), as)
	if err != nil {
		return findings.Brokenf("route", remedy, "the kernel has no route to %s: %v", e.ip, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return findings.Brokenf("route", remedy, "the route to %s leads over an interface that is gone: %v", e.ip, err)
	}
	name := link.Attrs().Name
	ours := []string{host.TUNName, host.BridgeName, host.VXLANName}
	if want != "" && name != want || want == "" && slices.Contains(ours, name) {
		return findings.Brokenf("route", remedy, "packets to %s leave over %s instead of %s", e.ip, name, strings.TrimSpace(want+" (path "+path+")"))
	}
	source := routes[0].Src
	if source == nil {
		source = as.SrcAddr
	}
	return findings.Okayf("route", "packets to %s leave over %s, source %s, MTU %d", e.ip, name, source, mtu(e.ip))
}

// mtu is the largest packet that this host sends there in one piece, 0 if that is unknown.
func mtu(ip netip.Addr) int {
	routes, err := netlink.RouteGet(ip.AsSlice())
	if err != nil {
		return 0
	}
	if routes[0].MTU > 0 {
		return routes[0].MTU
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return 0
	}
	return link.Attrs().MTU
}

// path says how the node is reached, and why not better. lost: its agent did not answer.
func (e end) path(lost bool) findings.Finding {
	st := e.agent.Peer(e.node)
	why := ""
	if first, _, more := strings.Cut(st.Reason, "; "); st.Reason != "" && st.Transport != "" { // what was tried is no news where there is a path
		why = "; not better: " + strings.TrimPrefix(first, st.Path+": ")
		if more {
			why += " (`status " + e.node.Name + "` has all)"
		}
	}
	if st.Transport == "" && lost {
		return findings.Brokenf("path", "run `edgemesh-agent netcheck` on both nodes, and `edgemesh-agent status`: is a relay connected and reserved?",
			"no path: %s", cmp.Or(st.Cause.String(), "no attempt has ended"))
	}
	if st.Transport == "" {
		return findings.Okayf("path", "none yet: the first packet connects%s", why)
	}
	text := st.Path + " over " + st.Transport
	if st.Relay != "" {
		text += " via relay " + st.Relay
	}
	if st.Endpoint != "" {
		text += ", " + st.Endpoint
	}
	return findings.Okayf("path", "%s%s", text, why)
}

// counters are what the tunnel has carried and dropped towards it.
func (e end) counters() findings.Finding {
	p := e.agent.Peer(e.node)
	var by []string
	for reason, n := range p.DropsBy {
		by = append(by, reason+" "+wording.Number(n))
	}
	slices.Sort(by)
	reasons := ""
	if len(by) > 0 {
		reasons = ": " + wording.List(by)
	}
	return findings.Okayf("counters", "%s sent, %s received, %s more past the tunnel; %s dropped%s", wording.Bytes(p.TxBytes), wording.Bytes(p.RxBytes), wording.Bytes(p.LANBytes),
		wording.Count(p.Drops, "packet"), reasons)
}

// gatewayFor is the node's own address in the block that has ip, else in its first block of that IP version.
func gatewayFor(n mesh.Node, ip netip.Addr) netip.Addr {
	for _, p := range n.PodCIDRs {
		if p.Contains(ip) {
			return mesh.Gateway(p)
		}
	}
	if blocks := mesh.OfVersion(n.PodCIDRs, ip.Is6()); len(blocks) > 0 {
		return mesh.Gateway(blocks[0])
	}
	return ip
}

// echoed is how many of count echo requests of so many bytes were answered; 0 is the least size.
func echoed(ctx context.Context, ip netip.Addr, size, count int) (n int) {
	_ = echo.RunSize(ctx, ip, size, count, interval, func(r echo.Result) { // no answer says enough
		if r.Err == nil {
			n++
		}
	})
	return n
}
