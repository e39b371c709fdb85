package rtnetlink

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/mesh"
)

// Paths is what the kernel holds of native and VXLAN paths, or shall hold.
type Paths struct {
	routes     [2]map[pathRoute]bool // of IPv4 and IPv6
	neighbours map[neighbour]bool    // of the VXLAN device
}

// WantPaths is what w needs. What needs an interface that is gone is left out.
func WantPaths(s plan.State, w mesh.Paths, links map[string]int) Paths {
	var out Paths
	if _, ok := links[plan.VXLANName]; ok {
		out.neighbours = wantNeighbours(s, w)
	}
	for i, f := range s.Held() {
		out.routes[i] = pathRoutes(f, w, links)
	}
	return out
}

// ReadPaths asks the kernel.
func ReadPaths(s plan.State, links map[string]int) (out Paths, err error) {
	if index, ok := links[plan.VXLANName]; ok && s.LAN.VXLAN {
		if out.neighbours, err = listNeighbours(index); err != nil {
			return out, err
		}
	}
	for i, f := range s.Held() {
		if out.routes[i], err = listPathRoutes(f.ID()); err != nil {
			return out, err
		}
	}
	return out, nil
}

// Diff makes one change of have into want.
func (want Paths) Diff(have Paths, links map[string]int) []plan.Change {
	index, ok := links[plan.VXLANName]
	if !ok {
		have.neighbours = nil // went with the device
	}
	out := diffNeighbours(have.neighbours, want.neighbours, index)
	for i, familyID := range []int{unix.AF_INET, unix.AF_INET6} {
		out = append(out, diffPathRoutes(familyID, have.routes[i], want.routes[i])...)
	}
	return batched("change paths", out)
}

// Over reports whether a path's or a probe's route leads over an interface.
func (p Paths) Over(index int) bool {
	for _, routes := range p.routes {
		for r := range routes {
			if r.link == index {
				return true
			}
		}
	}
	return false
}

// Count is how many routes and neighbours there are.
func (p Paths) Count() int { return len(p.routes[0]) + len(p.routes[1]) + len(p.neighbours) }

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
func diffPathRoutes(familyID int, have, want map[pathRoute]bool) []request {
	type place struct {
		table int
		dst   netip.Prefix
	}
	var add, out []request
	replaced := map[place]bool{}
	for r := range want {
		if !have[r] {
			replaced[place{r.table, r.dst}] = true
			add = append(add, newRequest("set route "+r.String(), nil, r.request(familyID, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)))
		}
	}
	for r := range have {
		if want[r] || replaced[place{r.table, r.dst}] {
			continue // there is one route of this metric to a destination
		}
		out = append(out, newRequest("delete route "+r.String(), unix.ESRCH, r.request(familyID, unix.RTM_DELROUTE, 0)))
	}
	return append(out, add...)
}

// pathRoutes lists what is wanted of one family. Routes over interfaces that are
// gone are left out.
func pathRoutes(f plan.Family, w mesh.Paths, links map[string]int) map[pathRoute]bool {
	out := map[pathRoute]bool{}
	if !f.LAN.On {
		return out
	}
	add := func(table int, dst netip.Prefix, hop mesh.Hop, mtu int) {
		index, ok := links[cmp.Or(hop.Link, plan.VXLANName)]
		if !ok || dst.Addr().Is6() != f.V6 || hop.Kind == mesh.VXLAN && !f.LAN.VXLAN || hop.Kind == mesh.Native && !f.LAN.Native {
			return
		}
		out[pathRoute{table, dst, index, hop.Via, f.Gateway, mtu}] = true
	}
	for _, r := range w.Routes {
		add(plan.TableID, r.Block, r.Hop, r.MTU)
	}
	for _, p := range w.Probes {
		add(plan.ProbeTable+p.Slot, plan.Single(p.Target), p.Hop, 0)
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
		Family: uint8(familyID), Dst_len: uint8(r.dst.Bits()), Table: unix.RT_TABLE_UNSPEC, Protocol: plan.RouteProtocol,
		Scope: unix.RT_SCOPE_UNIVERSE, Type: unix.RTN_UNICAST,
		Flags: unix.RTNH_F_ONLINK, // the next hop was proven; whether the link's prefix has it does not matter
	}})
	add := func(kind int, data []byte) { req.AddData(nl.NewRtAttr(kind, data)) }
	add(unix.RTA_TABLE, nl.Uint32Attr(uint32(r.table)))
	add(unix.RTA_DST, r.dst.Addr().AsSlice())
	add(unix.RTA_OIF, nl.Uint32Attr(uint32(r.link)))
	add(unix.RTA_PRIORITY, nl.Uint32Attr(plan.PathMetric))
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
