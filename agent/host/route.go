package host

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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

// diffBlackholes compares the last routes of each range. They come first, so
// that a range has a route from the moment on in which the rule leads to us.
func diffBlackholes(fs families) ([]change, error) {
	var out []change
	for _, f := range fs.held() {
		have, err := listRoutes(f.id())
		if err != nil {
			return nil, err
		}
		for _, r := range f.blackholes() {
			if !slices.Contains(have, r) {
				out = append(out, addRoute(r))
			}
		}
	}
	return out, nil
}

// diffRoutes compares our tables, which are ours alone, but for the routes of paths.
func diffRoutes(fs families) ([]change, error) {
	bridge, err := findLink(BridgeName, "bridge")
	if err != nil {
		return nil, err
	}
	tun, err := findLink(TUNName, "tuntap")
	if err != nil {
		return nil, err
	}
	var out []change
	for _, f := range fs.held() {
		want := f.blackholes()
		if bridge != nil {
			want = append(want, f.bridgeRoutes(bridge.Attrs().Index)...)
		}
		if tun != nil {
			want = append(want, f.tunRoutes(tun.Attrs().Index)...)
		}
		have, err := listRoutes(f.id())
		if err != nil {
			return nil, err
		}
		for _, r := range have {
			if !slices.Contains(want, r) {
				out = append(out, change{"delete route " + r.String(), func() error {
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

func (f family) blackholes() []route {
	var out []route
	held := f.ranges
	if f.keep { // own pods that main has no route to
		held = append(slices.Clone(f.ranges), f.blocks...)
	}
	for _, p := range held {
		r := route{dst: p, table: TableID, kind: unix.RTN_BLACKHOLE, metric: BlackholeMetric, protocol: RouteProtocol}
		if slices.Contains(out, r) {
			continue
		}
		out = append(out, r)
		for slot := range f.probeSlots() { // a probe without a route must not go into the tunnel
			r.table = ProbeTable + slot
			out = append(out, r)
		}
	}
	return out
}

func (f family) bridgeRoutes(link int) []route {
	var out []route
	if f.keep {
		return nil
	}
	for _, b := range f.blocks {
		out = append(out, route{b, TableID, unix.RTN_UNICAST, link, blockGateway(b).Addr(), RouteMetric, RouteProtocol})
	}
	return out
}

// tunRoutes are one per range; without a block of the family there is no
// source address, so nothing is sent and the blackhole answers. Pods of another
// plugin bring theirs; what the node itself sends then, the tunnel drops.
func (f family) tunRoutes(link int) []route {
	var out []route
	for _, p := range f.ranges {
		if (f.gateway.IsValid() || f.keep && len(f.blocks) > 0) && !slices.Contains(f.blocks, p) {
			out = append(out, route{p, TableID, unix.RTN_UNICAST, link, f.gateway, RouteMetric, RouteProtocol})
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

func addRoute(r route) change {
	return change{"add route " + r.String(), func() error { return netlink.RouteReplace(r.netlink()) }}
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

func deleteRoutes(familyID int, others taken) error {
	have, err := listRoutes(familyID)
	if err != nil {
		return err
	}
	for _, r := range have {
		if others[r.table] != "" {
			continue
		}
		if err := ignore(netlink.RouteDel(r.netlink()), unix.ESRCH); err != nil {
			return fmt.Errorf("delete route %s: %w", r, err)
		}
	}
	paths, err := listPathRoutes(familyID)
	if err != nil {
		return err
	}
	return applyAll(func() ([]change, error) {
		return batched("delete paths", diffPathRoutes(family{v6: familyID == netlink.FAMILY_V6}, paths, nil)), nil
	})
}
