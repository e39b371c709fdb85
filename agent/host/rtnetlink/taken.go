package rtnetlink

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// CheckNames looks for foreign interfaces and routes under our names and numbers. The
// error wraps ErrNameTaken or ErrTableTaken.
func CheckNames(s plan.State) error {
	_, err := findBridge()
	errs := []error{err}
	for _, f := range s.Held() {
		tables, err := foreignTables(f.ID())
		if err == nil && len(tables) > 0 {
			err = fmt.Errorf("%w: %s", ErrTableTaken, strings.Join(tables.text(), "; "))
		}
		errs = append(errs, err)
	}
	_, err = findLink(plan.TUNName, "tuntap")
	return errors.Join(append(errs, err)...)
}

// foreign maps routing tables of our numbers that another program uses to what it has
// there, as text.
type foreign map[int]string

func (t foreign) text() []string {
	var out []string
	for table, what := range t {
		out = append(out, fmt.Sprintf("table %d has %s", table, what))
	}
	slices.Sort(out)
	return out
}

// foreignTables lists tables of our numbers that have routes or rules of others and
// none of ours: in a table where ours are, others came later.
func foreignTables(familyID int) (foreign, error) {
	routes, err := listTables(familyID)
	if err != nil {
		return nil, err
	}
	rules, err := listRules(familyID)
	if err != nil {
		return nil, err
	}
	ours, out := map[int]bool{}, foreign{}
	for _, r := range rules {
		if r.Protocol == plan.RouteProtocol {
			ours[r.Table] = true
		} else {
			out[r.Table] = fmt.Sprintf("the rule %d: lookup %d", r.Priority, r.Table)
		}
	}
	for _, r := range routes {
		if r.Protocol == plan.RouteProtocol {
			ours[r.Table] = true
		} else {
			out[r.Table] = "the route " + routeText(r)
		}
	}
	for table := range ours {
		delete(out, table)
	}
	return out, nil
}

func routeText(r netlink.Route) string {
	if r.Dst == nil || prefixOf(r.Dst).Bits() == 0 {
		return "default"
	}
	return r.Dst.String()
}

// Cleanup deletes our rules and routes of one family. A table that has nothing of ours
// stays with its rules.
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
	for _, r := range routes {
		if others[r.table] != "" {
			continue
		}
		if err := ignore(netlink.RouteDel(r.netlink()), unix.ESRCH); err != nil {
			return fmt.Errorf("delete route %s: %w", r, err)
		}
	}
	paths, err := listPathRoutes(familyID)
	if err != nil {
		return err
	}
	return send(diffPathRoutes(familyID, paths, nil))
}
