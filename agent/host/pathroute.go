package host

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

const (
	// PathMetric is that of routes of native and VXLAN paths: before all others.
	PathMetric = 512
	// ProbeTable is the first of mesh.ProbeSlots tables for probes alone, ProbeMark
	// the mark that leads to it, and RulePrefProbe the first rule's priority. Slot n
	// has table and priority + n and mark + n<<16, under MarkMask.
	ProbeTable    = 5220
	ProbeMark     = 0xe80000
	RulePrefProbe = 5201
	// ownMarks under ownMarkMask has Mark and all marks of probes.
	ownMarks    = 0xe80000
	ownMarkMask = 0xf80000
)

// SlotMark is the SO_MARK of probes of one slot.
func SlotMark(slot int) int { return ProbeMark + slot<<16 }

// pathRoute is a kernel route of a path or a probe; it is comparable.
type pathRoute struct {
	table int
	dst   netip.Prefix
	link  int
	via   netip.Addr
	src   netip.Addr
	mtu   int // bytes, 0 for the link's
}

// diffPathRoutes compares the routes of paths and probes of one family.
func diffPathRoutes(f family, have, want map[pathRoute]bool) []request {
	type place struct {
		table int
		dst   netip.Prefix
	}
	var add, out []request
	replaced := map[place]bool{}
	for r := range want {
		if !have[r] {
			replaced[place{r.table, r.dst}] = true
			add = append(add, newRequest("set route "+r.String(), nil, r.request(f.id(), unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)))
		}
	}
	for r := range have {
		if want[r] || replaced[place{r.table, r.dst}] {
			continue // there is one route of this metric to a destination
		}
		out = append(out, newRequest("delete route "+r.String(), unix.ESRCH, r.request(f.id(), unix.RTM_DELROUTE, 0)))
	}
	return append(out, add...)
}

// pathRoutes lists what is wanted of one family. Routes over interfaces that are
// gone are left out.
func (f family) pathRoutes(w mesh.Paths, links map[string]int) map[pathRoute]bool {
	out := map[pathRoute]bool{}
	if !f.lan.on {
		return out
	}
	add := func(table int, dst netip.Prefix, hop mesh.Hop, mtu int) {
		index, ok := links[linkOf(hop.Link)]
		if !ok || dst.Addr().Is6() != f.v6 || hop.Kind == mesh.VXLAN && !f.lan.vxlan || hop.Kind == mesh.Native && !f.lan.native {
			return
		}
		out[pathRoute{table, dst, index, hop.Via, f.gateway, mtu}] = true
	}
	for _, r := range w.Routes {
		add(TableID, r.Block, r.Hop, r.MTU)
	}
	for _, p := range w.Probes {
		add(ProbeTable+p.Slot, netip.PrefixFrom(p.Target, p.Target.BitLen()), p.Hop, 0)
	}
	return out
}

func (r pathRoute) String() string {
	return fmt.Sprintf("%s table %d via %s link %d mtu %d", r.dst, r.table, r.via, r.link, r.mtu)
}

// request is the message that sets or deletes the route (rtnetlink(7)).
func (r pathRoute) request(familyID, kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{
		Family: uint8(familyID), Dst_len: uint8(r.dst.Bits()), Table: unix.RT_TABLE_UNSPEC, Protocol: RouteProtocol,
		Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST,
		Flags: unix.RTNH_F_ONLINK, // the next hop was proven; whether the link's prefix has it does not matter
	}})
	add := func(kind int, data []byte) { req.AddData(nl.NewRtAttr(kind, data)) }
	add(unix.RTA_TABLE, nl.Uint32Attr(uint32(r.table)))
	add(unix.RTA_DST, r.dst.Addr().AsSlice())
	add(unix.RTA_OIF, nl.Uint32Attr(uint32(r.link)))
	add(unix.RTA_PRIORITY, nl.Uint32Attr(PathMetric))
	if r.src.IsValid() {
		add(unix.RTA_PREFSRC, r.src.AsSlice())
	}
	if r.dst.Addr().Is4() == r.via.Is4() {
		add(unix.RTA_GATEWAY, r.via.AsSlice())
	} else {
		add(unix.RTA_VIA, append(nl.Uint16Attr(unix.AF_INET6), r.via.AsSlice()...))
	}
	if r.mtu != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.mtu)))
		req.AddData(metrics)
	}
	return req
}

// listPathRoutes lists the routes of paths and probes in all our tables.
func listPathRoutes(familyID int) (map[pathRoute]bool, error) {
	all, err := listTables(familyID)
	if err != nil {
		return nil, err
	}
	out := map[pathRoute]bool{}
	for _, n := range all {
		if !isPathRoute(n) {
			continue
		}
		r := pathRoute{table: n.Table, dst: prefixOf(n.Dst), link: n.LinkIndex, mtu: n.MTU}
		r.src, _ = netip.AddrFromSlice(n.Src)
		r.via, _ = netip.AddrFromSlice(n.Gw)
		if v, ok := n.Via.(*netlink.Via); ok {
			r.via, _ = netip.AddrFromSlice(v.Addr)
		}
		r.src, r.via = r.src.Unmap(), r.via.Unmap()
		out[r] = true
	}
	return out, nil
}

// listTables lists the routes of all our tables, in one dump.
func listTables(familyID int) ([]netlink.Route, error) {
	all, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(familyID, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(all, func(n netlink.Route) bool { return !ourTable(n.Table) }), nil
}

// isPathRoute tells the routes that paths and probes have made from all others.
func isPathRoute(n netlink.Route) bool {
	return n.Priority == PathMetric && n.Protocol == RouteProtocol && n.Type == unix.RTN_UNICAST && n.Dst != nil
}

// ourTable reports whether a routing table is ours.
func ourTable(id int) bool {
	return id == TableID || id >= ProbeTable && id < ProbeTable+mesh.ProbeSlots
}
