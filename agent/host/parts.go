package host

import (
	"errors"
	"fmt"
	"strings"

	"edgemesh/agent/findings"
	"edgemesh/agent/host/iptables"
	"edgemesh/agent/host/nft"
	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/rtnetlink"
	"edgemesh/agent/host/sysctl"
)

// keepers compare kernel state, each its part. Host's mu guards them; Paths and the memory have locks
// of their own.
type keepers struct {
	*Paths // native and VXLAN paths
	policy *rtnetlink.Rules
	memory *sysctl.Memory
	fw     *iptables.Firewall
	tables *nft.Tables
}

// part is one kind of kernel state. diff compares; it changes nothing.
type part struct {
	name    string
	ofLAN   bool // a rule for LAN paths may be the cause of its failure
	waits   bool // its failure does not stop the parts behind it
	remedy  string
	diff    func() ([]plan.Change, error)
	present func() string // what is present when diff finds nothing
}

// What to do about a part that differs.
const (
	remedyAgain   = "the agent repairs this in its next pass; if it recurs, another program undoes it: find and stop that program"
	remedySetting = "the agent sets this in its next pass; if that fails, give the agent privileges and a writable /proc/sys"
	remedyTUN     = "start the agent; if it runs, its log says what it could not open or set (run `modprobe tun` if /dev/net/tun is missing)"
	remedyNames   = "remove the cause and restart the agent; nothing is set until then"
)

// parts lists all kernel state in the order in which it is to be set. A later
// part's diff is only valid once the earlier ones are applied. Parts with the same name
// are one finding of doctor's.
func (k keepers) parts(s plan.State, applied bool) []part {
	of := func(name, remedy string, diff func(plan.State) ([]plan.Change, error), present func(plan.State) string) part {
		return part{name, false, false, remedy, func() ([]plan.Change, error) { return diff(s) }, func() string { return present(s) }}
	}
	ofLAN := func(p part) part {
		p.ofLAN = s.Paths()
		return p
	}
	uplinks := of("guard", remedyAgain, nft.DiffUplinks, presentGuard)
	uplinks.ofLAN, uplinks.waits = !s.NoTables, applied // iptables may hold it
	return []part{
		of("names", remedyNames, namesUnless(applied), func(plan.State) string { return "no foreign program uses our names, tables or ports" }),
		of("routes", remedyAgain, rtnetlink.DiffBlackholes, rtnetlink.CountRoutes),
		of("rules", remedyAgain, k.policy.Diff, rtnetlink.CountRules),
		of("vxlan", remedyAgain, rtnetlink.DiffStaleVXLAN, presentVXLAN),
		ofLAN(of("guard", remedyAgain, k.tables.DiffGuard, presentGuard)),
		of("snat", remedyAgain, k.tables.DiffNAT, presentNAT),
		ofLAN(of("firewall", remedyAgain, k.fw.Diff, iptables.Count)),
		uplinks,
		of("forwarding", remedySetting, k.diffRouters, presentForwarding),
		of(interfaces, remedyOf(interfaces), rtnetlink.DiffOthers, func(plan.State) string { return "no other program configures our interfaces or pods'" }),
		of("bridge", remedyAgain, rtnetlink.DiffBridge, presentBridge),
		of("tun", remedyTUN, rtnetlink.DiffTUN, func(s plan.State) string { return onLink(plan.TUNName, s, true) }),
		of("vxlan", remedyAgain, rtnetlink.DiffVXLAN, presentVXLAN),
		of("routes", remedyAgain, rtnetlink.DiffRoutes, rtnetlink.CountRoutes),
		of("tun", remedyAgain, rtnetlink.DiffFormerTUN, func(s plan.State) string { return onLink(plan.TUNName, s, true) }),
		of("paths", remedyAgain, k.Paths.diffAll, func(plan.State) string { return k.Paths.present() }),
		of("forwarding", remedySetting, k.diffForwarding, presentForwarding),
	}
}

// remedyOf is that of a kind of findings.
func remedyOf(id string) string {
	kind, _ := findings.Of(id)
	return kind.Remedy
}

// namesUnless looks for foreign state under our names and numbers. It comes before everything else,
// and only until a Set succeeded: a host on which a name is taken is left exactly as it
// is. What other programs add later is drift, which the other parts repair.
func namesUnless(applied bool) func(plan.State) ([]plan.Change, error) {
	return func(s plan.State) ([]plan.Change, error) {
		if applied {
			return nil, nil
		}
		return nil, errors.Join(rtnetlink.CheckNames(s), nft.CheckNames(s))
	}
}

// diffRouters comes before anything that switches forwarding on.
func (k keepers) diffRouters(s plan.State) ([]plan.Change, error) {
	links, err := rtnetlink.Links()
	if err != nil {
		return nil, err
	}
	before, err := k.memory.DiffBefore(links)
	if err != nil {
		return nil, err
	}
	routers, err := sysctl.DiffRouters(s, links, k.memory)
	return append(before, routers...), err
}

func (k keepers) diffForwarding(s plan.State) ([]plan.Change, error) {
	exits, err := rtnetlink.Exits()
	if err != nil {
		return nil, err
	}
	return sysctl.DiffForwarding(s, exits, k.memory)
}

func either(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

func presentVXLAN(s plan.State) string {
	return either(s.LAN.VXLAN, fmt.Sprintf("%s, UDP port %d", onLink(plan.VXLANName, s, true), s.LAN.VXLANPort), "no VXLAN device wanted, none present")
}

func presentGuard(s plan.State) string {
	out := either(nft.GuardWanted(s), "the nftables guard checks sources", "no nftables guard wanted: iptables checks sources")
	if s.Between() {
		out += "; what goes from one uplink to another is dropped: forwarding was off before the agent"
	}
	return out
}

func presentNAT(s plan.State) string {
	return either(s.Paths(), "NAT for kube-proxy's nftables mode present", "no nftables NAT wanted: there are no LAN paths")
}

func presentForwarding(s plan.State) string {
	var on []string
	for i, version := range []string{"IPv4", "IPv6"} {
		if s.Each[i].Wanted {
			on = append(on, version)
		}
	}
	return strings.Join(on, " and ") + " forwarding is on"
}

func presentBridge(s plan.State) string {
	return either(s.Keep, "another plugin has the pods: no bridge wanted, none present", onLink(plan.BridgeName, s, false))
}

// onLink describes an interface of ours.
func onLink(name string, s plan.State, single bool) string {
	var addrs []string
	for _, f := range s.Held() {
		for _, p := range f.Gateways() {
			if single {
				p = plan.Single(p.Addr())
			}
			addrs = append(addrs, p.String())
		}
	}
	if len(addrs) == 0 {
		addrs = []string{"no address"}
	}
	return fmt.Sprintf("%s is up with %s, MTU %d", name, strings.Join(addrs, ", "), s.MTU)
}
