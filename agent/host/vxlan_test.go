package host

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/sysctl"
	"edgemesh/internal/membership/mesh"
)

// TestVXLANDevice: what the device must have, and that each of it comes back.
func TestVXLANDevice(t *testing.T) {
	t.Parallel()
	h, p := lanHost(t, 1)
	mustSet(t, h, p.Host)
	mustSetPaths(t, h, p.Paths(candidates(1)))
	mac := p.Host.LAN.MAC
	check := func(after string) {
		t.Helper()
		wantContains(t, after, run(t, "ip -d link show edgemesh-vx")+run(t, "ip addr show edgemesh-vx"),
			"vxlan id 5210 ", " dstport 5210 ", " nolearning ", " df set ", " udpcsum ", "mtu 1500 ", "LOWER_UP", net.HardwareAddr(mac[:]).String(),
			"inet 10.244.1.1/32", "inet6 fd00:1::1/128")
		for key, want := range map[string]string{
			"net/ipv4/conf/edgemesh-vx/rp_filter": "0", "net/ipv4/conf/edgemesh-vx/accept_local": "1", "net/ipv4/conf/edgemesh-vx/proxy_arp": "0", "net/ipv6/conf/edgemesh-vx/accept_ra": "0",
		} {
			if v, err := sysctl.Read(key); v != want {
				t.Errorf("%s: %s is %q, want %s: %v", after, key, v, want, err)
			}
		}
	}
	check("at first")
	for _, drift := range []string{
		"ip link set edgemesh-vx address 02:00:00:00:00:99", "ip link set edgemesh-vx mtu 1400", "ip link set edgemesh-vx down",
		"ip addr flush dev edgemesh-vx", "sysctl -qw net/ipv4/conf/edgemesh-vx/rp_filter=1", "ip link set edgemesh-vx type vxlan learning",
	} {
		run(t, drift)
		if done := mustSet(t, h, p.Host); len(done) == 0 {
			t.Errorf("%s: Set saw nothing", drift)
		}
		check(drift)
		wantUnchanged(t, h, p.Host)
	}

	// Another port, or another IP version below: recreated, with the same MAC.
	for _, c := range []struct {
		port  uint16
		v6    bool
		alias string
	}{{5299, false, "edgemesh over IPv4"}, {5299, true, "edgemesh over IPv6"}} {
		p.Host.LAN.VXLANPort, p.Host.LAN.IPv6Underlay = c.port, c.v6
		mustSet(t, h, p.Host)
		wantUnchanged(t, h, p.Host)
		wantContains(t, c.alias, run(t, "ip -d link show edgemesh-vx"), " dstport 5299 ", c.alias, net.HardwareAddr(mac[:]).String())
		if s := run(t, "ss -Hluna"); !strings.Contains(s, ":5299 ") || strings.Contains(s, ":5210 ") || strings.Contains(s, "0.0.0.0:5299 ") == c.v6 {
			t.Errorf("%s: UDP ports:\n%s", c.alias, s)
		}
	}
	if mesh.VTEPAddr("self") != mac {
		t.Error("the MAC is not that of the identity")
	}
}

// TestVXLANIsNeverUnguarded: after each single change on the way from one port, IP version or
// wish for VXLAN to another, there is no device at a port that the firewall does not look at.
func TestVXLANIsNeverUnguarded(t *testing.T) {
	t.Parallel()
	h, p := lanHost(t, 1)
	mustSetPaths(t, h, p.Paths(candidates(1)))
	for i, step := range []mesh.LAN{
		{Native: true, VXLAN: true, VXLANPort: 5210}, {Native: true, VXLAN: true, VXLANPort: 5299}, {Native: true, VXLAN: true, VXLANPort: 5299, IPv6Underlay: true},
		{Native: true, VXLANPort: 5299}, {Native: true, VXLAN: true, VXLANPort: 5210}, {},
	} {
		step.ProbePort, step.MAC, step.Bits = p.Host.LAN.ProbePort, p.Host.LAN.MAC, p.Host.LAN.Bits
		p.Host.LAN = step
		err := h.walk(t.Context(), p.Host, func(_ part, changes []plan.Change) error {
			for _, c := range changes {
				if err := c.Do(); err != nil {
					return fmt.Errorf("%s: %w", c.What, err)
				}
				link, err := netlink.LinkByName(VXLANName)
				if err != nil {
					continue
				}
				save, port := "iptables-save", fmt.Sprint(link.(*netlink.Vxlan).Port)
				if strings.HasSuffix(link.Attrs().Alias, "IPv6") {
					save = "ip6tables-save"
				}
				wantContains(t, fmt.Sprint("step ", i, ": ", c.What), run(t, save)+run(t, "nft list table inet edgemesh"), "--dport "+port+" -j DROP", " "+port+" ")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		wantUnchanged(t, h, p.Host)
		if err := h.SetPaths(t.Context(), p.Paths(candidates(1))); err != nil {
			t.Error(err)
		}
	}
}
