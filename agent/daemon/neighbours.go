package daemon

import (
	"strings"

	"edgemesh/agent/control"
	"edgemesh/cni/overlap"
	"edgemesh/cni/upkeep"
)

// warnNeighbours logs, at the start, what of other networks on this node is in
// the pod network's way.
func (d *daemon) warnNeighbours() {
	if f := d.checkOverlaps(); f.Severity != control.OK {
		d.log.Warn("another network of this node uses the cluster's addresses", "found", f.Detail, "remedy", f.Remedy)
	}
}

// checkOverlaps looks for addresses and routes of others inside the cluster's
// ranges.
func (d *daemon) checkOverlaps() control.Finding {
	conflicts, err := upkeep.Overlaps(d.cfg.RuntimeDir)
	return overlapFinding(conflicts, err)
}

// overlapFinding grades conflicts. An address breaks things: our rule takes what
// is sent to it, and our firewall drops what it sends. A mere route is shadowed
// by ours: only those who relied on it lose.
func overlapFinding(conflicts []overlap.Conflict, err error) control.Finding {
	const check = "addresses"
	const remedy = `give that network other addresses (docker: "bip" and "default-address-pools"), or the cluster other podCIDRs`
	if err != nil {
		return warning(check, "see the cause", "%v", err)
	}
	var lines []string
	broke := false
	for _, c := range conflicts {
		lines = append(lines, c.String())
		broke = broke || !c.Route
	}
	switch text := strings.Join(lines, "; "); {
	case broke:
		return broken(check, remedy, "%s", text)
	case len(lines) > 0:
		return warning(check, remedy, "%s: packets there go to the pod network", text)
	}
	return ok(check, "no other network of this node is inside the cluster's ranges")
}
