package rtnetlink

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// Paths is the kernel state of native and VXLAN paths, found or wanted.
type Paths struct {
	routes     map[route]bool
	neighbours map[neighbour]bool // of the VXLAN device
}

// Realms reports whether this kernel's IPv4 routes have realms (CONFIG_IP_ROUTE_CLASSID).
func Realms() bool {
	_, err := os.Stat("/proc/thread-self/net/rt_acct")
	return err == nil
}

// WantPaths returns what w needs, except on interfaces that are gone.
func WantPaths(s plan.State, w mesh.Paths, links map[string]int) Paths {
	out := Paths{routes: map[route]bool{}}
	if _, ok := links[plan.VXLANName]; ok {
		out.neighbours = wantNeighbours(s, w)
	}
	add := func(table int, dst netip.Prefix, hop mesh.Hop, mtu int) {
		f := s.Of(dst.Addr())
		link, ok := links[cmp.Or(hop.Link, plan.VXLANName)]
		if !ok || !f.LAN.On || hop.Kind == mesh.VXLAN && !f.LAN.VXLAN || hop.Kind == mesh.Native && !f.LAN.Native {
			return
		}
		r := route{
			dst: dst, table: table, kind: unix.RTN_UNICAST, link: link, via: hop.Via, src: f.Gateway,
			metric: plan.PathMetric, mtu: mtu, protocol: plan.RouteProtocol,
		}
		if s.Realms && dst.Addr().Is4() && hop.Via.Is6() {
			r.realm = plan.PathRealm
		}
		out.routes[r] = true
	}
	for _, r := range w.Routes {
		table := plan.TableID
		if s.Of(r.Block.Addr()).LAN.PodsOnly {
			table = plan.PathTable
		}
		add(table, r.Block, r.Hop, r.MTU)
	}
	for _, p := range w.Probes {
		add(plan.ProbeTable+p.Slot, plan.Single(p.Target), p.Hop, 0)
	}
	back := [plan.BackSlots]string{plan.BackVXLAN: plan.VXLANName, plan.BackTUN: plan.TUNName}
	copy(back[:plan.BackLinks], w.Links())
	for _, f := range s.Held() {
		for n := range f.BackSlots() {
			if link, ok := links[back[n]]; ok {
				for _, p := range f.Ranges {
					r := route{dst: p, table: plan.BackTable + n, kind: unix.RTN_UNICAST, link: link, metric: plan.PathMetric, protocol: plan.RouteProtocol}
					out.routes[r] = true
				}
			}
		}
	}
	return out
}

// ReadPaths returns what the kernel holds.
func ReadPaths(s plan.State, links map[string]int) (Paths, error) {
	out := Paths{routes: map[route]bool{}}
	for _, f := range s.Held() {
		all, err := listRoutes(f.ID())
		if err != nil {
			return out, err
		}
		for _, r := range all {
			if r.isPath() {
				out.routes[r] = true
			}
		}
	}
	var err error
	if index, ok := links[plan.VXLANName]; ok && s.LAN.VXLAN {
		out.neighbours, err = listNeighbours(index)
	}
	return out, err
}

// Diff returns the change from have to want.
func (want Paths) Diff(have Paths, links map[string]int) []plan.Change {
	index, ok := links[plan.VXLANName]
	if !ok {
		have.neighbours = nil // deleted with the device
	}
	return batched("change paths", append(diffNeighbours(have.neighbours, want.neighbours, index), diffPathRoutes(have.routes, want.routes)...))
}

func diffPathRoutes(have, want map[route]bool) []request {
	type place struct {
		table int
		dst   netip.Prefix
	}
	gone, missing := plan.Diff(have, want)
	var add, out []request
	replaced := map[place]bool{} // there is one route of this metric to a destination
	for _, r := range missing {
		replaced[place{r.table, r.dst}] = true
		add = append(add, r.set())
	}
	for _, r := range gone {
		if !replaced[place{r.table, r.dst}] {
			out = append(out, r.remove())
		}
	}
	return append(out, add...)
}

// Hops are where the routes lead that are not over VXLAN.
func (p Paths) Hops(links map[string]int) (out []plan.Hop) {
	for r := range p.routes {
		if r.link != links[plan.VXLANName] && r.table < plan.BackTable {
			out = append(out, plan.Hop{Dst: r.dst, Link: r.link, Via: r.via, Probe: r.table >= plan.ProbeTable})
		}
	}
	return out
}

// Over reports whether a path's or a probe's route leads over an interface.
func (p Paths) Over(index int) bool {
	for r := range p.routes {
		if r.link == index {
			return true
		}
	}
	return false
}

// Count returns how many routes and neighbours there are.
func (p Paths) Count() int { return len(p.routes) + len(p.neighbours) }

// neighbour is an entry of a neighbour or forwarding table.
type neighbour struct {
	addr netip.Addr // the inner next hop; of a forwarding entry the underlay address
	mac  [6]byte
	fdb  bool
}

// wantNeighbours returns the static neighbours and forwarding entries of all peers.
func wantNeighbours(s plan.State, w mesh.Paths) map[neighbour]bool {
	want := map[neighbour]bool{}
	if !s.LAN.VXLAN {
		return want
	}
	for _, v := range w.VTEPs {
		if v.Underlay.Is6() != s.LAN.IPv6Underlay {
			continue
		}
		want[neighbour{v.Underlay, v.MAC, true}] = true
		for _, g := range v.Gateways {
			if s.Of(g).LAN.On {
				want[neighbour{g, v.MAC, false}] = true
			}
		}
	}
	return want
}

// diffNeighbours compares the entries of the VXLAN device. Deletions come first: a MAC has
// only one forwarding entry.
func diffNeighbours(have, want map[neighbour]bool, index int) []request {
	gone, missing := plan.Diff(have, want)
	var out []request
	for _, n := range gone {
		out = append(out, newRequest("delete "+n.String(), unix.ENOENT, n.request(index, unix.RTM_DELNEIGH, 0)))
	}
	for _, n := range missing {
		out = append(out, newRequest("add "+n.String(), nil, n.request(index, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)))
	}
	return out
}

func (n neighbour) String() string {
	if n.fdb {
		return fmt.Sprintf("forwarding entry %s dst %s", net.HardwareAddr(n.mac[:]), n.addr)
	}
	return fmt.Sprintf("neighbour %s lladdr %s", n.addr, net.HardwareAddr(n.mac[:]))
}

// request returns the message that sets or deletes the entry (rtnetlink(7)).
func (n neighbour) request(index, kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	msg := &netlink.Ndmsg{Index: uint32(index), State: netlink.NUD_PERMANENT}
	switch {
	case n.fdb:
		msg.Family, msg.Flags = unix.AF_BRIDGE, netlink.NTF_SELF
	case n.addr.Is6():
		msg.Family = unix.AF_INET6
	default:
		msg.Family = unix.AF_INET
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.NDA_DST, n.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.mac[:]))
	return req
}

// listNeighbours lists all static entries of the VXLAN device.
func listNeighbours(index int) (map[neighbour]bool, error) {
	out := map[neighbour]bool{}
	for _, familyID := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		all, err := dump("neighbours of "+plan.VXLANName, func() ([]netlink.Neigh, error) { return netlink.NeighList(index, familyID) })
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			a, ok := netip.AddrFromSlice(e.IP)
			if !ok || len(e.HardwareAddr) != 6 || e.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			out[neighbour{a.Unmap(), [6]byte(e.HardwareAddr), familyID == unix.AF_BRIDGE}] = true
		}
	}
	return out, nil
}
