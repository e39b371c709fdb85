package rtnetlink

import (
	"net/netip"
	"strings"
	"testing"

	"edgemesh/agent/host/plan"
)

// TestRules checks the rules of each kind of plan, and that each is recognized when the kernel
// lists it.
func TestRules(t *testing.T) {
	prefix := netip.MustParsePrefix
	f := plan.Family{Wanted: true, Blocks: []netip.Prefix{prefix("10.244.1.0/24")}, Ranges: []netip.Prefix{prefix("10.244.0.0/16")}}
	withLAN, kept := f, f
	withLAN.LAN.On = true
	kept.Keep = true
	const main = ": not iif lo fwmark 0xe80000/0xf80000 lookup 5210"
	for _, c := range []struct {
		name string
		of   plan.Family
		want string
	}{
		{"nothing wanted", plan.Family{}, ""},
		{"own pods", f, "rule 5200" + main},
		{"LAN paths", withLAN, "rule 5200" + main +
			"\nrule 5200: fwmark 0xe80000/0xff0000 lookup 5220\nrule 5200: fwmark 0xe90000/0xff0000 lookup 5221" +
			"\nrule 5200: fwmark 0xea0000/0xff0000 lookup 5222\nrule 5200: fwmark 0xeb0000/0xff0000 lookup 5223"},
		{"another plugin's pods", kept, "rule 5200: to 10.244.1.0/24 lookup main\nrule 5200: to 10.244.0.0/16 lookup main\nrule 5201" + main},
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
