package rtnetlink

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// rule is the part of a policy rule that we care about; it is comparable.
type rule struct {
	priority   int
	not        bool   // inverts all that follows, except the table
	iif        string // what comes in there; "lo": what this host itself sends
	mark, mask uint32
	from, to   netip.Prefix // invalid: anywhere
	table      int
	atLeast    int  // the shortest prefix length that counts: suppress_prefixlength + 1
	foreign    bool // it has a selector that our rules never have
}

// rules returns those of one family, from priority at on: everything except what the agent's own sockets send uses our table
// before the host's. What these send goes where another program's packets would.
func rules(f plan.Family, at int) []rule {
	if !f.Wanted {
		return nil
	}
	out := keepRules(f, at)
	main := rule{priority: at + width(f) - 1, not: true, iif: "lo", mark: plan.OwnMarks, mask: plan.OwnMarkMask, table: plan.TableID}
	out = append(out, main)
	if f.LAN.PodsOnly { // by the interface, for Services' translation gives packets of pods and nodes other addresses later
		out = append(out, rule{priority: main.priority - 1, iif: plan.BridgeName, table: plan.PathTable})
	}
	if f.Probe.IsValid() {
		out = append(out, rule{priority: at, iif: plan.BridgeName, from: plan.Single(f.Probe), table: plan.ForwardTable})
	}
	for slot := range f.ProbeSlots() { // probes of each slot go to its table
		out = append(out, rule{priority: main.priority, mark: uint32(plan.SlotMark(slot)), mask: plan.MarkMask, table: plan.ProbeTable + slot})
	}
	for n := range f.BackSlots() { // what they have no route for is looked up as without the mark
		out = append(out, rule{priority: at, mark: uint32(plan.BackMark(n)), mask: plan.MarkMask, table: plan.BackTable + n})
	}
	return out
}

// width is how many priorities a family's rules have: of those with one priority at most one matches.
func width(f plan.Family) int {
	n := 1
	if f.Keep || f.LAN.PodsOnly {
		n++
	}
	if len(f.Moved) > 0 {
		n += 2
	}
	if f.Probe.IsValid() || f.BackSlots() > 0 { // what comes from the bridge has no mark
		n++
	}
	return n
}

// keepRules let main decide where its routes are more specific than ours. Inside own blocks every
// route as narrow as the cluster's range counts: it leads to the plugin's pods. Elsewhere in
// the ranges only narrower routes count: they lead to the plugin's other nodes. A
// default route never counts. Between the two stands what has moved: there no route of main counts.
func keepRules(f plan.Family, at int) []rule {
	if !f.Keep {
		return nil
	}
	var out []rule
	add := func(to netip.Prefix, atLeast int) {
		out = append(out, rule{priority: at, to: to, atLeast: atLeast, table: unix.RT_TABLE_MAIN})
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
	for _, m := range f.Moved {
		out = append(out, rule{priority: at + 1, to: m, table: plan.TableID})
	}
	if len(f.Moved) > 0 {
		at += 2
	}
	for _, r := range f.Ranges {
		add(r, r.Bits()+1)
	}
	return out
}

// CountRules says how many policy rules s has.
func CountRules(s plan.State) string {
	return fmt.Sprintf("%d rules present", len(rules(s.Each[0], 1))+len(rules(s.Each[1], 1)))
}

// Rules keeps our policy rules before those of other programs. It has a lock of its own: such a rule takes pods' packets
// immediately, even while a Set waits for iptables.
type Rules struct {
	mu     sync.Mutex // taken after Host's
	state  plan.State // of the last Set
	set    bool       // state is valid
	places [2]place
}

// Diff compares the rules that are ours: those of our protocol number or that lead to our table. Foreign ones stay, whatever
// their priorities. From now on Repair uses s.
func (r *Rules) Diff(s plan.State) ([]plan.Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.set = s, true
	k := &netlink.Handle{}
	moves, err := r.compare(k)
	if what := describe(moves); err == nil && what != "" {
		return []plan.Change{{What: what, Do: func() error { _, err := r.Repair(k); return err }}}, nil
	}
	return nil, err
}

// Forget makes Repair do nothing until the next Diff.
func (r *Rules) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set, r.places = false, [2]place{}
}

// Repair makes what Diff finds, through k, and returns what it changed: "" for nothing, and before the first Diff.
func (r *Rules) Repair(k *netlink.Handle) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.set {
		return "", nil
	}
	moves, err := r.compare(k)
	if err != nil {
		return "", err
	}
	for _, m := range moves {
		for _, n := range m.missing {
			if err := ignore(k.RuleAdd(n.netlink(m.family)), unix.EEXIST); err != nil {
				return "", fmt.Errorf("add %s: %w", n, err)
			}
		}
		for _, n := range m.surplus {
			if err := ignore(k.RuleDel(&n), unix.ENOENT); err != nil {
				return "", fmt.Errorf("delete %s: %w", ruleOf(n), err)
			}
		}
		r.places[m.index] = m.place
	}
	return describe(moves), nil
}

// move is what one family's rules differ in. What is missing is added before anything is deleted.
type move struct {
	index, family int
	place         place
	missing       []rule
	surplus       []netlink.Rule
}

func (r *Rules) compare(k *netlink.Handle) (out []move, _ error) {
	for i, f := range r.state.Held() {
		have, others, err := splitRules(k, f.ID())
		if err != nil {
			return nil, err
		}
		m := move{index: i, family: f.ID(), place: r.places[i].decide(time.Now(), aroundOf(have, others), width(f), f.Keep)}
		want := rules(f, m.place.at)
		for _, n := range have {
			if at := slices.Index(want, ruleOf(n)); at >= 0 {
				want = slices.Delete(want, at, at+1)
			} else {
				m.surplus = append(m.surplus, n)
			}
		}
		m.missing = want
		out = append(out, m)
	}
	return out, nil
}

// aroundOf says where rules stand, ours and others. Ours need not stand before the kernel's rule for VRFs, which
// takes no packet of pods and whose addresses may be those of pods.
func aroundOf(ours, others []netlink.Rule) (out around) {
	for _, n := range ours {
		if n.Protocol == plan.RouteProtocol && (out.found == 0 || n.Priority < out.found) {
			out.found = n.Priority
		}
	}
	first := -1 // of the local table
	for _, n := range others {
		if first < 0 && ruleOf(n) == (rule{priority: n.Priority, table: unix.RT_TABLE_LOCAL}) {
			first, out.local = n.Priority, n.Priority
		}
		if n.Priority == 0 {
			continue
		}
		if out.lowest == 0 || n.Priority < out.lowest {
			out.lowest = n.Priority
		}
		vrf := n.Table == unix.RT_TABLE_UNSPEC && n.Protocol == unix.RTPROT_KERNEL
		if n.Table != unix.RT_TABLE_LOCAL && !vrf {
			out.others = append(out.others, n.Priority)
		}
	}
	return out
}

// describe names the differences, "" for none.
func describe(moves []move) string {
	var out []string
	for _, m := range moves {
		if len(m.place.moves) > manyMoves && len(m.missing) > 0 { // the same text each time: another program is at work
			out = append(out, "move our rules before one without a priority, which is added again and again")
			continue
		}
		if n := len(m.missing); n > 0 && n == len(m.surplus) && m.missing[0].priority != m.surplus[0].Priority {
			out = append(out, fmt.Sprintf("move our rules from priority %d to %d", m.surplus[0].Priority, m.missing[0].priority))
			continue
		}
		for _, n := range m.missing {
			out = append(out, "add "+n.String())
		}
		for _, n := range m.surplus {
			out = append(out, "delete "+ruleOf(n).String())
		}
	}
	return strings.Join(out, ", ")
}

func (r rule) String() string {
	s := fmt.Sprintf("rule %d:", r.priority)
	if r.not {
		s += " not"
	}
	if r.iif != "" {
		s += " iif " + r.iif
	}
	if r.mask != 0 {
		s += fmt.Sprintf(" fwmark %#x/%#x", r.mark, r.mask)
	}
	if r.from.IsValid() {
		s += fmt.Sprintf(" from %s", r.from)
	}
	if r.to.IsValid() {
		s += fmt.Sprintf(" to %s", r.to)
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
	if r.from.IsValid() {
		n.Src = ipNet(r.from)
	}
	if r.to.IsValid() {
		n.Dst = ipNet(r.to)
	}
	return n
}

// ruleOf is the reverse of netlink.
func ruleOf(n netlink.Rule) rule {
	r := rule{
		priority: n.Priority, not: n.Invert, iif: n.IifName, mark: n.Mark, from: prefixOf(n.Src), to: prefixOf(n.Dst), table: n.Table,
		atLeast: int(int32(n.SuppressPrefixlen)) + 1, foreign: n.OifName != "" || n.Goto > 0,
	}
	if n.Mask != nil {
		r.mask = *n.Mask
	}
	return r
}

// listRules lists the rules of our protocol number, and those to our tables.
func listRules(familyID int) ([]netlink.Rule, error) {
	ours, _, err := splitRules(&netlink.Handle{}, familyID)
	return ours, err
}

// splitRules lists the rules that are ours, as listRules does, and those of other programs.
func splitRules(k *netlink.Handle, familyID int) (ours, others []netlink.Rule, err error) {
	all, err := dump("rules", func() ([]netlink.Rule, error) { return k.RuleList(familyID) })
	for _, r := range all {
		r.Family = familyID
		if r.Protocol == plan.RouteProtocol || plan.OurTable(r.Table) {
			ours = append(ours, r)
		} else {
			others = append(others, r)
		}
	}
	return ours, others, err
}

func deleteRule(r netlink.Rule) error { return ignore(netlink.RuleDel(&r), unix.ENOENT) }

// Present reports whether an agent has set up this host since its last boot, and none has
// cleaned up.
func Present() (bool, error) {
	all, err := listRules(netlink.FAMILY_ALL)
	return slices.ContainsFunc(all, func(r netlink.Rule) bool { return r.Protocol == plan.RouteProtocol && r.Table == plan.TableID }), err
}
