package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/uplink"
	"edgemesh/internal/wording"
)

func finding(check string, grade findings.Severity, detail, remedy string) findings.Finding {
	return findings.Finding{ID: check, Severity: grade, Text: detail, Remedy: remedy}
}

// Check compares the kernel's state with w and changes nothing: what Set would
// repair is broken now. It sends packets as pods do, also those of about: a pod of this node, and a far one, either of which may be invalid.
func (h *Host) Check(ctx context.Context, w mesh.Host, about ...netip.Addr) []findings.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.plan(w)
	if err != nil {
		if f, _ := h.noIPv6(w); errors.Is(err, ErrNoIPv6) {
			return []findings.Finding{f}
		}
		return []findings.Finding{finding("host", findings.Broken, "kernel state was not compared: "+err.Error(), "install what is missing and restart the agent")}
	}
	var order []*examined
	byName := map[string]*examined{} // several parts may share a name
	for _, p := range h.parts(s, h.applied) {
		if ctx.Err() != nil {
			return []findings.Finding{finding("host", findings.Broken, "kernel state was not compared to the end: "+ctx.Err().Error(), "try again")}
		}
		e := byName[p.name]
		if e == nil {
			e = &examined{part: p}
			order, byName[p.name] = append(order, e), e
		}
		e.add(p.diff())
	}
	slices.SortStableFunc(order, func(a, b *examined) int { return rank(a.name) - rank(b.name) })
	var out []findings.Finding
	for _, e := range order {
		out = append(out, e.finding())
	}
	probed := h.probe(ctx, s, about...) // first: it shows what marks do to packets
	out = append(append(out, h.inTheWay(w, s)...), probed...)
	if why := nft.Missing(); why != "" {
		out = append(out, finding(byNFT, findings.Warning, "whether the host's firewall drops pods' packets is not known: "+why, "load it; until then see `iptables -S FORWARD` yourself"))
	}
	return out
}

// rank is the order of causes, which is not that in which parts are set: an interface that is down takes its routes along,
// and without forwarding its interfaces do not forward.
func rank(part string) int {
	first := []string{"names", "forwarding", "bridge", "tun", "vxlan"}
	if i := slices.Index(first, part); i >= 0 {
		return i
	}
	return len(first)
}

// examined is what was found out about the parts of one name.
type examined struct {
	part
	todo []string // changes needed
	errs []error
}

func (e *examined) add(changes []plan.Change, err error) {
	if err != nil {
		e.errs = append(e.errs, err)
	}
	for _, c := range changes {
		if !slices.Contains(e.todo, c.What) {
			e.todo = append(e.todo, c.What)
		}
	}
}

func (e *examined) finding() findings.Finding {
	err := errors.Join(e.errs...)
	if e.name == "tun" && err == nil && len(e.todo) == 0 {
		err = rtnetlink.CheckTUN()
	}
	if err != nil {
		return finding(e.name, findings.Broken, err.Error(), e.remedy)
	}
	if len(e.todo) == 0 {
		return finding(e.name, findings.OK, e.present(), "")
	}
	const most = 4
	todo := strings.Join(e.todo[:min(len(e.todo), most)], "; ")
	if n := len(e.todo) - most; n > 0 {
		todo += fmt.Sprintf("; and %d more", n)
	}
	return finding(e.name, findings.Broken, "repair needed: "+todo+" (wanted: "+e.present()+")", e.remedy)
}

// Probe sends probes through the host's firewall, and reports what of it obstructs the pod network although Set succeeds.
func (h *Host) Probe(ctx context.Context, w mesh.Host) []findings.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.plan(w)
	if err != nil {
		return nil // Set fails, too, and says why
	}
	before := h.rules()
	defer func() { h.probed = before.after(h.rules()) }()
	return h.probe(ctx, s)
}

// probe is Probe for a caller that holds mu.
func (h *Host) probe(ctx context.Context, s plan.State, about ...netip.Addr) []findings.Finding {
	out := h.checkForward(ctx, s, about)
	if detail, remedy := h.fw.Mixed(); detail != "" {
		out = append(out, finding("iptables", findings.Warning, detail, remedy))
	}
	return out
}

// InTheWay reports what else on this host obstructs the pod network, or what becomes of others' packets: it is cheap.
func (h *Host) InTheWay(w mesh.Host) []findings.Finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, err := h.plan(w)
	if f, _ := h.noIPv6(w); errors.Is(err, ErrNoIPv6) {
		return []findings.Finding{f}
	}
	if err != nil {
		return nil // Set fails, too, and says why
	}
	return h.inTheWay(w, s)
}

// inTheWay is InTheWay for a caller that holds mu.
func (h *Host) inTheWay(w mesh.Host, s plan.State) []findings.Finding {
	out := h.checkRouter(w, s)
	if f, is := h.noIPv6(w); is {
		out = append(out, f)
	}
	if s.Routed {
		out = append(out, findings.Notef("bridge-filter", "the kernel module br_netfilter is missing: this host forwards between its own pods, so that every rule sees their packets; broadcasts and multicasts of one pod reach no other. `modprobe br_netfilter`, and a line br_netfilter in /etc/modules-load.d, let the bridge do it again"))
	} else if !w.Keep && !sysctl.BridgeFilter() {
		cause := ""
		if why := cmp.Or(h.refused, nft.Missing()); why != "" {
			cause = ", and the host cannot forward between its pods itself (" + why + ")"
		}
		out = append(out, findings.Warningf("bridge-filter", "run `modprobe br_netfilter` and list br_netfilter in /etc/modules-load.d; the agent switches it on for its own bridge. Where modprobe does not find it, use a kernel with CONFIG_BRIDGE_NETFILTER, or with nf_tables",
			"the kernel module br_netfilter is missing"+cause+": pods of this node reach each other past all firewall rules, so that a Service times out whose endpoint is on the client's own node"))
	}
	if off := h.setBack(); len(off) > 0 {
		out = append(out, findings.Brokenf("forwarding", "find what sets it (a file in /etc/sysctl.d, systemd-networkd, hardening), and set net.ipv4.conf.INTERFACE.forwarding = 1 or, in the interface's .network file, IPv4Forwarding=yes",
			"forwarding is off again on %s, where the agent had switched it on: pods of this node get no IPv4 packets that come in there, and take other paths", wording.List(off)))
	}
	detail, remedy := rtnetlink.CheckRoutes(s)
	if strays, err := nft.Strays(s); err == nil && detail == "" {
		detail, remedy = rtnetlink.CheckStrays(s, strays)
	}
	if detail != "" {
		out = append(out, finding("way", findings.Broken, detail, remedy))
	}
	if what := unavailable(h.can); what != "" {
		out = append(out, finding("lan", findings.Warning, what, "see the cause; packets take other paths or the tunnel meanwhile. To turn these paths off on purpose, set lan.native or lan.vxlan: false"))
	}
	return out
}

// noIPv6 says what becomes of pods that are to have IPv6 where the host has none.
func (h *Host) noIPv6(w mesh.Host) (f findings.Finding, is bool) {
	const remedy = "enable IPv6 on this host, install ip6tables, or give the node "
	switch {
	case h.can.NoIPv6 == "" || !wantsIPv6(w):
		return f, false
	case onlyIPv6(w):
		return finding("ipv6", findings.Broken, "this node takes no new pods, for its blocks are IPv6 only: "+h.can.NoIPv6, remedy+"an IPv4 block, too"), true
	}
	return finding("ipv6", findings.Warning, "pods of this node get no IPv6: "+h.can.NoIPv6, remedy+"IPv4 blocks only"), true
}

// checkRouter notes what becomes of packets between networks: this host routes them, as it did before the agent, or drops them.
func (h *Host) checkRouter(w mesh.Host, s plan.State) (out []findings.Finding) {
	links, err := rtnetlink.Foreign()
	if err != nil || w.Forward.All {
		return nil
	}
	before, err := h.memory.Before(links)
	if err != nil {
		return nil
	}
	names, err := rtnetlink.Addressed(links, uplink.Between(links, lone(links, before.Links)))
	if err != nil || len(names) < 2 {
		return nil
	}
	var routed, dropped []string
	for i, version := range []string{"IPv4", "IPv6"} {
		switch {
		case before.On[i]:
			routed = append(routed, version)
		case s.Each[i].Uplinks.Names != nil:
			dropped = append(dropped, version)
		}
	}
	between := strings.Join(names, ", ")
	if routed != nil {
		out = append(out, findings.Notef("router", "this host forwards %s between %s, as it did before the agent: what one network sends to another passes, as far as the host's firewall lets it",
			strings.Join(routed, " and "), between))
	}
	if dropped != nil {
		f := findings.Notef("uplinks", "%s between %s is dropped since the agent runs: this host did not forward before, and the switch that pods need must not make a router of it",
			strings.Join(dropped, " and "), between)
		f.Remedy = "nothing; if this host shall route between them (a gateway, shared internet access), `forward: all` in the agent's configuration"
		out = append(out, f)
	}
	return out
}

// lone are the veth pairs without a bridge among links that were there before the agent: where the host is itself a container,
// its uplinks. TAP devices are VPNs then.
func lone(links []netlink.Link, before []int) (out []int) {
	for _, l := range links {
		if a := l.Attrs(); (l.Type() == "veth" || l.Type() == "tuntap") && a.MasterIndex == 0 && slices.Contains(before, a.Index) {
			out = append(out, a.Index)
		}
	}
	return out
}

// unavailable says which native or VXLAN paths this host cannot hold, and why; "" when it can hold both.
func unavailable(can Capabilities) string {
	var out []string
	switch {
	case can.NoNative == "" && can.NoVXLAN == "":
	case can.NoNative == can.NoVXLAN:
		out = append(out, "LAN paths unavailable: "+can.NoNative)
	default:
		if can.NoNative != "" {
			out = append(out, "native paths unavailable: "+can.NoNative)
		}
		if can.NoVXLAN != "" {
			out = append(out, "VXLAN paths unavailable: "+can.NoVXLAN)
		}
	}
	return strings.Join(out, "; ")
}
