package rtnetlink

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/mesh"
)

// CheckNames looks for foreign interfaces and routes under our names and numbers. The
// error wraps ErrNameTaken or ErrTableTaken.
func CheckNames(s plan.State) error {
	_, err := findBridge()
	errs := []error{err}
	for _, f := range s.Held() {
		tables, err := foreignTables(f.ID())
		if err == nil && len(tables) > 0 {
			err = fmt.Errorf("%w: %s", ErrTableTaken, strings.Join(slices.Sorted(maps.Values(tables)), "; "))
		}
		errs = append(errs, err)
	}
	_, err = findLink(plan.TUNName, "tuntap")
	return errors.Join(append(errs, err)...)
}

// foreignTables lists tables with our numbers that have foreign routes or rules and none of
// ours, and what they have. Where ours are present, the foreign ones came later.
func foreignTables(familyID int) (map[int]string, error) {
	routes, err := listRoutes(familyID)
	if err != nil {
		return nil, err
	}
	rules, err := listRules(familyID)
	if err != nil {
		return nil, err
	}
	ours, out := map[int]bool{}, map[int]string{}
	for _, r := range rules {
		if r.Protocol == plan.RouteProtocol {
			ours[r.Table] = true
		} else {
			out[r.Table] = fmt.Sprintf("table %d has the rule %d: lookup %d", r.Table, r.Priority, r.Table)
		}
	}
	for _, r := range routes {
		if r.protocol == plan.RouteProtocol {
			ours[r.table] = true
		} else {
			out[r.table] = fmt.Sprintf("table %d has the route %s", r.table, r.to())
		}
	}
	for table := range ours {
		delete(out, table)
	}
	return out, nil
}

// Cleanup deletes our rules and routes of one family. A foreign table stays, with the rules
// that lead to it.
func Cleanup(familyID int) error {
	others, err := foreignTables(familyID)
	if err != nil {
		return err
	}
	rules, err := listRules(familyID)
	if err != nil {
		return err
	}
	for _, r := range rules {
		if others[r.Table] != "" && r.Protocol != plan.RouteProtocol {
			continue
		}
		if err := deleteRule(r); err != nil {
			return fmt.Errorf("delete %s: %w", ruleOf(r), err)
		}
	}
	routes, err := listRoutes(familyID)
	if err != nil {
		return err
	}
	var gone []request
	for _, r := range routes {
		if others[r.table] == "" {
			gone = append(gone, r.remove())
		}
	}
	return send(gone)
}

// CheckWay asks the kernel where it would send a packet for a pod elsewhere: other
// programs' rules and tables may come before ours (a VPN that takes all traffic).
func CheckWay(s plan.State) (detail, remedy string) {
	tun, err := findLink(plan.TUNName, "tuntap")
	if err != nil || tun == nil || s.Keep {
		return "", "" // reported already; in keep mode the other plugin's routes count
	}
	for _, f := range s.Held() {
		if !f.Gateway.IsValid() {
			continue
		}
		for _, p := range f.Ranges {
			to := mesh.LastAddr(p)
			if slices.ContainsFunc(f.Blocks, func(b netip.Prefix) bool { return b.Contains(to) }) {
				continue
			}
			routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
			if err != nil || len(routes) == 0 || plan.OurTable(routes[0].Table) {
				continue // a blackhole is reported as a missing route
			}
			detail = fmt.Sprintf("packets for the pod range %s miss the pod network: another rule sends them to routing table %d", p, routes[0].Table)
			if link, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil {
				detail += ", interface " + link.Attrs().Name
			}
			return detail, fmt.Sprintf("see `ip rule` and `ip route get %s`: give that rule a priority above %d, or exclude the range from it", to, plan.RulePref)
		}
	}
	return "", ""
}
