package rtnetlink

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
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

// CheckRoutes queries where the kernel would send packets of this node and of its pods to pods elsewhere, and those that come
// to own pods: other programs' rules and tables may come before ours (a VPN that takes all traffic). It queries an address of
// each range, and of whatever part of it such a rule names.
func CheckRoutes(s plan.State) (detail, remedy string) {
	tun, err := findLink(plan.TUNName, "tuntap")
	if err != nil || tun == nil || s.Keep {
		return "", "" // reported already; in keep mode the other plugin's routes count
	}
	for _, f := range s.Held() {
		if !f.Gateway.IsValid() {
			continue
		}
		before, named, err := earlier(f)
		if err != nil {
			continue
		}
		for _, w := range trips(f, named) {
			if table, link := w.misses(); table != 0 {
				return fmt.Sprintf("%s miss the pod network: %s sends them to routing table %d%s", w, w.sender(before, table), table, link), w.remedy()
			}
		}
	}
	return "", ""
}

// CheckStrays names the rule that would send packets out in clear which were dropped instead, if it still does: marks that others
// give packets show there alone.
func CheckStrays(s plan.State, strays []plan.Stray) (detail, remedy string) {
	for _, x := range strays {
		f := s.Of(x.Dst)
		w := trip{to: x.Dst, mark: x.Mark, prefix: plan.Single(x.Dst)}
		for _, r := range f.Ranges {
			if r.Contains(x.Dst) {
				w.prefix = r
			}
		}
		if f.InRange(plan.Single(x.Src)) && x.Src != f.Gateway {
			w.from, w.over = x.Src, plan.TUNName
			if f.Own(x.Src) {
				w.over = plan.BridgeName
			}
		}
		before, _, err := earlier(f)
		if table, link := w.misses(); err == nil && table != 0 {
			return fmt.Sprintf("%s are dropped, which %s sends to routing table %d%s: they would leave in clear", w, w.sender(before, table), table, link), w.remedy()
		}
	}
	return "", ""
}

// misses returns the routing table, and the interface, to which the kernel sends packets: 0 if it is ours, or none.
func (w trip) misses() (table int, over string) {
	r, err := netlink.RouteGetWithOptions(w.to.AsSlice(), w.options())
	if err != nil || len(r) == 0 || plan.OurTable(r[0].Table) {
		return 0, "" // a blackhole is reported as a missing route
	}
	if link, err := netlink.LinkByIndex(r[0].LinkIndex); err == nil {
		over = ", interface " + link.Attrs().Name
	}
	return r[0].Table, over
}

func (w trip) remedy() string {
	return fmt.Sprintf("see `ip%s rule` and `%s`: find what adds that rule, and delete it or exclude the range from it. The agent moves its own rules before it at most three times an hour", w.version(), w.command())
}

// earlier are the foreign rules before ours, and the prefixes that they name, as destination or source.
func earlier(f plan.Family) (before []netlink.Rule, named []netip.Prefix, err error) {
	ours, others, err := splitRules(&netlink.Handle{}, f.ID())
	at := plan.MainRule
	for _, r := range ours {
		if r.Table == plan.TableID {
			at = r.Priority
		}
	}
	for _, r := range others {
		if r.Priority > at {
			continue
		}
		before = append(before, r)
		for _, p := range []netip.Prefix{prefixOf(r.Dst), prefixOf(r.Src)} {
			if p.IsValid() {
				named = append(named, p.Masked())
			}
		}
	}
	return before, named, err
}

// trip is one that packets make: from where, "" for this node itself, to an address.
type trip struct {
	prefix   netip.Prefix
	to, from netip.Addr
	over     string
	mark     uint32
}

// trips lists a family's: to each range and each part of one that is named, from this node and from an own pod, and back to it.
func trips(f plan.Family, named []netip.Prefix) (out []trip) {
	pod := mesh.LastAddr(f.Blocks[0]).Prev()
	for _, p := range append(slices.Clone(f.Ranges), named...) {
		to := mesh.LastAddr(p)
		if !f.InRange(plan.Single(to)) {
			continue
		}
		if !f.Own(to) {
			out = append(out, trip{prefix: p, to: to}, trip{prefix: p, to: to, from: pod, over: plan.BridgeName},
				trip{prefix: f.Blocks[0], to: pod, from: to, over: plan.TUNName})
			continue
		}
		if p.Contains(pod) {
			to = pod // the block's last address is for all of it
		}
		if to != f.Gateway { // which is in the table local
			out = append(out, trip{prefix: p, to: to})
		}
	}
	return out
}

// sender names the rule that leads to a table.
func (w trip) sender(rules []netlink.Rule, table int) string {
	for _, n := range rules {
		r := ruleOf(n)
		is := (r.iif == "" || r.iif == cmp.Or(w.over, "lo")) && w.mark&r.mask == r.mark &&
			(!r.to.IsValid() || r.to.Contains(w.to)) && (!r.from.IsValid() || r.from.Contains(w.from))
		if is != r.not && r.table == table {
			return "another program's " + r.String()
		}
	}
	return "another program's rule"
}

func (w trip) options() *netlink.RouteGetOptions {
	o := &netlink.RouteGetOptions{FIBMatch: true, Iif: w.over, Mark: w.mark}
	if w.from.IsValid() {
		o.SrcAddr = w.from.AsSlice()
	}
	return o
}

func (w trip) String() string {
	of := "packets"
	if w.over != "" {
		of = fmt.Sprintf("packets that come over %s from %s", w.over, w.from)
	}
	if w.mark != 0 {
		of += fmt.Sprintf(" with mark %#x", w.mark)
	}
	return fmt.Sprintf("%s for the pod range %s", of, w.prefix)
}

func (w trip) version() string {
	if w.to.Is6() {
		return " -6"
	}
	return ""
}

// command is the same query for an operator.
func (w trip) command() string {
	c := fmt.Sprintf("ip route get %s", w.to)
	if w.over != "" {
		c += fmt.Sprintf(" from %s iif %s", w.from, w.over)
	}
	if w.mark != 0 {
		c += fmt.Sprintf(" mark %#x", w.mark)
	}
	return c
}
