package daemon

import (
	"net/netip"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
)

// What a node does not forward, though its configuration says so, is reported with the field's name.
func TestForwardFinding(t *testing.T) {
	for name, x := range map[string]struct {
		from, ranges string
		want         findings.Severity
		says         []string
	}{
		"not used":              {"", "10.244.0.0/16", findings.OK, nil},
		"outside":               {"172.31.0.0/20 fd12::7/128", "10.244.0.0/16 fd44::/16", findings.OK, []string{"from 172.31.0.0/20, fd12::7/128 to ports 10250/tcp"}},
		"inside":                {"172.31.0.0/20 10.244.7.0/24", "10.244.0.0/16", findings.Broken, []string{"nodes.cloud.forward.from[1]: 10.244.7.0/24 overlaps", "10.244.0.0/16 (podCIDRs)"}},
		"around":                {"10.0.0.0/8", "fd44::/16 10.244.0.0/16", findings.Broken, []string{"nodes.cloud.forward.from[0]: 10.0.0.0/8 overlaps", "10.244.0.0/16 (podCIDRs)"}},
		"no such IP version":    {"fd12::7/128 10.1.0.0/16", "10.244.0.0/16", findings.Broken, []string{"nodes.cloud.forward.from[0]: fd12::7/128 is of an IP version"}},
		"two mistakes in a row": {"10.244.0.0/16 fd12::/64", "10.244.0.0/16", findings.Broken, []string{"from[0]", "from[1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			prefixes := func(text string) (out []netip.Prefix) {
				for _, p := range strings.Fields(text) {
					out = append(out, netip.MustParsePrefix(p))
				}
				return out
			}
			h := mesh.Host{ClusterCIDRs: prefixes(x.ranges), Forward: mesh.Forward{From: prefixes(x.from), Ports: []mesh.HostPort{{Port: 10250, Proto: "tcp"}}}}
			got := checkForward(h, "nodes.cloud.forward")
			if len(x.says) == 0 {
				if len(got) != 0 {
					t.Errorf("findings %+v, want none", got)
				}
				return
			}
			if len(got) != 1 || got[0].Severity != x.want || (got[0].Remedy == "") != (x.want == findings.OK) {
				t.Fatalf("findings %+v, want one, %v", got, x.want)
			}
			for _, text := range x.says {
				if !strings.Contains(got[0].Text, text) {
					t.Errorf("%q lacks %q", got[0].Text, text)
				}
			}
		})
	}
}
