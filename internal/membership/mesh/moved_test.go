package mesh

import (
	"net/netip"
	"slices"
	"testing"
)

// What has moved to our plugin leaves for the mesh; on a node that is on the way itself, everything of the cluster does.
func TestMoved(t *testing.T) {
	s := twoSites()
	moved := func(labelled ...string) []netip.Prefix {
		t.Helper()
		s.Nodes = slices.Clone(s.Nodes)
		for i := range s.Nodes {
			s.Nodes[i].Labels = nil
			if slices.Contains(labelled, s.Nodes[i].Name) {
				s.Nodes[i].Labels = map[string]string{MovedLabel: ""}
			}
		}
		p, err := NewPlan(s, "edge-1")
		if err != nil {
			t.Fatal(err)
		}
		return p.Host.Moved
	}
	for _, c := range []struct {
		labelled []string
		want     []netip.Prefix
	}{
		{nil, nil},
		{[]string{"edge-2", "cloud.example.org"}, cidrs("10.244.2.0/24", "10.244.3.0/24", "fd00:10:244:2::/64")},
		{[]string{"edge-1", "edge-2"}, s.PodCIDRs},
	} {
		if got := moved(c.labelled...); !slices.Equal(got, c.want) {
			t.Errorf("moved %v: %v, want %v", c.labelled, got, c.want)
		}
	}
}
