package rtnetlink

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// TestRules checks the rules of each kind of plan, and that each is recognized when the kernel
// lists it.
func TestRules(t *testing.T) {
	prefix := netip.MustParsePrefix
	f := plan.Family{Wanted: true, Blocks: []netip.Prefix{prefix("10.244.1.0/24")}, Ranges: []netip.Prefix{prefix("10.244.0.0/16")}}
	withLAN, kept := f, f
	withLAN.LAN.On = true
	withLAN6 := withLAN
	withLAN6.V6, withLAN6.Blocks, withLAN6.Ranges = true, []netip.Prefix{prefix("fd00:1::/64")}, []netip.Prefix{prefix("fd00::/16")}
	kept.Keep = true
	moving := kept
	moving.Moved = []netip.Prefix{prefix("10.244.3.0/24"), prefix("10.244.4.0/24")}
	const main = ": not iif lo fwmark 0xe80000/0xf80000 lookup 5210"
	const probes = "\nrule 5200: fwmark 0xe80000/0xff0000 lookup 5220\nrule 5200: fwmark 0xe90000/0xff0000 lookup 5221" +
		"\nrule 5200: fwmark 0xea0000/0xff0000 lookup 5222\nrule 5200: fwmark 0xeb0000/0xff0000 lookup 5223"
	for _, c := range []struct {
		name string
		of   plan.Family
		want string
	}{
		{"nothing wanted", plan.Family{}, ""},
		{"own pods", f, "rule 5200" + main},
		{"LAN paths", withLAN, "rule 5200" + main + probes},
		{"LAN paths of IPv6", withLAN6, "rule 5201" + main + strings.ReplaceAll(probes, "5200", "5201") +
			"\nrule 5200: fwmark 0xe00000/0xff0000 lookup 5225\nrule 5200: fwmark 0xe10000/0xff0000 lookup 5226" +
			"\nrule 5200: fwmark 0xe20000/0xff0000 lookup 5227\nrule 5200: fwmark 0xe30000/0xff0000 lookup 5228" +
			"\nrule 5200: fwmark 0xe40000/0xff0000 lookup 5229"},
		{"another plugin's pods", kept, "rule 5200: to 10.244.1.0/24 lookup main\nrule 5200: to 10.244.0.0/16 lookup main\nrule 5201" + main},
		{"peers that have moved", moving, "rule 5200: to 10.244.1.0/24 lookup main\nrule 5201: to 10.244.3.0/24 lookup 5210\nrule 5201: to 10.244.4.0/24 lookup 5210" +
			"\nrule 5202: to 10.244.0.0/16 lookup main\nrule 5203" + main},
	} {
		var got []string
		for _, r := range rules(c.of, plan.KeepRule) {
			got = append(got, r.String())
			if back := ruleOf(*r.netlink(c.of.ID())); back != r {
				t.Errorf("%s: %+v comes back as %+v", c.name, r, back)
			}
		}
		if s := strings.Join(got, "\n"); s != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, s, c.want)
		}
	}
}

// TestAround: the local table where a program has moved its rule, and the rule that the kernel makes for VRFs.
func TestAround(t *testing.T) {
	at := func(priority, table int, protocol uint8) netlink.Rule {
		n := netlink.NewRule()
		n.Priority, n.Table, n.Protocol = priority, table, protocol
		return *n
	}
	local, main := at(0, unix.RT_TABLE_LOCAL, unix.RTPROT_KERNEL), at(plan.MainRule, unix.RT_TABLE_MAIN, unix.RTPROT_KERNEL)
	marked := at(9, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT)
	marked.Mark, marked.Mask = 0x200, new(uint32)
	for name, c := range map[string]struct {
		others []netlink.Rule
		want   around
	}{
		"as found":       {[]netlink.Rule{local, main}, around{others: []int{plan.MainRule}, lowest: plan.MainRule}},
		"local is moved": {[]netlink.Rule{marked, at(100, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT), main}, around{others: []int{plan.MainRule}, lowest: 9, local: 100}},
		"local is twice": {[]netlink.Rule{local, at(100, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT), main}, around{others: []int{plan.MainRule}, lowest: 100}},
		"a VRF":          {[]netlink.Rule{local, at(1000, unix.RT_TABLE_UNSPEC, unix.RTPROT_KERNEL), main}, around{others: []int{plan.MainRule}, lowest: 1000}},
		"unreachable":    {[]netlink.Rule{local, at(1000, unix.RT_TABLE_UNSPEC, unix.RTPROT_BOOT), main}, around{others: []int{1000, plan.MainRule}, lowest: 1000}},
	} {
		if got := aroundOf([]netlink.Rule{at(5200, plan.TableID, plan.RouteProtocol)}, c.others); got.found != 5200 || got.lowest != c.want.lowest ||
			got.local != c.want.local || !slices.Equal(got.others, c.want.others) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestKeptRoutes: in keep mode main's routes count where they are narrower than a range, in own blocks also where they are as wide.
func TestKeptRoutes(t *testing.T) {
	prefix := netip.MustParsePrefix
	f := plan.Family{Wanted: true, Keep: true, Blocks: []netip.Prefix{prefix("10.244.1.0/24")}, Ranges: []netip.Prefix{prefix("10.244.0.0/16")}}
	want := map[string]int{"10.244.1.0/24": 16, "10.244.0.0/16": 17}
	for _, r := range keepRules(f, plan.KeepRule) {
		if r.atLeast != want[r.to.String()] {
			t.Errorf("to %s routes count from /%d on, want /%d", r.to, r.atLeast, want[r.to.String()])
		}
		delete(want, r.to.String())
	}
	if len(want) > 0 {
		t.Errorf("no rule for %v", want)
	}
}
