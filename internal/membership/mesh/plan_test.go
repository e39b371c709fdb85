package mesh

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestNewPlan(t *testing.T) {
	s := twoSites()
	e1, e2, cloud := s.Nodes[1], s.Nodes[0], s.Nodes[2]
	for _, c := range []struct {
		node    Node
		members []Node
		bits    [2][]int
	}{
		{e1, []Node{e2, cloud}, [2][]int{{24}, {64}}},
		{cloud, []Node{e2, e1}, [2][]int{{24}, {64}}},
	} {
		t.Run(c.node.Name, func(t *testing.T) {
			got, err := NewPlan(s, c.node.Name)
			if err != nil {
				t.Fatal(err)
			}
			var others []Node
			for n := range got.Members() {
				others = append(others, *n)
			}
			want := Plan{
				Self:   c.node,
				Subnet: Subnet{PodCIDRs: c.node.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: 1500},
				Host:   Host{Blocks: c.node.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: 1500},
				Nodes:  s.Nodes,
				Relays: s.Relays,
				WAN:    s.WANCIDRs,

				lengths: got.lengths,
				history: got.history,
			}
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(others, c.members) || !reflect.DeepEqual(got.BlockBits(), c.bits) {
				t.Errorf("got  %+v\nwant %+v\nwith members %v", got, want, others)
			}
		})
	}
}

func TestNewPlanAlone(t *testing.T) {
	s := State{PodCIDRs: cidrs("10.244.0.0/16"), Encryption: EncryptionAuto,
		Nodes: []Node{{Name: "only", PeerID: "O", PodCIDRs: cidrs("10.244.0.0/16")}}}
	p, err := NewPlan(s, "only")
	if err != nil {
		t.Fatal(err)
	}
	if len(slices.Collect(p.Members())) != 0 || len(p.Relays) != 0 || len(p.Nodes) != 1 || p.Self.Name != "only" {
		t.Errorf("got %+v", p)
	}
}

func TestNewPlanNotMember(t *testing.T) {
	_, err := NewPlan(twoSites(), "edge-9")
	if !errors.Is(err, ErrNotMember) || !strings.Contains(err.Error(), `"edge-9"`) {
		t.Errorf("error %v, want ErrNotMember with the name", err)
	}
}

func TestNewPlanIgnoresTheOrderOfNodes(t *testing.T) {
	want, err := NewPlan(twoSites(), "edge-1")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		s := twoSites()
		rand.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
		before := append([]Node(nil), s.Nodes...)
		got, err := NewPlan(s, "edge-1")
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equal(want) {
			t.Fatalf("order %v gave %+v\nwant %+v", s.Nodes, got, want)
		}
		if !reflect.DeepEqual(s.Nodes, before) {
			t.Fatal("the State was changed")
		}
	}
}

func TestGateway(t *testing.T) {
	for block, want := range map[string]string{
		"10.244.1.0/24":      "10.244.1.1",
		"10.244.1.4/30":      "10.244.1.5",
		"fd00:10:244:1::/64": "fd00:10:244:1::1",
	} {
		if got := Gateway(netip.MustParsePrefix(block)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s, want %s", block, got, want)
		}
	}
}

// TestFormer: what kubelet reports is kept up, unless it is a gateway already or another's. Inside an own block no pod gets it.
func TestFormer(t *testing.T) {
	for _, c := range []struct {
		reports, own   string
		kept, reserved bool
	}{
		{"10.244.7.1", "10.244.1.0/24", true, false},
		{"10.244.1.1", "10.244.1.0/24", false, false},
		{"10.244.2.1", "10.244.1.0/24", false, false}, // another node's
		{"10.244.1.1", "10.244.0.0/23", true, true},
		{"10.244.0.1", "10.244.0.0/23", false, false},
		{"192.168.1.10", "10.244.1.0/24", true, false},
		{"fd00:0:0:11::1", "fd00:0:0:10::/60", true, true},
	} {
		p, err := NewPlan(State{PodCIDRs: cidrs("10.244.0.0/16", "fd00::/48"), Nodes: []Node{
			{Name: "a", PeerID: "A", PodCIDRs: cidrs(c.own), NodeIPs: []netip.Addr{netip.MustParseAddr(c.reports)}},
			{Name: "b", PeerID: "B", PodCIDRs: cidrs("10.244.2.0/24")}}}, "a")
		if err != nil {
			t.Fatal(err)
		}
		if kept, reserved := len(p.Host.Former) == 1, len(p.Subnet.Reserved) == 1; kept != c.kept || reserved != c.reserved {
			t.Errorf("%s beside %s: kept %v, reserved %v", c.reports, c.own, p.Host.Former, p.Subnet.Reserved)
		}
	}
}
