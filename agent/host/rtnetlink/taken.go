package rtnetlink

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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
	routes, err := listRoutes(familyID)
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
		if r.protocol == plan.RouteProtocol {
			ours[r.table] = true
		} else {
			out[r.table] = "the route " + routeText(r)
		}
	}
	for table := range ours {
		delete(out, table)
	}
	return out, nil
}

func routeText(r route) string {
	if r.dst.Bits() == 0 {
		return "default"
	}
	return r.dst.String()
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
	var gone []request
	for _, r := range routes {
		if others[r.table] == "" {
			gone = append(gone, r.remove())
		}
	}
	return send(gone)
}
