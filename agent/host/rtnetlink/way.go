package rtnetlink

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
)

// CheckWay asks the kernel where it would send a packet for a pod elsewhere: other
// programs' rules and tables may come before ours (a VPN that takes all traffic).
func CheckWay(s plan.State) (detail, remedy string) {
	tun, err := findLink(plan.TUNName, "tuntap")
	if err != nil || tun == nil || s.Keep {
		return "", "" // told already; where pods are another plugin's, its routes count
	}
	for _, f := range s.Held() {
		if !f.Gateway.IsValid() {
			continue
		}
		for _, p := range f.Ranges {
			to := plan.LastAddr(p)
			if slices.ContainsFunc(f.Blocks, func(b netip.Prefix) bool { return b.Contains(to) }) {
				continue
			}
			routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
			if err != nil || len(routes) == 0 || plan.OurTable(routes[0].Table) {
				continue // a blackhole is told as a missing route
			}
			detail = fmt.Sprintf("packets for the pod range %s do not come to the pod network: another rule sends them to routing table %d", p, routes[0].Table)
			if link, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil {
				detail += ", interface " + link.Attrs().Name
			}
			return detail, fmt.Sprintf("see `ip rule` and `ip route get %s`: move that rule behind priority %d, or take the range out of it", to, plan.RulePref)
		}
	}
	return "", ""
}
