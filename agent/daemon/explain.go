package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/control"
	"edgemesh/agent/diagnose"
	"edgemesh/agent/echo"
	"edgemesh/agent/host"
	"edgemesh/agent/mesh"
	"edgemesh/tunnel/p2p/paths"
)

const (
	// explainEchoes is how many packets each step sends.
	explainEchoes = 2
	// largeEchoes is how many of full size: on a lossy link some of them come back, through an MTU hole none.
	largeEchoes = 5
)

// Explain implements control.Backend: what happens to a packet from this node to one address, step by step. The first step
// that is broken is the cause.
func (b *backend) Explain(ctx context.Context, to string) ([]control.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	plan, problem := b.force.plan()
	node, ip, err := target(plan.Plan, to)
	if err != nil {
		return nil, err
	}
	if !ip.IsValid() {
		if ip = gatewayOf(node); !ip.IsValid() {
			return nil, fmt.Errorf("%s: it owns no pod addresses", to)
		}
	}
	e := explanation{b: b, plan: plan, node: node, ip: ip, local: node.Name == plan.Self.Name}
	out := []control.Finding{e.owner()}
	if f := b.checkMembership(plan, problem); f.Severity != control.OK {
		out = append(out, f)
	}
	out = append(out, e.policy(), e.route())
	if !e.local {
		agent := e.agent(ctx) // connects, so that there is a path to describe
		out = append(out, e.path(), agent, e.drops())
	}
	return oneLined(append(out, e.reach(ctx)...)), nil
}

// gatewayOf is a node's own address among its pods.
func gatewayOf(n mesh.Node) netip.Addr {
	for _, g := range gatewaysOf(mesh.Plan{Self: n}) {
		if g.IsValid() {
			return g
		}
	}
	return netip.Addr{}
}

// explanation is one destination.
type explanation struct {
	b     *backend
	plan  plan
	node  mesh.Node
	ip    netip.Addr
	local bool
}

func (e explanation) owner() control.Finding {
	i := slices.IndexFunc(e.node.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(e.ip) })
	here := ""
	if e.local {
		here = ", this node"
	}
	return control.Okayf("owner", "%s is in block %s of node %s%s", e.ip, e.node.PodCIDRs[i], e.node.Name, here)
}

// policy looks for rules of ours in the way; NetworkPolicies are other programs' matter.
func (e explanation) policy() control.Finding {
	for _, p := range e.plan.Host.Access.PodDenyCIDRs {
		if p.Contains(e.ip) {
			return control.Brokenf("policy", "take it out of podDenyCIDRs in the membership", "podDenyCIDRs has %s: pods of this node do not reach %s", p, e.ip)
		}
	}
	return control.Okayf("policy", "none of %d podDenyCIDRs contains %s", len(e.plan.Host.Access.PodDenyCIDRs), e.ip)
}

// status is how the node is reached.
func (e explanation) status() control.PeerStatus {
	p := pinging{b: e.b, node: e.node, id: e.plan.id(e.node.PeerID), local: e.local}
	return p.status()
}

// route asks the kernel where a packet would go.
func (e explanation) route() control.Finding {
	const remedy = "run `edgemesh-agent doctor`: its checks of routes and rules name what is missing or in the way"
	want := host.TUNName
	switch st := e.status(); {
	case e.local:
		want = host.BridgeName
	case st.Path == string(mesh.VXLAN):
		want = host.VXLANName
	case st.Path == string(mesh.Native):
		want = ""
	}
	if e.local && e.ip == gatewayOf(e.node) {
		want = "lo"
	}
	routes, err := netlink.RouteGet(e.ip.AsSlice())
	if err != nil {
		return control.Brokenf("route", remedy, "the kernel has no route to %s: %v", e.ip, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return control.Brokenf("route", remedy, "the route to %s leads over an interface that is gone: %v", e.ip, err)
	}
	name, mtu := link.Attrs().Name, link.Attrs().MTU
	if routes[0].MTU > 0 {
		mtu = routes[0].MTU
	}
	ours := []string{host.TUNName, host.BridgeName, host.VXLANName}
	if want != "" && name != want || want == "" && slices.Contains(ours, name) {
		return control.Brokenf("route", remedy, "packets to %s leave over %s instead of %s", e.ip, name, strings.TrimSpace(want+" "+"(path "+e.status().Path+")"))
	}
	return control.Okayf("route", "packets to %s leave over %s, source %s, MTU %d", e.ip, name, routes[0].Src, mtu)
}

// path says which way the node is reached, and why not better.
func (e explanation) path() control.Finding {
	st := e.status()
	why := ""
	if st.Reason != "" {
		why = "; not better: " + st.Reason
	}
	if st.Path == string(paths.KindNone) {
		return control.Okayf("path", "none yet: the first packet connects%s", why)
	}
	text := st.Path + " over " + st.Transport
	if st.Relay != "" {
		text += " via relay " + st.Relay
	}
	if st.Endpoint != "" {
		text += ", " + st.Endpoint
	}
	return control.Okayf("path", "%s%s", text, why)
}

// agent asks the agent there, over the tunnel.
func (e explanation) agent(ctx context.Context) control.Finding {
	ctx, cancel := context.WithTimeout(ctx, echo.Wait)
	defer cancel()
	rtt, p, err := e.b.node.Ping(ctx, e.plan.id(e.node.PeerID))
	if err != nil {
		return control.Brokenf("agent", "run doctor on "+e.node.Name+" and `edgemesh-agent netcheck` on both nodes: is the agent there running, and does it have a reservation at a relay?",
			"the agent of %s does not answer: %v", e.node.Name, err)
	}
	return control.Okayf("agent", "the agent of %s answers in %v, %s over %s", e.node.Name, rtt.Round(10*time.Microsecond), p.Kind, p.Transport)
}

// drops are what the tunnel has dropped on the way there.
func (e explanation) drops() control.Finding {
	for _, p := range e.b.peerStatus() {
		if p.Node != e.node.Name {
			continue
		}
		var by []string
		for reason, n := range p.DropsBy {
			by = append(by, fmt.Sprintf("%s %d", reason, n))
		}
		slices.Sort(by)
		return control.Okayf("counters", "%d bytes sent, %d received, %d more past the tunnel; %d packets dropped %v", p.TxBytes, p.RxBytes, p.LANBytes, p.Drops, by)
	}
	return control.Okayf("counters", "no packets yet")
}

// reach sends packets to the node itself and to the pod: what the first one passes, and the second one does not, is the far
// node's.
func (e explanation) reach(ctx context.Context) []control.Finding {
	gateway := gatewayFor(e.node, e.ip)
	atNode := e.echoed(ctx, gateway, 0, explainEchoes)
	out := []control.Finding{e.answered("node", gateway, atNode,
		"run doctor on "+e.node.Name+": its TUN, routes, FORWARD policy or hostAccess drop what the tunnel delivers")}
	if size := e.mtu(); atNode == explainEchoes && !e.local && size > 0 {
		out = append(out, diagnose.Large(gateway.String(), e.status().Path, size, e.echoed(ctx, gateway, size, largeEchoes), largeEchoes))
	}
	if gateway == e.ip {
		return out
	}
	remedy := "check that the pod runs (`kubectl get pods -A -o wide`), and NetworkPolicies for it; then run doctor on " + e.node.Name
	if atNode == 0 {
		remedy = "see the steps above: the node itself is not reached"
	}
	return append(out, e.answered("pod", e.ip, e.echoed(ctx, e.ip, 0, explainEchoes), remedy))
}

// gatewayFor is the node's address in the block that has ip.
func gatewayFor(n mesh.Node, ip netip.Addr) netip.Addr {
	for _, p := range n.PodCIDRs {
		if p.Contains(ip) {
			return mesh.Gateway(p)
		}
	}
	return ip
}

// mtu is the largest packet that this host sends there in one piece, 0 if that is unknown.
func (e explanation) mtu() int {
	routes, err := netlink.RouteGet(e.ip.AsSlice())
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

// echoed is how many of count echo requests of so many bytes were answered; 0 is the least size.
func (e explanation) echoed(ctx context.Context, ip netip.Addr, size, count int) (n int) {
	_ = echo.RunSize(ctx, ip, size, count, pingInterval, func(r echo.Result) { // no answer says enough
		if r.Err == nil {
			n++
		}
	})
	return n
}

func (e explanation) answered(check string, ip netip.Addr, n int, remedy string) control.Finding {
	if n == 0 {
		return control.Brokenf(check, remedy, "%s answers none of %d ICMP echo requests", ip, explainEchoes)
	}
	if n < explainEchoes {
		return control.Warningf(check, "look at the loss with `edgemesh-agent ping "+e.node.Name+" --count 0`", "%s answers %d of %d ICMP echo requests", ip, n, explainEchoes)
	}
	return control.Okayf(check, "%s answers %d of %d ICMP echo requests", ip, n, explainEchoes)
}
