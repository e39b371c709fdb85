package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/keep"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/kubetest"
	"edgemesh/internal/membership/mesh"
)

func text(s mesh.State) string {
	var out []string
	for _, n := range s.Nodes {
		for _, b := range n.PodCIDRs {
			out = append(out, n.Name+"="+b.String())
		}
	}
	return strings.Join(out, " ")
}

func TestResolve(t *testing.T) {
	id := kubetest.PeerIDs(t, 4)
	gone := time.Now()
	deleting := kubetest.Node("a", 1, "10.244.1.0/24")
	deleting.Meta.DeletionTimestamp = &gone
	misnamed := kubetest.PodBlock("10.244.1.0/24", "a")
	misnamed.Meta.Name = "mine"
	relayed := kubetest.PodNetwork("10.244.0.0/16")
	relayed.Spec.Relays = []string{"/ip4/5.5.5.5/tcp/4001/p2p/" + id[3], "/ip4/10.244.0.9/tcp/4001/p2p/" + id[3]}
	net := kubetest.PodNetwork("10.244.0.0/16", "fd00::/48")
	for name, x := range map[string]struct {
		o       objects
		want    string
		problem string // part of the only one
	}{
		"the two blocks that were claimed first": {objects{
			nodes:     []*api.Node{kubetest.Node("b", 1)},
			meshNodes: map[string]*api.MeshNode{"b": kubetest.MeshNode("b", id[1])},
			blocks: []*api.PodBlock{kubetest.PodBlock("10.244.4.0/24", "b"), kubetest.PodBlock("10.244.3.0/24", "b"), kubetest.PodBlock("10.244.2.0/24", "b"),
				kubetest.PodBlock("fd00:0:0:2::/64", "b")}, network: net,
		}, "b=10.244.2.0/24 b=10.244.3.0/24 b=fd00:0:0:2::/64", ""},
		"blocks of Nodes and claimed ones": {objects{
			nodes:     []*api.Node{kubetest.Node("b", 1), kubetest.Node("a", 2, "10.244.1.0/24", "fd00:0:0:1::/64")},
			meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0]), "b": kubetest.MeshNode("b", id[1])},
			blocks:    []*api.PodBlock{kubetest.PodBlock("10.244.2.0/24", "b"), kubetest.PodBlock("fd00:0:0:2::/64", "b")}, network: net,
		}, "a=10.244.1.0/24 a=fd00:0:0:1::/64 b=10.244.2.0/24 b=fd00:0:0:2::/64", ""},
		"the Node's own come before a claim": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24")}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])},
			blocks: []*api.PodBlock{kubetest.PodBlock("10.244.2.0/24", "a")}, network: net,
		}, "a=10.244.1.0/24", ""},
		"no MeshNode, no Node, no block": {objects{
			nodes:     []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24"), kubetest.Node("c", 1)},
			meshNodes: map[string]*api.MeshNode{"b": kubetest.MeshNode("b", id[1]), "c": kubetest.MeshNode("c", id[2])},
			blocks:    []*api.PodBlock{kubetest.PodBlock("10.244.2.0/24", "b")}, network: net,
		}, "", ""},
		"a Node that is being deleted": {objects{
			nodes: []*api.Node{deleting}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])}, network: net,
		}, "", ""},
		"one peer ID twice: who bound it first has it": {objects{
			nodes:     []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24"), kubetest.Node("b", 2, "10.244.2.0/24")},
			meshNodes: map[string]*api.MeshNode{"a": kubetest.Aged(2, kubetest.MeshNode("a", id[0])), "b": kubetest.Aged(1, kubetest.MeshNode("b", id[0]))}, network: net,
		}, "b=10.244.2.0/24", "MeshNode a: peer ID " + id[0] + " belongs to node b"},
		"overlapping Nodes: the older one has it": {objects{
			nodes:     []*api.Node{kubetest.Node("a", 2, "10.244.0.0/23"), kubetest.Node("b", 1, "10.244.1.0/24")},
			meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0]), "b": kubetest.MeshNode("b", id[1])}, network: net,
		}, "b=10.244.1.0/24", "Node a: block 10.244.0.0/23 overlaps 10.244.1.0/24 of node b"},
		"a claim that overlaps what an allocator gave": {objects{
			nodes:     []*api.Node{kubetest.Node("a", 1), kubetest.Node("b", 9, "10.244.1.0/24")},
			meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0]), "b": kubetest.MeshNode("b", id[1])},
			blocks:    []*api.PodBlock{kubetest.PodBlock("10.244.1.0/24", "a")}, network: net,
		}, "b=10.244.1.0/24", "Node a: block 10.244.1.0/24 overlaps"},
		"outside the network": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1, "10.99.1.0/24", "fd00:0:0:1::/64")}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])}, network: net,
		}, "a=fd00:0:0:1::/64", "10.99.1.0/24 is outside"},
		"all outside the network: claims count": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1, "10.99.1.0/24")}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])},
			blocks: []*api.PodBlock{kubetest.PodBlock("10.244.2.0/24", "a")}, network: net,
		}, "a=10.244.2.0/24", "podCIDR 10.99.1.0/24 is outside"},
		"a claim under a wrong name": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1)}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])},
			blocks: []*api.PodBlock{misnamed}, network: net,
		}, "", "PodBlock mine"},
		"a claim that is not aligned": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1), kubetest.Node("b", 1)}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0]), "b": kubetest.MeshNode("b", id[1])},
			blocks: []*api.PodBlock{kubetest.PodBlock("10.244.1.5/24", "a"), kubetest.PodBlock("10.244.1.0/24", "b")}, network: net,
		}, "b=10.244.1.0/24", "PodBlock 10-244-1-0-24: \"10.244.1.5/24\" is not an aligned CIDR in canonical form"},
		"a claim written in another form": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1)}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])},
			blocks: []*api.PodBlock{kubetest.PodBlock("fd00:0:0:1:0::/64", "a")}, network: net,
		}, "", "\"fd00:0:0:1:0::/64\" is not an aligned CIDR in canonical form"},
		"a peer ID that is none": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24")}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", "12D3KooWx")}, network: net,
		}, "", "MeshNode a: spec.peerID"},
		"a relay's key, and a relay inside the tunnel": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24")}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[3])}, network: relayed,
		}, "", "relay"},
		"a broken network: the one before is in force": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24")}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])}, network: kubetest.PodNetwork("10.244.0.0/33"),
		}, "a=10.244.1.0/24", "the previous one stays in force"},
		"no network: the one before is in force": {objects{
			nodes: []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24")}, meshNodes: map[string]*api.MeshNode{"a": kubetest.MeshNode("a", id[0])},
		}, "a=10.244.1.0/24", ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Encryption: mesh.EncryptionAuto}
			s, problems := resolve(x.o, before)
			if got := text(s); got != x.want {
				t.Errorf("members %q, want %q", got, x.want)
			}
			if (x.problem == "") != (len(problems) == 0) || !strings.Contains(strings.Join(problems, "\n"), x.problem) {
				t.Errorf("problems %q, want one with %q", problems, x.problem)
			}
			if err := s.Validate(); err != nil {
				t.Errorf("not valid: %v", err)
			}
		})
	}
}

// A PodNetwork with wrong ranges leaves the one before in force, as API servers before Kubernetes 1.31 take it; those after refuse it
// with the same rules (test/kubeapi, TestNetworkSchema).
func TestNetworkRanges(t *testing.T) {
	before := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}, Encryption: mesh.EncryptionAuto}
	for _, x := range []struct {
		change func(*api.PodNetworkSpec)
		says   string
	}{
		{func(s *api.PodNetworkSpec) { s.PodCIDRs = []string{"10.244.1.0/16"} }, "podCIDRs[0]: 10.244.1.0/16 is not a CIDR in canonical form, with no bits set beyond its length; did you mean 10.244.0.0/16?"},
		{func(s *api.PodNetworkSpec) { s.PodCIDRs = []string{"fd00:0:0::/48"} }, "did you mean fd00::/48?"},
		{func(s *api.PodNetworkSpec) { s.PodCIDRs = []string{"10.244.0.0/16", "10.0.0.0/8"} }, "overlaps podCIDRs[0]"},
		{func(s *api.PodNetworkSpec) { s.PodCIDRs = []string{"0.0.0.0/0"} }, "at least /8"},
		{func(s *api.PodNetworkSpec) { s.PodCIDRs = []string{"169.254.0.0/16"} }, "cannot be routed to pods"},
		{func(s *api.PodNetworkSpec) { s.PodCIDRs = []string{"10.244.0.0/25"} }, "10.244.0.0/25 is smaller than one block (blockSize, blockSizeIPv6)"},
		{func(s *api.PodNetworkSpec) { s.PodCIDRs = []string{"fd00::/65"} }, "fd00::/65 is smaller than one block"},
		{func(s *api.PodNetworkSpec) { s.WANCIDRs = []string{"10.0.0.0/8"} }, "inside itself"},
		{func(s *api.PodNetworkSpec) { s.WANCIDRs = []string{"172.32.0.0/16"} }, "not inside a private range"},
		{func(s *api.PodNetworkSpec) { s.WANCIDRs = []string{"172.20.0.1/16"} }, "wanCIDRs[0]: 172.20.0.1/16 is not a CIDR"},
		{func(s *api.PodNetworkSpec) { s.LAN.Trusted = []string{"192.168.1.1/24"} }, "lan.trusted[0]: 192.168.1.1/24 is not a CIDR"},
		{func(s *api.PodNetworkSpec) { s.LAN.Trusted = []string{"8.8.8.0/24"} }, "not inside a private range"},
		{func(s *api.PodNetworkSpec) { s.PodDenyCIDRs = []string{"10.244.7.0/24"} }, "said by NetworkPolicy"},
		{func(s *api.PodNetworkSpec) { s.PodDenyCIDRs = []string{"10.9.7.1/24"} }, "bits set beyond its length"},
	} {
		n := kubetest.PodNetwork("10.244.0.0/16", "fd00::/48")
		x.change(&n.Spec)
		s, problems := resolve(objects{network: n}, before)
		if got := strings.Join(problems, "\n"); !strings.Contains(got, x.says) || !strings.Contains(got, "PodNetwork cluster: ") || !strings.Contains(got, "the previous one stays in force") {
			t.Errorf("%+v: %q, want %q", n.Spec, got, x.says)
		}
		if !slices.Equal(s.PodCIDRs, before.PodCIDRs) {
			t.Errorf("%+v: %v in force", n.Spec, s.PodCIDRs)
		}
	}
}

// TestNetworkAccess: a wrong value is named, and does not open what is closed.
func TestNetworkAccess(t *testing.T) {
	before := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Encryption: mesh.EncryptionAuto,
		Access: mesh.Access{HostAccess: mesh.HostNone}}
	for name, c := range map[string]struct {
		change  func(*api.PodNetworkSpec)
		want    string
		problem string
	}{
		"nothing said": {func(*api.PodNetworkSpec) {}, "{all [] []}", ""},
		"all said": {func(s *api.PodNetworkSpec) {
			s.HostAccess, s.HostPorts, s.PodDenyCIDRs = "nodes", []string{"53/udp"}, []string{"169.254.169.254/32"}
		}, "{nodes [53/udp] [169.254.169.254/32]}", ""},
		"hostAccess":   {func(s *api.PodNetworkSpec) { s.HostAccess = "some" }, "{none [] []}", `PodNetwork cluster: hostAccess: "some"`},
		"hostPorts":    {func(s *api.PodNetworkSpec) { s.HostPorts = []string{"53"} }, "{none [] []}", `PodNetwork cluster: hostPorts[0]: "53"`},
		"podDenyCIDRs": {func(s *api.PodNetworkSpec) { s.PodDenyCIDRs = []string{"10.244.7.0/24"} }, "{none [] []}", "PodNetwork cluster: podDenyCIDRs[0]: 10.244.7.0/24"},
	} {
		network := kubetest.PodNetwork("10.244.0.0/16")
		c.change(&network.Spec)
		s, problems := resolve(objects{network: network}, before)
		if got := fmt.Sprint(s.Access); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if (c.problem == "") != (len(problems) == 0) || !strings.Contains(strings.Join(problems, "\n"), c.problem) {
			t.Errorf("%s: problems %q, want one with %q", name, problems, c.problem)
		}
	}
}

// Whoever is kept does not stand in the way of whoever the API lists.
// The own Node's InternalIPs are noted, and stay while kubelet reports none; other nodes' are not known.
func TestReport(t *testing.T) {
	state := func(ips ...netip.Addr) mesh.State {
		return mesh.State{Nodes: []mesh.Node{{Name: "a", NodeIPs: ips}, {Name: "b"}}}
	}
	node := func(addrs ...api.NodeAddress) func(string) *api.Node {
		return func(string) *api.Node { n := kubetest.Node("a", 1); n.Status.Addresses = addrs; return n }
	}
	old, now := netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("10.244.2.1")
	for name, c := range map[string]struct {
		nodes func(string) *api.Node
		last  mesh.State
		want  []netip.Addr
	}{
		"reported":       {node(api.NodeAddress{Type: "Hostname", Address: "a"}, api.NodeAddress{Type: api.InternalIP, Address: "10.244.2.1"}), state(old), []netip.Addr{now}},
		"none reported":  {node(api.NodeAddress{Type: "Hostname", Address: "a"}), state(old), []netip.Addr{old}},
		"not listed":     {func(string) *api.Node { return nil }, state(old), []netip.Addr{old}},
		"never reported": {node(), mesh.State{}, nil},
		"rubbish":        {node(api.NodeAddress{Type: api.InternalIP, Address: "rubbish"}), mesh.State{}, nil},
	} {
		s := state()
		report(s, "a", c.nodes, c.last)
		if !slices.Equal(s.Nodes[0].NodeIPs, c.want) || s.Nodes[1].NodeIPs != nil || s.Nodes[0].Unreported != slices.Contains([]string{"none reported", "never reported", "rubbish"}, name) {
			t.Errorf("%s: %+v, want %v", name, s.Nodes, c.want)
		}
	}
	report(mesh.State{}, "", node(), mesh.State{}) // a relay
}

func TestMergeKeepsWhatDoesNotClash(t *testing.T) {
	id := kubetest.PeerIDs(t, 3)
	p := netip.MustParsePrefix
	s := mesh.State{PodCIDRs: []netip.Prefix{p("10.244.0.0/16")}, Encryption: mesh.EncryptionAuto,
		Nodes: []mesh.Node{{Name: "b", PeerID: mesh.PeerID(id[0]), PodCIDRs: []netip.Prefix{p("10.244.1.0/24")}}}}
	kept := map[string]keptMember{}
	for _, n := range []mesh.Node{
		{Name: "a", PeerID: mesh.PeerID(id[1]), PodCIDRs: []netip.Prefix{p("10.244.2.0/24")}},
		{Name: "b", PeerID: mesh.PeerID(id[1]), PodCIDRs: []netip.Prefix{p("10.244.3.0/24")}},
		{Name: "same-key", PeerID: mesh.PeerID(id[0]), PodCIDRs: []netip.Prefix{p("10.244.4.0/24")}},
		{Name: "same-block", PeerID: mesh.PeerID(id[2]), PodCIDRs: []netip.Prefix{p("10.244.1.0/24")}},
		{Name: "outside", PeerID: mesh.PeerID(id[2]), PodCIDRs: []netip.Prefix{p("10.9.1.0/24")}},
	} {
		kept[n.Name] = keptMember{Node: n}
	}
	if got, want := text(merge(s, kept)), "a=10.244.2.0/24 b=10.244.1.0/24"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Nodes are relays only under their own peer ID, and only where the PodNetwork says
// so.
func TestMemberRelays(t *testing.T) {
	id := kubetest.PeerIDs(t, 3)
	said := kubetest.MeshNode("a", id[0])
	said.Status.RelayAddresses = []string{"/ip4/5.5.1.1/tcp/4470", "/ip4/5.5.1.1/udp/4470/quic-v1", "/ip4/10.244.3.3/tcp/1", "rubbish",
		"/ip4/5.5.1.1/tcp/1/p2p/" + id[2] + "/p2p-circuit"}
	greedy := kubetest.MeshNode("b", id[1])
	for i := range 100 {
		greedy.Status.RelayAddresses = append(greedy.Status.RelayAddresses, fmt.Sprintf("/ip4/5.5.2.2/tcp/%d", i+1))
	}
	stranger := kubetest.MeshNode("c", id[2]) // has no Node
	stranger.Status.RelayAddresses = []string{"/ip4/5.5.3.3/tcp/4470"}
	network := kubetest.PodNetwork("10.244.0.0/16")
	o := objects{
		nodes:     []*api.Node{kubetest.Node("a", 1, "10.244.1.0/24"), kubetest.Node("b", 2, "10.244.2.0/24")},
		meshNodes: map[string]*api.MeshNode{"a": said, "b": greedy, "c": stranger}, network: network, plugins: keep.Blocks{Complete: true},
	}
	if s, _ := resolve(o, mesh.State{}); len(s.Relays) != 0 || len(s.Nodes) != 2 {
		t.Errorf("without leave: relays %v, %d members", s.Relays, len(s.Nodes))
	}
	network.Spec.MemberRelays = true
	s, problems := resolve(o, mesh.State{})
	if len(s.Relays) != 2 || string(s.Relays[0].PeerID) != id[0] || len(s.Relays[0].Addrs) != 2 || len(s.Relays[1].Addrs) != api.MaxRelayAddresses {
		t.Errorf("relays %v, problems %q", s.Relays, problems)
	}
	if len(problems) != 1 || !strings.Contains(problems[0], "MeshNode a: status.relayAddresses: ") {
		t.Errorf("problems %q", problems)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	// From the snapshot, without the API, they stay members and relays.
	o.network = nil
	again, problems := resolve(o, s)
	if len(again.Nodes) != 2 || len(again.Relays) != 2 || len(problems) != 0 {
		t.Errorf("from the snapshot: %d members, relays %v, problems %q", len(again.Nodes), again.Relays, problems)
	}
}

// Statements of the PodNetwork and of NodeRecords are handed on, once, whatever was handed on before.
func TestStatements(t *testing.T) {
	record := &api.NodeRecord{Meta: api.Meta{Name: "a", UID: "1"}, Spec: api.NodeRecordSpec{NodeUID: "2", PodCIDRs: []string{"10.244.1.0/24"}, Signed: "of a"}}
	net := kubetest.PodNetwork("10.244.0.0/16")
	net.Spec.Signed = []string{"delegation"}
	o := objects{nodes: []*api.Node{record.Node()}, meshNodes: map[string]*api.MeshNode{}, network: net}
	s, _ := resolve(o, mesh.State{})
	s, _ = resolve(o, s)
	if !slices.Equal(s.Signed, []string{"delegation", "of a"}) {
		t.Errorf("%q", s.Signed)
	}
	o.network = nil
	if s, _ = resolve(o, s); !slices.Equal(s.Signed, []string{"of a"}) {
		t.Errorf("%q without a PodNetwork", s.Signed)
	}
}
