package mesh

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestNewPlan(t *testing.T) {
	s := twoSites()
	e1, e2, cloud := s.Nodes[1], s.Nodes[0], s.Nodes[2]
	route := func(p string, peer PeerID, self bool) Route {
		return Route{Prefix: netip.MustParsePrefix(p), Peer: peer, Self: self}
	}
	for _, c := range []struct {
		self    string
		node    Node
		members []Node
		routes  []Route
	}{
		{"edge-1", e1, []Node{cloud, e2}, []Route{
			route("10.244.1.0/24", "E1", true), route("10.244.2.0/24", "E2", false), route("10.244.3.0/24", "C", false),
			route("fd00:10:244:1::/64", "E1", true), route("fd00:10:244:2::/64", "E2", false),
		}},
		{"cloud.example.org", cloud, []Node{e1, e2}, []Route{
			route("10.244.1.0/24", "E1", false), route("10.244.2.0/24", "E2", false), route("10.244.3.0/24", "C", true),
			route("fd00:10:244:1::/64", "E1", false), route("fd00:10:244:2::/64", "E2", false),
		}},
	} {
		t.Run(c.self, func(t *testing.T) {
			got, err := NewPlan(s, c.self, sameID)
			if err != nil {
				t.Fatal(err)
			}
			want := Plan{
				Self:    c.node,
				Subnet:  Subnet{PodCIDRs: c.node.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: 1500},
				Host:    Host{Blocks: c.node.PodCIDRs, ClusterCIDRs: s.PodCIDRs, MTU: 1500},
				Routes:  c.routes,
				Members: c.members,
				Relays:  s.Relays,
				WAN:     s.WANCIDRs,
				IDs:     map[PeerID]RawID{"C": "C", "E1": "E1", "E2": "E2", "R1": "R1", "R2": "R2"},
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestNewPlanAlone(t *testing.T) {
	s := State{PodCIDRs: cidrs("10.244.0.0/16"), Encryption: EncryptionAuto,
		Nodes: []Node{{Name: "only", PeerID: "O", PodCIDRs: cidrs("10.244.0.0/16")}}}
	p, err := NewPlan(s, "only", sameID)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Members) != 0 || len(p.Relays) != 0 || len(p.Routes) != 1 || !p.Routes[0].Self {
		t.Errorf("got %+v", p)
	}
}

func TestNewPlanNotMember(t *testing.T) {
	_, err := NewPlan(twoSites(), "edge-9", sameID)
	if !errors.Is(err, ErrNotMember) || !strings.Contains(err.Error(), `"edge-9"`) {
		t.Errorf("error %v, want ErrNotMember with the name", err)
	}
}

func TestNewPlanIgnoresTheOrderOfNodes(t *testing.T) {
	want, err := NewPlan(twoSites(), "edge-1", sameID)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		s := twoSites()
		rand.Shuffle(len(s.Nodes), func(i, j int) { s.Nodes[i], s.Nodes[j] = s.Nodes[j], s.Nodes[i] })
		before := append([]Node(nil), s.Nodes...)
		got, err := NewPlan(s, "edge-1", sameID)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
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

// sameID is a decoder that changes nothing.
func sameID(id PeerID) (RawID, error) { return RawID(id), nil }

// TestPeerIDsAreDecodedOnce: each is in the plan, and one that cannot be decoded is named with its node.
func TestPeerIDsAreDecodedOnce(t *testing.T) {
	calls := map[PeerID]int{}
	p, err := NewPlan(twoSites(), "edge-1", func(id PeerID) (RawID, error) {
		calls[id]++
		return "raw " + RawID(id), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []PeerID{"E1", "E2", "C", "R1", "R2"} {
		if calls[id] != 1 || p.IDs[id] != "raw "+RawID(id) {
			t.Errorf("%s: decoded %d times, to %q", id, calls[id], p.IDs[id])
		}
	}
	bad := errors.New("no base58")
	_, err = NewPlan(twoSites(), "edge-1", func(id PeerID) (RawID, error) {
		if id == "E2" {
			return "", bad
		}
		return RawID(id), nil
	})
	if !errors.Is(err, bad) || !strings.Contains(err.Error(), "E2 of node edge-2") {
		t.Errorf("error %v, want the node and the cause", err)
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
			{Name: "b", PeerID: "B", PodCIDRs: cidrs("10.244.2.0/24")}}}, "a", sameID)
		if err != nil {
			t.Fatal(err)
		}
		if kept, reserved := len(p.Host.Former) == 1, len(p.Subnet.Reserved) == 1; kept != c.kept || reserved != c.reserved {
			t.Errorf("%s beside %s: kept %v, reserved %v", c.reports, c.own, p.Host.Former, p.Subnet.Reserved)
		}
	}
}
