package rtnetlink

import (
	"cmp"
	"net/netip"

	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/mesh"
)

// Paths is the kernel state of native and VXLAN paths, found or wanted.
type Paths struct {
	routes     map[route]bool
	neighbours map[neighbour]bool // of the VXLAN device
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
		out.routes[route{
			dst: dst, table: table, kind: unix.RTN_UNICAST, link: link, via: hop.Via, src: f.Gateway,
			metric: plan.PathMetric, mtu: mtu, protocol: plan.RouteProtocol,
		}] = true
	}
	for _, r := range w.Routes {
		add(plan.TableID, r.Block, r.Hop, r.MTU)
	}
	for _, p := range w.Probes {
		add(plan.ProbeTable+p.Slot, plan.Single(p.Target), p.Hop, 0)
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
