package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func cidrs(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// twoSites is a valid membership; each call returns a copy of its own.
func twoSites() State {
	return State{
		PodCIDRs:   cidrs("10.244.0.0/16", "fd00:10:244::/56"),
		WANCIDRs:   cidrs("172.20.0.0/16"),
		Encryption: EncryptionAuto,
		Relays: []Relay{
			{PeerID: "R1", Addrs: []string{"/ip4/5.5.5.5/tcp/4470", "/ip4/5.5.5.5/udp/4470/quic-v1"}},
			{PeerID: "R2", Addrs: []string{"/dns4/r2.example/tcp/4470"}},
		},
		Nodes: []Node{
			{Name: "edge-2", PeerID: "E2", PodCIDRs: cidrs("10.244.2.0/24", "fd00:10:244:2::/64")},
			{Name: "edge-1", PeerID: "E1", PodCIDRs: cidrs("10.244.1.0/24", "fd00:10:244:1::/64")},
			{Name: "cloud.example.org", PeerID: "C", PodCIDRs: cidrs("10.244.3.0/24")},
		},
	}
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(*State){
		"two sites":          func(*State) {},
		"no relays":          func(s *State) { s.Relays = nil },
		"a node is a relay":  func(s *State) { s.Relays[1].PeerID = "E1" },
		"no nodes yet":       func(s *State) { s.Nodes = nil },
		"encryption always":  func(s *State) { s.Encryption = EncryptionAlways },
		"several ranges":     func(s *State) { s.PodCIDRs = append(s.PodCIDRs, cidrs("10.245.0.0/16")...) },
		"several blocks":     func(s *State) { s.Nodes[0].PodCIDRs = append(s.Nodes[0].PodCIDRs, cidrs("10.244.9.0/28")...) },
		"smallest blocks":    func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.244.3.0/30", "fd00:10:244:3::/126") },
		"block is the range": func(s *State) { s.Nodes = s.Nodes[:1]; s.Nodes[0].PodCIDRs = s.PodCIDRs },
		"adjacent blocks": func(s *State) {
			s.Nodes[0].PodCIDRs = cidrs("10.244.0.0/24")
			s.Nodes[2].PodCIDRs = cidrs("10.244.2.0/23")
		},
		"IPv6 only":             func(s *State) { s.PodCIDRs = cidrs("fd00:10:244::/56"); s.Nodes = s.Nodes[:0] },
		"wan of carrier NAT":    func(s *State) { s.WANCIDRs = cidrs("100.64.0.0/10", "fd12::/16") },
		"public range for pods": func(s *State) { s.PodCIDRs = cidrs("20.0.0.0/16"); s.Nodes = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := twoSites()
			change(&s)
			if err := s.Validate(); err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*State)
		field  string // of the only problem
		says   string
	}{
		{"no ranges", func(s *State) { s.PodCIDRs, s.Nodes = nil, nil }, "podCIDRs", "empty"},
		{"host bits in range", func(s *State) { s.PodCIDRs[0] = netip.MustParsePrefix("10.244.1.0/16") }, "podCIDRs[0]", "did you mean 10.244.0.0/16?"},
		{"zero prefix", func(s *State) { s.WANCIDRs[0] = netip.Prefix{} }, "wanCIDRs[0]", "CIDR notation"},
		{"mapped range", func(s *State) { s.PodCIDRs = append(s.PodCIDRs, cidrs("::ffff:10.9.0.0/112")...) }, "podCIDRs[2]", "write it as IPv4"},
		{"everything", func(s *State) { s.WANCIDRs = nil; s.PodCIDRs[0] = netip.MustParsePrefix("0.0.0.0/0") }, "podCIDRs[0]", "too large"},
		{"loopback", func(s *State) { s.PodCIDRs = append(s.PodCIDRs, cidrs("127.1.0.0/16")...) }, "podCIDRs[2]", "overlaps 127.0.0.0/8"},
		{"link-local", func(s *State) { s.PodCIDRs = append(s.PodCIDRs, cidrs("fe80:1::/32")...) }, "podCIDRs[2]", "overlaps fe80::/10"},
		{"multicast", func(s *State) { s.PodCIDRs = append(s.PodCIDRs, cidrs("239.0.0.0/16")...) }, "podCIDRs[2]", "overlaps 224.0.0.0/3"},
		{"tiny range", func(s *State) { s.PodCIDRs = append(s.PodCIDRs, cidrs("10.9.0.0/31")...) }, "podCIDRs[2]", "too small"},
		{"overlapping ranges", func(s *State) { s.PodCIDRs = append(s.PodCIDRs, cidrs("10.244.128.0/17")...) }, "podCIDRs[2]", "overlaps podCIDRs[0]"},
		{"public wan", func(s *State) { s.WANCIDRs = cidrs("8.8.8.0/24") }, "wanCIDRs[0]", "not inside a private range"},
		{"wan larger than private", func(s *State) { s.WANCIDRs = cidrs("172.0.0.0/8") }, "wanCIDRs[0]", "not inside a private range"},
		{"trusted, public", func(s *State) { s.LAN.Trusted = cidrs("192.168.0.0/16", "8.8.8.0/24") }, "lan.trusted[1]", "not inside a private range"},
		{"trusted, everything", func(s *State) { s.LAN.Trusted = cidrs("0.0.0.0/0") }, "lan.trusted[0]", "not inside a private range"},
		{"trusted, a carrier's", func(s *State) { s.LAN.Trusted = cidrs("100.64.0.0/10") }, "lan.trusted[0]", "not inside a private range"},
		{"trusted, unmasked", func(s *State) { s.LAN.Trusted = cidrs("10.1.0.0/8") }, "lan.trusted[0]", "bits set"},
		{"wan in the range", func(s *State) { s.WANCIDRs = cidrs("10.0.0.0/8") }, "wanCIDRs[0]", "inside itself"},
		{"encryption", func(s *State) { s.Encryption = "sometimes" }, "encryption", `"sometimes"`},
		{"a label that a node can give itself", func(s *State) { s.AdmitLabel = "edgemesh.io/member=yes" }, "admitLabel", "does not begin with node-restriction.kubernetes.io/"},
		{"a label without a name", func(s *State) { s.AdmitLabel = RestrictedPrefix }, "admitLabel", "is neither node-restriction.kubernetes.io/NAME nor"},
		{"a label with a bad value", func(s *State) { s.AdmitLabel = RestrictedPrefix + "mesh=yes=no" }, "admitLabel", "is neither"},
		{"a node's own label", func(s *State) { s.Nodes[1].Labels = map[string]string{"role": "edge"} }, "nodes[1].labels", `"role=edge" does not begin with`},
		{"relay twice", func(s *State) { s.Relays[1].PeerID = "R1" }, "relays[1]", "listed twice"},
		{"relay without address", func(s *State) { s.Relays[1].Addrs = nil }, "relays[1]", "no address"},
		{"no name", func(s *State) { s.Nodes[1].Name = "" }, "nodes[1].name", "empty"},
		{"upper-case name", func(s *State) { s.Nodes[1].Name = "Edge-1" }, "nodes[1].name", "DNS-1123"},
		{"name twice", func(s *State) { s.Nodes[1].Name = "edge-2" }, "nodes[1].name", "nodes[0]"},
		{"no peer ID", func(s *State) { s.Nodes[1].PeerID = "" }, "nodes[1].peerID", "edgemesh-agent id"},
		{"peer ID twice", func(s *State) { s.Nodes[1].PeerID = "E2" }, "nodes[1].peerID", `"edge-2"`},
		{"no blocks", func(s *State) { s.Nodes[1].PodCIDRs = nil }, "nodes[1].podCIDRs", `"edge-1"`},
		{"host bits in block", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.244.3.7/24") }, "nodes[2].podCIDRs[0]", "did you mean 10.244.3.0/24?"},
		{"outside", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.245.3.0/24") }, "nodes[2].podCIDRs[0]", "outside"},
		{"larger than the range", func(s *State) { s.Nodes = s.Nodes[2:]; s.Nodes[0].PodCIDRs = cidrs("10.240.0.0/12") }, "nodes[0].podCIDRs[0]", "outside"},
		{"family without range", func(s *State) {
			s.PodCIDRs = s.PodCIDRs[:1]
			s.Nodes[0].PodCIDRs = s.Nodes[0].PodCIDRs[:1]
			s.Nodes = append(s.Nodes[:1], Node{Name: "x", PeerID: "X", PodCIDRs: cidrs("fd00:10:244:1::/64")})
		}, "nodes[1].podCIDRs[0]", "no IPv6 range"},
		{"no room for a pod", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.244.3.0/31") }, "nodes[2].podCIDRs[0]", "too small"},
		{"no room for an IPv6 pod", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("fd00:10:244:3::/127") }, "nodes[2].podCIDRs[0]", "/126 or larger"},
		{"same block", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.244.2.0/24") }, "nodes[2].podCIDRs[0]", `of node "cloud.example.org" overlaps 10.244.2.0/24 of node "edge-2"`},
		{"block in a block", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.244.2.128/25") }, "nodes[2].podCIDRs[0]", `"edge-2"`},
		{"block around a block", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.244.2.0/23") }, "nodes[2].podCIDRs[0]", `"edge-2"`},
		{"own block twice", func(s *State) { s.Nodes[2].PodCIDRs = cidrs("10.244.3.0/24", "10.244.3.0/24") }, "nodes[2].podCIDRs[1]", "nodes[2].podCIDRs[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := twoSites()
			c.change(&s)
			err := s.Validate()
			var bad *Invalid
			if !errors.As(err, &bad) {
				t.Fatalf("error %v, want an *Invalid", err)
			}
			if len(bad.Problems) != 1 || bad.Problems[0].Field != c.field || !strings.Contains(bad.Problems[0].Reason, c.says) {
				t.Errorf("got:\n%v\nwant one problem of %s saying %q", err, c.field, c.says)
			}
		})
	}
}

func TestValidateReportsAllTogetherBounded(t *testing.T) {
	s := twoSites()
	s.Encryption = "no"
	s.Nodes[0].Name = "_"
	s.Nodes[1].PodCIDRs = nil
	bad := s.Validate()
	for _, want := range []string{"encryption: ", "nodes[0].name: ", "nodes[1].podCIDRs: "} {
		if !strings.Contains(bad.Error(), want) {
			t.Errorf("%q is missing from:\n%v", want, bad)
		}
	}
	for i := range 1000 {
		s.Nodes = append(s.Nodes, Node{Name: fmt.Sprintf("n%d", i), PeerID: PeerID(fmt.Sprint(i))})
	}
	text := s.Validate().Error()
	if n := strings.Count(text, "\n") + 1; n != MaxProblems+1 {
		t.Errorf("%d lines, want %d", n, MaxProblems+1)
	}
	if !strings.HasSuffix(text, "and 983 more") {
		t.Errorf("ends with %q", text[len(text)-40:])
	}
}

func TestCheckNodeName(t *testing.T) {
	for _, good := range []string{"a", "0", "edge-1", "node.example.com", "a--b", strings.Repeat("a", 253)} {
		if err := CheckNodeName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "-a", "a-", ".a", "a.", "a..b", "a-.b", "a.-b", "A", "a_b", "ä", "a b", "a/b", strings.Repeat("a", 254)} {
		if CheckNodeName(bad) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
