package rtnetlink

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// route is the part of a kernel route that we care about; it is comparable.
type route struct {
	dst      netip.Prefix
	table    int
	kind     int        // unix.RTN_*
	link     int        // interface index; 0 for blackholes
	via      netip.Addr // invalid: on the link
	src      netip.Addr
	metric   uint32
	mtu      int // bytes, 0 for the link's
	protocol int
	realm    int // 0 for none
}

// isPath reports whether the route belongs to a path or a probe.
func (r route) isPath() bool {
	return r.metric == plan.PathMetric && r.protocol == plan.RouteProtocol && r.kind == unix.RTN_UNICAST && r.dst.Bits() > 0
}

// to returns the destination as `ip route` prints it.
func (r route) to() string {
	if r.dst.Bits() == 0 {
		return "default"
	}
	return r.dst.String()
}

func (r route) String() string {
	s := fmt.Sprintf("%s table %d metric %d", r.to(), r.table, r.metric)
	if r.kind == unix.RTN_BLACKHOLE {
		return "blackhole " + s
	}
	if r.via.IsValid() {
		s += fmt.Sprintf(" via %s", r.via)
	}
	return s + fmt.Sprintf(" link %d src %s mtu %d", r.link, r.src, r.mtu)
}

// set returns the request that makes the route. It replaces a route of the same table, destination
// and metric. The next hop was proved, so it need not be inside the link's prefix.
func (r route) set() request {
	m := r.message(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, unix.RT_SCOPE_UNIVERSE)
	return newRequest("set route "+r.String(), nil, m)
}

// remove returns the request that deletes the route.
func (r route) remove() request {
	return newRequest("delete route "+r.String(), unix.ESRCH, r.message(unix.RTM_DELROUTE, 0, unix.RT_SCOPE_NOWHERE))
}

// message builds a request about the route (rtnetlink(7)).
func (r route) message(kind, flags int, scope uint8) *nl.NetlinkRequest {
	msg := unix.RtMsg{Family: unix.AF_INET, Dst_len: uint8(r.dst.Bits()), Table: unix.RT_TABLE_UNSPEC, Protocol: uint8(r.protocol), Scope: scope, Type: uint8(r.kind)}
	if r.dst.Addr().Is6() {
		msg.Family = unix.AF_INET6
	} else if scope == unix.RT_SCOPE_UNIVERSE && r.kind == unix.RTN_UNICAST && !r.via.IsValid() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	if r.via.IsValid() {
		msg.Flags = unix.RTNH_F_ONLINK
	}
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(&nl.RtMsg{RtMsg: msg})
	add := func(kind int, data []byte) { req.AddData(nl.NewRtAttr(kind, data)) }
	add(unix.RTA_TABLE, nl.Uint32Attr(uint32(r.table)))
	add(unix.RTA_DST, r.dst.Addr().AsSlice())
	if r.metric != 0 {
		add(unix.RTA_PRIORITY, nl.Uint32Attr(r.metric))
	}
	if r.link != 0 {
		add(unix.RTA_OIF, nl.Uint32Attr(uint32(r.link)))
	}
	if r.src.IsValid() {
		add(unix.RTA_PREFSRC, r.src.AsSlice())
	}
	if r.via.IsValid() && r.dst.Addr().Is4() == r.via.Is4() {
		add(unix.RTA_GATEWAY, r.via.AsSlice())
	} else if r.via.IsValid() {
		add(unix.RTA_VIA, append(nl.Uint16Attr(unix.AF_INET6), r.via.AsSlice()...))
	}
	if r.realm != 0 {
		add(unix.RTA_FLOW, nl.Uint32Attr(uint32(r.realm)))
	}
	if r.mtu != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.mtu)))
		req.AddData(metrics)
	}
	return req
}

// listRoutes lists the routes of all our tables, in one dump.
func listRoutes(familyID int) ([]route, error) {
	all, err := dump("routes", func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(familyID, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, err
	}
	var out []route
	for _, n := range all {
		if !plan.OurTable(n.Table) {
			continue
		}
		r := route{
			dst: prefixOf(n.Dst), table: n.Table, kind: n.Type, link: n.LinkIndex, via: addrOf(n.Gw), src: addrOf(n.Src),
			metric: uint32(n.Priority), mtu: n.MTU, protocol: int(n.Protocol), realm: n.Realm,
		}
		switch v, ok := n.Via.(*netlink.Via); {
		case ok:
			r.via = addrOf(v.Addr)
		case n.Type != unix.RTN_UNICAST:
			r.link = 0 // IPv6 shows blackholes on lo
		}
		if n.Dst == nil { // a default route
			r.dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if familyID == unix.AF_INET6 {
				r.dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// DiffBlackholes compares the blackhole route of each range. It comes before the rules, so
// that a range has a route from the moment a rule leads to our table.
func DiffBlackholes(s plan.State) ([]plan.Change, error) {
	return diffRoutes(s, func(f plan.Family) []route { return blackholes(f) }, false)
}

// DiffRoutes compares our tables, which are ours alone, except the routes of paths.
func DiffRoutes(s plan.State) ([]plan.Change, error) {
	bridge, err := findLink(plan.BridgeName, "bridge")
	if err != nil {
		return nil, err
	}
	tun, err := findLink(plan.TUNName, "tuntap")
	if err != nil {
		return nil, err
	}
	return diffRoutes(s, func(f plan.Family) []route {
		out := blackholes(f)
		if bridge != nil {
			out = append(out, bridgeRoutes(f, bridge.Attrs().Index)...)
		}
		if tun != nil {
			out = append(out, tunRoutes(f, tun.Attrs().Index)...)
		}
		return out
	}, true)
}

// diffRoutes adds the wanted routes of each family. Where whole is true it deletes all others,
// except those of paths.
func diffRoutes(s plan.State, wanted func(plan.Family) []route, whole bool) ([]plan.Change, error) {
	var out []plan.Change
	for _, f := range s.Held() {
		have, err := listRoutes(f.ID())
		if err != nil {
			return nil, err
		}
		want := wanted(f)
		for _, r := range have {
			if whole && !r.isPath() && !slices.Contains(want, r) {
				out = append(out, batched("", []request{r.remove()})...)
			}
		}
		for _, r := range want {
			if !slices.Contains(have, r) {
				out = append(out, batched("", []request{r.set()})...)
			}
		}
	}
	return out, nil
}

func blackholes(f plan.Family) []route {
	var out []route
	held := f.Ranges
	if f.Keep { // for own pods that main has no route to
		held = slices.Concat(f.Ranges, f.Blocks)
	}
	for _, p := range held {
		r := route{dst: p, table: plan.TableID, kind: unix.RTN_BLACKHOLE, metric: plan.BlackholeMetric, protocol: plan.RouteProtocol}
		if slices.Contains(out, r) {
			continue
		}
		out = append(out, r)
		for slot := range f.ProbeSlots() { // a probe without a route must not enter the tunnel
			r.table = plan.ProbeTable + slot
			out = append(out, r)
		}
	}
	return out
}

func bridgeRoutes(f plan.Family, link int) []route {
	var out []route
	for _, b := range f.Blocks {
		if !f.Keep {
			out = append(out, route{dst: b, table: plan.TableID, kind: unix.RTN_UNICAST, link: link, src: plan.Gateway(b).Addr(), metric: plan.RouteMetric, protocol: plan.RouteProtocol})
		}
	}
	return out
}

// tunRoutes returns one route per range. Without a block of the family there is no source
// address, so there is no route and the blackhole answers. In keep mode pods bring their own
// source; the tunnel drops what the node itself sends.
func tunRoutes(f plan.Family, link int) []route {
	var out []route
	for _, p := range f.Ranges {
		if (f.Gateway.IsValid() || f.Keep && len(f.Blocks) > 0) && !slices.Contains(f.Blocks, p) {
			out = append(out, route{dst: p, table: plan.TableID, kind: unix.RTN_UNICAST, link: link, src: f.Gateway, metric: plan.RouteMetric, protocol: plan.RouteProtocol})
		}
	}
	return out
}

// CountRoutes says how many routes s has, without those of paths and probes.
func CountRoutes(s plan.State) string {
	n := 0
	for _, f := range s.Held() {
		n += len(blackholes(f)) + len(bridgeRoutes(f, 0)) + len(tunRoutes(f, 0))
	}
	return fmt.Sprintf("%d routes present", n)
}
