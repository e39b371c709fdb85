package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/internal/membership/mesh"
)

// TestNodeIP goes through what a kubelet may report: by doctor each is named, with what to do.
func TestNodeIP(t *testing.T) {
	one, two := cidrs("10.244.1.0/24"), cidrs("10.244.1.0/24", "fd00:0:0:1::/64")
	for _, c := range []struct {
		name                 string
		reported, configured []netip.Addr
		blocks               []netip.Prefix
		here                 []netip.Addr
		grade                findings.Severity
		says                 []string
	}{
		{"the mesh address", addrs("10.244.1.1"), addrs("10.244.1.1"), one, addrs("10.244.1.1"), findings.OK, []string{"10.244.1.1"}},
		{"set by hand", addrs("10.244.1.1"), nil, one, addrs("10.244.1.1"), findings.OK, nil},
		{"both families", addrs("10.244.1.1", "fd00:0:0:1::1"), nil, two, addrs("10.244.1.1", "fd00:0:0:1::1"), findings.OK, nil},
		{"the LAN's", addrs("192.168.1.10"), nil, one, addrs("10.244.1.1", "192.168.1.10"), findings.OK, []string{"192.168.1.10", "install --node-ip", "10.244.1.1"}},
		{"the LAN's, where another plugin gives the host no mesh address", addrs("192.168.1.10"), nil, one, addrs("192.168.1.10"), findings.OK, []string{"no mesh address that it could report"}},
		{"the LAN's before the mesh address", addrs("192.168.1.10", "fd00:0:0:1::1"), nil, two, addrs("10.244.1.1", "192.168.1.10", "fd00:0:0:1::1"), findings.Warning, []string{"the first is", "install --node-ip"}},
		{"the LAN's, configured another", addrs("192.168.1.10"), addrs("10.244.1.1"), one, addrs("10.244.1.1", "192.168.1.10"), findings.Warning, []string{"configured to report 10.244.1.1", "the Node has 192.168.1.10", "restart kubelet"}},
		{"the LAN's, configured what the host lacks", addrs("192.168.1.10"), addrs("10.244.1.1"), one, addrs("192.168.1.10"), findings.Warning, []string{"does not have", "the Node keeps 192.168.1.10", "bridge"}},
		{"the LAN's, configured a former address that the host lacks", addrs("192.168.1.10"), addrs("10.244.7.1"), one, addrs("10.244.1.1", "192.168.1.10"), findings.Warning, []string{"no longer this node's", "the Node keeps 192.168.1.10", "install --node-ip"}},
		{"one of no host", addrs("192.168.1.99"), nil, one, addrs("10.244.1.1"), findings.Warning, []string{"192.168.1.99", "this host does not have", "--node-ip"}},
		{"none yet", nil, nil, one, addrs("10.244.1.1"), findings.Warning, []string{"reports no address", "--node-ip"}},
		{"of another block", addrs("10.244.9.1"), nil, cidrs("10.244.1.0/24", "10.244.9.0/24"), addrs("10.244.1.1", "10.244.9.1"), findings.Warning, []string{"not the first address", "10.244.1.1"}},
		{"of a former block inside the new one", addrs("10.244.1.1"), addrs("10.244.1.1"), cidrs("10.244.0.0/23"), addrs("10.244.0.1", "10.244.1.1"), findings.Warning, []string{"not the first address", "10.244.0.1"}},
		{"another node's", addrs("10.244.2.1"), nil, one, addrs("10.244.1.1"), findings.Broken, []string{"edge-2", "--node-ip"}},
		{"of a former block", addrs("10.244.7.1"), addrs("10.244.7.1"), one, addrs("10.244.1.1", "10.244.7.1"), findings.Warning, []string{"10.244.7.1", "stays on the bridge", "--node-ip"}},
		{"of a former block, which the host lacks", addrs("10.244.7.1"), addrs("10.244.7.1"), one, addrs("10.244.1.1"), findings.Warning, []string{"10.244.7.1", "does not have", "--node-ip"}},
		{"of a former range", addrs("10.99.7.1"), addrs("10.99.7.1"), one, addrs("10.244.1.1", "10.99.7.1"), findings.Warning, []string{"10.99.7.1", "no longer this node's", "10.244.1.1"}},
		{"IPv6 only, without IPv6", addrs("fd00:0:0:1::1"), nil, cidrs("fd00:0:0:1::/64"), nil, findings.Broken, []string{"does not have", "IPv6"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := mesh.State{PodCIDRs: cidrs("10.244.0.0/16", "fd00::/48"), Encryption: mesh.EncryptionAuto, Nodes: []mesh.Node{
				{Name: "edge-1", PeerID: "E1", PodCIDRs: c.blocks, NodeIPs: c.reported}, {Name: "edge-2", PeerID: "E2", PodCIDRs: cidrs("10.244.2.0/24")}}}
			p, err := mesh.NewPlan(s, "edge-1")
			if err != nil {
				t.Fatal(err)
			}
			found := judgeNodeIP(p, c.configured, c.here)
			if len(found) != 1 || found[0].Severity != c.grade || c.grade != findings.OK && found[0].Remedy == "" {
				t.Fatalf("found %+v, want %s", found, c.grade)
			}
			for _, want := range c.says {
				if !strings.Contains(found[0].Text+found[0].Remedy, want) {
					t.Errorf("no %q in %+v", want, found[0])
				}
			}
		})
	}
}

func addrs(text ...string) (out []netip.Addr) {
	for _, t := range text {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func cidrs(text ...string) (out []netip.Prefix) {
	for _, t := range text {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}
