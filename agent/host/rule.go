package host

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// rules are those of one family: the agent's own sockets pass us by, all else
// asks our table before the host's; in keep mode the host's where it knows better.
func (f family) rules() []netlink.Rule {
	familyID := f.id()
	mask := uint32(MarkMask)
	mark := netlink.NewRule()
	mark.Family, mark.Priority, mark.Table, mark.Protocol = familyID, RulePrefMark, unix.RT_TABLE_MAIN, RouteProtocol
	mark.Mark, mark.Mask = Mark, &mask
	table := netlink.NewRule()
	table.Family, table.Priority, table.Table, table.Protocol = familyID, RulePref, TableID, RouteProtocol
	return slices.Concat([]netlink.Rule{*mark, *table}, f.probeRules(), f.keepRules())
}

// probeRules lead the probes of each slot to its table. What has none of our marks skips
// them all: the kernel asks each rule twice for each packet.
func (f family) probeRules() []netlink.Rule {
	if !f.lan.on {
		return nil
	}
	skip, ours := netlink.NewRule(), uint32(ownMarkMask)
	skip.Family, skip.Priority, skip.Goto, skip.Protocol = f.id(), RulePrefSkip, RulePref, RouteProtocol
	skip.Invert, skip.Mark, skip.Mask = true, ownMarks, &ours
	out := []netlink.Rule{*skip}
	mask := uint32(MarkMask)
	for slot := range f.probeSlots() {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = f.id(), RulePrefProbe+slot, ProbeTable+slot, RouteProtocol
		r.Mark, r.Mask = uint32(SlotMark(slot)), &mask
		out = append(out, *r)
	}
	return out
}

// probeSlots is how many slots probes of this family have.
func (f family) probeSlots() int {
	if !f.lan.on {
		return 0
	}
	return mesh.ProbeSlots
}

// diffRules compares the rules that are ours: those of our protocol number or
// that lead to our table. Others at the same priorities are left alone.
func diffRules(fs families) ([]change, error) {
	var out []change
	for _, f := range fs.held() {
		have, err := ourRules(f.id())
		if err != nil {
			return nil, err
		}
		var want []netlink.Rule
		if f.wanted {
			want = f.rules()
		}
		found := make([]bool, len(want))
	next:
		for _, r := range have {
			for i, w := range want {
				if !found[i] && sameRule(r, w) {
					found[i] = true
					continue next
				}
			}
			out = append(out, change{"delete " + r.String(), func() error { return deleteRule(r) }})
		}
		for i, w := range want {
			if !found[i] {
				out = append(out, change{"add " + w.String(), func() error {
					return ignore(netlink.RuleAdd(&w), unix.EEXIST)
				}})
			}
		}
	}
	return out, nil
}

func sameRule(a, b netlink.Rule) bool {
	mask := func(r netlink.Rule) uint32 {
		if r.Mask == nil {
			return 0
		}
		return *r.Mask
	}
	return a.Priority == b.Priority && a.Table == b.Table && a.Mark == b.Mark && mask(a) == mask(b) &&
		prefixOf(a.Dst) == prefixOf(b.Dst) && suppressed(a) == suppressed(b) && a.Invert == b.Invert && a.Goto == b.Goto && a.Src == nil && a.IifName == "" && a.OifName == ""
}

// suppressed is the longest prefix length that a rule ignores, -1 for none.
func suppressed(r netlink.Rule) int { return int(int32(r.SuppressPrefixlen)) }

func ourRules(familyID int) ([]netlink.Rule, error) {
	all, err := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(familyID) })
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	var out []netlink.Rule
	for _, r := range all {
		if r.Protocol == RouteProtocol || ourTable(r.Table) {
			r.Family = familyID
			out = append(out, r)
		}
	}
	return out, nil
}

func deleteRule(r netlink.Rule) error { return ignore(netlink.RuleDel(&r), unix.ENOENT) }

func deleteRules(familyID int, others taken) error {
	have, err := ourRules(familyID)
	if err != nil {
		return err
	}
	for _, r := range have {
		if others[r.Table] != "" && r.Protocol != RouteProtocol {
			continue
		}
		if err := deleteRule(r); err != nil {
			return fmt.Errorf("delete %s: %w", r.String(), err)
		}
	}
	return nil
}
