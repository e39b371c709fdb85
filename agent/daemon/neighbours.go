package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/control"
	"edgemesh/agent/host"
	"edgemesh/agent/mesh"
	"edgemesh/cni/overlap"
	"edgemesh/cni/upkeep"
	"edgemesh/internal/uplink"
)

// warnNeighbours logs, at the start, what of other networks on this node is in
// the pod network's way.
func (d *daemon) warnNeighbours(plan mesh.Plan) {
	if f := d.checkOverlaps(plan.Host); f.Severity != control.OK {
		d.log.Warn("another network of this node uses the cluster's addresses", "found", f.Detail, "remedy", f.Remedy)
	}
	switch f := d.checkOtherCNI(plan); {
	case f.Severity != control.OK:
		d.log.Warn("network plugins", "found", f.Detail, "remedy", f.Remedy)
	case plan.Host.Keep:
		d.log.Info("network plugins", "found", f.Detail)
	}
}

// checkOverlaps looks for addresses and routes of others inside the cluster's
// ranges. Where another plugin has the pods, what is inside the node's own blocks
// is that plugin's, and so are routes: main's come before ours there.
func (d *daemon) checkOverlaps(w mesh.Host) control.Finding {
	if !w.Keep {
		return overlapFinding(upkeep.Overlaps(d.pods))
	}
	conflicts, err := overlap.Find(w.ClusterCIDRs, overlap.Ours(host.BridgeName))
	return overlapFinding(beside(conflicts, w.Blocks), err)
}

// refuseLAN is ErrLANInside where this node's own LAN is inside the pod range and nothing
// is set up yet: what the host sends there would go into the tunnel, what comes from there
// would be dropped as forged, and nobody could reach the host to mend it. A host that is
// set up already has lost that LAN; ending now would take the network from its pods, too.
func refuseLAN(w mesh.Host) error {
	if w.Keep {
		return nil // main's routes come before ours
	}
	present, err := host.Present()
	if err != nil || present {
		return err
	}
	conflicts, err := overlap.Find(w.ClusterCIDRs, overlap.Ours(host.BridgeName))
	if err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	if found := lanConflicts(conflicts, links); len(found) > 0 {
		return fmt.Errorf("%w: %s", ErrLANInside, strings.Join(found, "; "))
	}
	return nil
}

// lanConflicts are those with a network of Ethernet's kind that has other hosts. Bridges to
// containers are none, nor are single addresses, as plugins give them to pods' interfaces.
func lanConflicts(conflicts []overlap.Conflict, links []netlink.Link) []string {
	usable, lan := uplink.Indexes(links), map[string]bool{}
	for _, l := range links {
		a := l.Attrs()
		lan[a.Name] = usable[a.Index] && len(a.HardwareAddr) == 6
	}
	var out []string
	for _, c := range conflicts {
		if !c.Route && lan[c.Device] && !c.Other.IsSingleIP() {
			out = append(out, c.String())
		}
	}
	return out
}

// beside leaves out routes, and addresses inside blocks.
func beside(conflicts []overlap.Conflict, blocks []netip.Prefix) []overlap.Conflict {
	return slices.DeleteFunc(conflicts, func(c overlap.Conflict) bool {
		return c.Route || slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(c.Other.Addr()) })
	})
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
		return warning(check, remedy, "%s (packets there go to the pod network)", text)
	}
	return ok(check, "no other network of this node is inside the cluster's ranges")
}
