package daemon

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgemesh/agent/findings"
	"edgemesh/internal/config"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/source"
	"edgemesh/internal/nstest"
	"edgemesh/internal/resolve"
)

// withAPI is a source with an API server.
type withAPI struct {
	source.Source
	server string
}

func (s withAPI) Contact() *client.Contact { return &client.Contact{Server: s.server} }

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// A range or a block that comes while the agent runs, and that has what the host needs, stays out of force; the former one and the
// rest of the membership stay in force.
func TestRangesThatTheHostNeeds(t *testing.T) {
	nstest.Enter(t)
	nstest.Run(t, `ip link add eth0 type veth peer name far
ip link set eth0 up
ip link set far up
ip address add 192.168.1.5/24 dev eth0
ip address add 172.30.5.9/8 dev eth0
ip link add wg0 type bridge
ip link set wg0 up
ip address add 10.9.0.2/24 dev wg0
ip route add 10.60.0.0/24 dev eth0
ip route add default via 172.16.0.1 dev eth0 table 77
ip -6 address add fd01::5/64 dev eth0
ip -6 route add default via fd01:0:0:1::1 dev eth0 onlink`)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"etc/resolv.conf": "nameserver 10.70.0.53\n",
		"names.json":      `{"relay.example.": ["10.71.0.1"]}`,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := resolve.New(resolve.Config{Root: dir, File: filepath.Join(dir, "names.json")})
	defer names.Close()
	was := plan{Plan: mesh.Plan{Self: mesh.Node{Name: "a", PodCIDRs: prefixes("10.244.1.0/24")}}}
	was.Host.ClusterCIDRs = prefixes("10.244.0.0/16")
	for _, x := range []struct{ fresh, says string }{
		{"192.168.0.0/16", "interface eth0 has address 192.168.1.5/24"},
		{"10.9.0.0/16", "interface wg0"},
		{"10.60.0.0/16", "route 10.60.0.0/24 on interface eth0"},
		{"172.16.0.0/16", "default gateway 172.16.0.1"},
		{"fd01:0:0:1::/64", "default gateway fd01:0:0:1::1"},
		{"10.70.0.0/16", "name server 10.70.0.53"},
		{"10.71.0.0/16", "relay.example. 10.71.0.1"},
		{"10.72.0.0/16", "relay 10.72.0.1"},
		{"10.73.0.0/16", "API server 10.73.0.1"},
		{"10.74.0.0/16", "HTTP proxy 10.74.0.1"},
		{"10.75.0.0/16", "kubelet's node IP 10.75.9.1"},
		{"10.80.0.0/16", ""},
	} {
		log := new(strings.Builder)
		c := rangeCheck{cfg: config.Config{NodeName: "a", Proxy: "http://10.74.0.1:3128"}, names: names, source: withAPI{source.None{}, "https://10.73.0.1:6443"},
			force: new(inForce), log: slog.New(slog.NewTextHandler(log, nil))}
		fresh := netip.MustParsePrefix(x.fresh)
		block := netip.PrefixFrom(fresh.Addr(), fresh.Addr().BitLen()-8)
		relays := []mesh.Relay{{Addrs: []string{"/dns/relay.example/tcp/9443", "/ip4/10.72.0.1/tcp/9443"}}} // it comes with the range
		s := mesh.State{PodCIDRs: append(prefixes("10.244.0.0/16"), fresh), Relays: relays, Nodes: []mesh.Node{
			{Name: "a", PodCIDRs: append(prefixes("10.244.1.0/24"), block), NodeIPs: []netip.Addr{netip.MustParseAddr("10.75.9.1"), mesh.Gateway(block)}},
			{Name: "b", PodCIDRs: prefixes("10.244.2.0/24")},
		}}
		got, err := c.admit(s, was)
		if err != nil {
			t.Errorf("%s: %v", x.fresh, err)
			continue
		}
		why := c.force.whyRefused()
		if refused := len(got.PodCIDRs) == 1; refused != (x.says != "") || !strings.Contains(why, x.says) || strings.Contains(log.String(), x.says) != refused && refused {
			t.Errorf("%s: in force %v, because of %q, want %q; log: %s", x.fresh, got.PodCIDRs, why, x.says, log)
		}
		f := checkRefused(why)
		if (len(f) == 1) != (x.says != "") || len(f) == 1 && (f[0].Severity != findings.Broken || !strings.Contains(f[0].Text, x.fresh)) {
			t.Errorf("%s: findings %+v", x.fresh, f)
		}
		if self, _ := got.Node("a"); x.says != "" && !slices.Equal(self.PodCIDRs, prefixes("10.244.1.0/24")) || len(got.Nodes) != 2 {
			t.Errorf("%s: blocks %v of %d nodes", x.fresh, self.PodCIDRs, len(got.Nodes))
		}
		// As soon as the host does not need it any longer, it is in force.
		if x.fresh == "192.168.0.0/16" {
			nstest.Run(t, "ip address del 192.168.1.5/24 dev eth0")
			if got, err = c.admit(c.given, was); err != nil || len(got.PodCIDRs) != 2 || c.force.whyRefused() != "" {
				t.Errorf("without the LAN: %v, %v", got.PodCIDRs, err)
			}
		}
	}
	// A block inside of a range in force; one in place of all ranges; and the other plugin's routes come first in keep mode.
	c := rangeCheck{cfg: config.Config{NodeName: "a"}, names: names, source: source.None{}, force: new(inForce), log: slog.New(slog.DiscardHandler)}
	nstest.Run(t, "ip address add 10.244.7.3/24 dev wg0")
	s := mesh.State{PodCIDRs: prefixes("10.244.0.0/16"), Nodes: []mesh.Node{{Name: "a", PodCIDRs: prefixes("10.244.7.0/24")}}}
	got, err := c.admit(s, was)
	if self, _ := got.Node("a"); err != nil || !slices.Equal(self.PodCIDRs, prefixes("10.244.1.0/24")) {
		t.Errorf("block: %v, %v", self.PodCIDRs, err)
	}
	s = mesh.State{PodCIDRs: prefixes("10.9.0.0/16"), Nodes: []mesh.Node{{Name: "a", PodCIDRs: prefixes("10.9.7.0/24")}}}
	if _, err := c.admit(s, was); err == nil || !strings.Contains(err.Error(), "wg0") {
		t.Errorf("in place of all ranges: %v", err)
	}
	c.cfg.CNIMode = config.CNIKeep
	if got, err := c.admit(s, was); err != nil || len(got.PodCIDRs) != 1 {
		t.Errorf("keep: %v, %v", got.PodCIDRs, err)
	}
}
