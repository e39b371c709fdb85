package rtnetlink

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// rule is the part of a policy rule that we care about; it is comparable.
type rule struct {
	priority   int
	not        bool // inverts the match of mark
	mark, mask uint32
	to         netip.Prefix // invalid: anywhere
	iif        string       // the interface that a packet came in on
	table      int
	goTo       int  // priority, in place of table
	atLeast    int  // the shortest prefix length that counts: suppress_prefixlength + 1
	foreign    bool // it has a selector that our rules never have
}

// rules returns those of one family: the agent's own sockets bypass our table, everything
// else uses it before the host's.
func rules(f plan.Family) []rule {
	if !f.Wanted {
		return nil
	}
	out := []rule{
		{priority: plan.RulePrefMark, mark: plan.Mark, mask: plan.MarkMask, table: unix.RT_TABLE_MAIN},
		{priority: plan.RulePref, table: plan.TableID},
	}
	if f.LAN.On { // packets without our marks skip the rules for them: the kernel evaluates each rule twice per packet
		out = append(out, rule{priority: plan.RulePrefSkip, not: true, mark: plan.OwnMarks, mask: plan.OwnMarkMask, goTo: plan.RulePref})
	}
	if f.LAN.PodsOnly { // by the interface, for Services' translation gives packets of pods and nodes other addresses later
		out = append(out, rule{priority: plan.RulePrefPaths, iif: plan.BridgeName, table: plan.PathTable})
	}
	for slot := range f.ProbeSlots() { // probes of each slot go to its table
		out = append(out, rule{priority: plan.RulePrefProbe + slot, mark: uint32(plan.SlotMark(slot)), mask: plan.MarkMask, table: plan.ProbeTable + slot})
	}
	return append(out, keepRules(f)...)
}

// keepRules let main decide where its routes are more specific than ours. Inside own blocks every
// route as narrow as the cluster's range counts: it leads to the plugin's pods. Elsewhere in
// the ranges only narrower routes count: they lead to the plugin's other nodes. A
// default route never counts.
func keepRules(f plan.Family) []rule {
	if !f.Keep {
		return nil
	}
	var out []rule
	add := func(to netip.Prefix, atLeast int) {
		out = append(out, rule{priority: plan.RulePrefKeep, to: to, atLeast: atLeast, table: unix.RT_TABLE_MAIN})
	}
	for _, b := range f.Blocks {
		atLeast := b.Bits()
		for _, r := range f.Ranges {
			if r.Overlaps(b) {
				atLeast = min(atLeast, r.Bits())
			}
		}
		add(b, atLeast)
	}
	for _, r := range f.Ranges {
		add(r, r.Bits()+1)
	}
	return out
}

// CountRules says how many policy rules s has.
func CountRules(s plan.State) string {
	return fmt.Sprintf("%d rules present", len(rules(s.Each[0]))+len(rules(s.Each[1])))
}

// DiffRules compares the rules that are ours: those of our protocol number or
// that lead to our table. Foreign ones at the same priorities are left alone.
func DiffRules(s plan.State) ([]plan.Change, error) {
	var out []plan.Change
	for _, f := range s.Held() {
		have, err := listRules(f.ID())
		if err != nil {
			return nil, err
		}
		missing := map[rule]bool{}
		for _, r := range rules(f) {
			missing[r] = true
		}
		for _, n := range have {
			if r := ruleOf(n); missing[r] {
				delete(missing, r)
			} else {
				out = append(out, plan.Change{What: "delete " + r.String(), Do: func() error { return deleteRule(n) }})
			}
		}
		for _, r := range rules(f) {
			if missing[r] {
				out = append(out, plan.Change{What: "add " + r.String(), Do: func() error {
					return ignore(netlink.RuleAdd(r.netlink(f.ID())), unix.EEXIST)
				}})
			}
		}
	}
	return out, nil
}

func (r rule) String() string {
	s := fmt.Sprintf("rule %d:", r.priority)
	if r.not {
		s += " not"
	}
	if r.mask != 0 {
		s += fmt.Sprintf(" fwmark %#x/%#x", r.mark, r.mask)
	}
	if r.iif != "" {
		s += " iif " + r.iif
	}
	if r.to.IsValid() {
		s += fmt.Sprintf(" to %s", r.to)
	}
	if r.goTo != 0 {
		return s + fmt.Sprintf(" goto %d", r.goTo)
	}
	if r.table == unix.RT_TABLE_MAIN {
		return s + " lookup main"
	}
	return s + fmt.Sprintf(" lookup %d", r.table)
}

func (r rule) netlink(familyID int) *netlink.Rule {
	n := netlink.NewRule()
	n.Family, n.Protocol, n.Priority, n.Table, n.Invert = familyID, plan.RouteProtocol, r.priority, r.table, r.not
	n.SuppressPrefixlen, n.IifName = r.atLeast-1, r.iif
	if r.mask != 0 {
		n.Mark, n.Mask = r.mark, &r.mask
	}
	if r.to.IsValid() {
		n.Dst = ipNet(r.to)
	}
	if r.goTo != 0 {
		n.Goto = r.goTo
	}
	return n
}

// ruleOf is the reverse of netlink.
func ruleOf(n netlink.Rule) rule {
	r := rule{
		priority: n.Priority, not: n.Invert, mark: n.Mark, to: prefixOf(n.Dst), iif: n.IifName, table: n.Table, goTo: max(n.Goto, 0),
		atLeast: int(int32(n.SuppressPrefixlen)) + 1, foreign: n.Src != nil || n.OifName != "",
	}
	if n.Mask != nil {
		r.mask = *n.Mask
	}
	return r
}

// listRules lists the rules of our protocol number, and those to our tables.
func listRules(familyID int) ([]netlink.Rule, error) {
	all, err := dump("rules", func() ([]netlink.Rule, error) { return netlink.RuleList(familyID) })
	if err != nil {
		return nil, err
	}
	var out []netlink.Rule
	for _, r := range all {
		if r.Protocol == plan.RouteProtocol || plan.OurTable(r.Table) {
			r.Family = familyID
			out = append(out, r)
		}
	}
	return out, nil
}

func deleteRule(r netlink.Rule) error { return ignore(netlink.RuleDel(&r), unix.ENOENT) }

// Present reports whether an agent has set up this host since its last boot, and none has
// cleaned up.
func Present() (bool, error) {
	all, err := listRules(netlink.FAMILY_ALL)
	return slices.ContainsFunc(all, func(r netlink.Rule) bool { return r.Protocol == plan.RouteProtocol && r.Table == plan.TableID }), err
}
