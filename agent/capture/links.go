package capture

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// Links are the interfaces where packets of other nodes' pods pass: those that are named, and, if native is set, those that
// native paths' routes lead over, a bridge or a VLAN among them. No others: each packet is there once.
func Links(named []string, native bool) ([]Link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	over := map[int]bool{}
	if native {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			for _, table := range []int{plan.TableID, plan.PathTable} {
				routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
				if err != nil && !errors.Is(err, unix.ENOENT) { // no such table
					return nil, fmt.Errorf("list routes of native paths: %w", err)
				}
				for _, r := range routes {
					if r.Priority == plan.PathMetric {
						over[r.LinkIndex] = true
					}
				}
			}
		}
	}
	var out []Link
	for _, l := range all {
		if a := l.Attrs(); slices.Contains(named, a.Name) || over[a.Index] {
			out = append(out, Link{a.Index, a.Name})
		}
	}
	return out, nil
}
