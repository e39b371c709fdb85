package rtnetlink

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// route is the part of a kernel route that we care about; it is comparable.
type route struct {
	dst      netip.Prefix
	table    int
	kind     int // unix.RTN_*
	link     int // interface index; 0 for blackholes
	src      netip.Addr
	metric   uint32
	protocol int
}

// DiffBlackholes compares the last routes of each range. They come first, so
// that a range has a route from the moment on in which the rule leads to us.
func DiffBlackholes(s plan.State) ([]plan.Change, error) {
	var out []plan.Change
	for _, f := range s.Held() {
		have, err := listRoutes(f.ID())
		if err != nil {
			return nil, err
		}
		for _, r := range blackholes(f) {
			if !slices.Contains(have, r) {
				out = append(out, addRoute(r))
			}
		}
	}
	return out, nil
}

// DiffRoutes compares our tables, which are ours alone, but for the routes of paths.
func DiffRoutes(s plan.State) ([]plan.Change, error) {
	bridge, err := findLink(plan.BridgeName, "bridge")
	if err != nil {
		return nil, err
	}
	tun, err := findLink(plan.TUNName, "tuntap")
	if err != nil {
		return nil, err
	}
	var out []plan.Change
	for _, f := range s.Held() {
		want := blackholes(f)
		if bridge != nil {
			want = append(want, bridgeRoutes(f, bridge.Attrs().Index)...)
		}
		if tun != nil {
			want = append(want, tunRoutes(f, tun.Attrs().Index)...)
		}
		have, err := listRoutes(f.ID())
		if err != nil {
			return nil, err
		}
		for _, r := range have {
			if !slices.Contains(want, r) {
				out = append(out, plan.Change{What: "delete route " + r.String(), Do: func() error {
					return ignore(netlink.RouteDel(r.netlink()), unix.ESRCH)
				}})
			}
		}
		for _, r := range want {
			if !slices.Contains(have, r) {
				out = append(out, addRoute(r))
			}
		}
	}
	return out, nil
}

func blackholes(f plan.Family) []route {
	var out []route
	held := f.Ranges
	if f.Keep { // own pods that main has no route to
		held = append(slices.Clone(f.Ranges), f.Blocks...)
	}
	for _, p := range held {
		r := route{dst: p, table: plan.TableID, kind: unix.RTN_BLACKHOLE, metric: plan.BlackholeMetric, protocol: plan.RouteProtocol}
		if slices.Contains(out, r) {
			continue
		}
		out = append(out, r)
		for slot := range f.ProbeSlots() { // a probe without a route must not go into the tunnel
			r.table = plan.ProbeTable + slot
			out = append(out, r)
		}
	}
	return out
}

func bridgeRoutes(f plan.Family, link int) []route {
	var out []route
	if f.Keep {
		return nil
	}
	for _, b := range f.Blocks {
		out = append(out, route{b, plan.TableID, unix.RTN_UNICAST, link, plan.Gateway(b).Addr(), plan.RouteMetric, plan.RouteProtocol})
	}
	return out
}

// tunRoutes are one per range; without a block of the family there is no
// source address, so nothing is sent and the blackhole answers. Pods of another
// plugin bring theirs; what the node itself sends then, the tunnel drops.
func tunRoutes(f plan.Family, link int) []route {
	var out []route
	for _, p := range f.Ranges {
		if (f.Gateway.IsValid() || f.Keep && len(f.Blocks) > 0) && !slices.Contains(f.Blocks, p) {
			out = append(out, route{p, plan.TableID, unix.RTN_UNICAST, link, f.Gateway, plan.RouteMetric, plan.RouteProtocol})
		}
	}
	return out
}

func (r route) String() string {
	if r.kind == unix.RTN_BLACKHOLE {
		return fmt.Sprintf("blackhole %s table %d metric %d", r.dst, r.table, r.metric)
	}
	return fmt.Sprintf("%s table %d metric %d src %s", r.dst, r.table, r.metric, r.src)
}

func (r route) netlink() *netlink.Route {
	n := &netlink.Route{
		Table: r.table, Dst: ipNet(r.dst), Type: r.kind, LinkIndex: r.link,
		Priority: int(r.metric), Protocol: netlink.RouteProtocol(r.protocol),
	}
	if r.src.IsValid() {
		n.Src = r.src.AsSlice()
	}
	if r.kind == unix.RTN_UNICAST && r.dst.Addr().Is4() {
		n.Scope = netlink.SCOPE_LINK
	}
	return n
}

func addRoute(r route) plan.Change {
	return plan.Change{What: "add route " + r.String(), Do: func() error { return netlink.RouteReplace(r.netlink()) }}
}

// listRoutes lists our tables, without the routes of paths and probes.
func listRoutes(familyID int) ([]route, error) {
	all, err := listTables(familyID)
	if err != nil {
		return nil, err
	}
	var out []route
	for _, n := range all {
		if isPathRoute(n) {
			continue
		}
		r := route{
			dst: prefixOf(n.Dst), table: n.Table, kind: n.Type, link: n.LinkIndex,
			metric: uint32(n.Priority), protocol: int(n.Protocol),
		}
		if n.Dst == nil { // a default route
			r.dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if familyID == netlink.FAMILY_V6 {
				r.dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
		}
		if n.Type != unix.RTN_UNICAST {
			r.link = 0 // IPv6 shows blackholes on lo
		}
		r.src, _ = netip.AddrFromSlice(n.Src)
		r.src = r.src.Unmap()
		out = append(out, r)
	}
	return out, nil
}

// CountRoutes is how many routes s has, without those of paths and probes.
func CountRoutes(s plan.State) int {
	n := 0
	for _, f := range s.Held() {
		n += len(blackholes(f)) + len(bridgeRoutes(f, 0)) + len(tunRoutes(f, 0))
	}
	return n
}
