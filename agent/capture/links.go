package capture

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// Links are the interfaces where packets of other nodes' pods pass: those that are named, and, if native is set, uplinks, over
// which native paths lead. Bridges, their ports and loopback carry what stays on this node.
func Links(named []string, native bool) ([]Link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []Link
	for _, l := range all {
		a := l.Attrs()
		uplink := l.Type() != "bridge" && l.Type() != "tuntap" && a.MasterIndex == 0 && a.Name != "lo"
		if slices.Contains(named, a.Name) || native && uplink {
			out = append(out, Link{a.Index, a.Name})
		}
	}
	return out, nil
}
