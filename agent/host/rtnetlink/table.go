package rtnetlink

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// listTables lists the routes of all our tables, in one dump.
func listTables(familyID int) ([]netlink.Route, error) {
	all, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(familyID, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(all, func(n netlink.Route) bool { return !plan.OurTable(n.Table) }), nil
}

// isPathRoute tells the routes that paths and probes have made from all others.
func isPathRoute(n netlink.Route) bool {
	return n.Priority == plan.PathMetric && n.Protocol == plan.RouteProtocol && n.Type == unix.RTN_UNICAST && n.Dst != nil
}
