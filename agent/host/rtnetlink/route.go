package rtnetlink

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

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
