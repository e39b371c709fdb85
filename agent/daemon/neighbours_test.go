package daemon

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"edgemesh/agent/findings"
	"edgemesh/agent/plugins"
	"edgemesh/internal/cni/overlap"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/nstest"
)

func TestBeside(t *testing.T) {
	at := func(p string, route bool) overlap.Conflict {
		return overlap.Conflict{Other: netip.MustParsePrefix(p), Route: route}
	}
	got := plugins.Beside([]overlap.Conflict{at("10.244.1.1/24", false), at("10.244.7.1/16", false), at("10.244.2.0/24", true)},
		[]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")})
	if len(got) != 1 || got[0] != at("10.244.7.1/16", false) {
		t.Errorf("left: %v", got)
	}
}

func TestOverlapFinding(t *testing.T) {
	pods := netip.MustParsePrefix("10.244.0.0/16")
	address := overlap.Conflict{Range: pods, Other: netip.MustParsePrefix("10.244.9.1/24"), Device: "docker0"}
	route := overlap.Conflict{Range: pods, Other: netip.MustParsePrefix("10.244.8.0/24"), Device: "flannel.1", Route: true}
	for _, c := range []struct {
		conflicts []overlap.Conflict
		err       error
		want      findings.Severity
		text      string
	}{
		{nil, nil, findings.OK, ""},
		{[]overlap.Conflict{route}, nil, findings.Warning, "flannel.1"},
		{[]overlap.Conflict{route, address}, nil, findings.Broken, "docker0"},
		{[]overlap.Conflict{{Range: pods, Other: netip.MustParsePrefix("10.0.0.0/8"), Device: "eth0", Route: true, Around: true}}, nil, findings.Warning, "route 10.0.0.0/8 on interface eth0 contains the pod range"},
		{nil, errors.New("no netlink"), findings.Warning, "no netlink"},
	} {
		f := overlapFinding(c.conflicts, c.err)
		if f.Severity != c.want || !strings.Contains(f.Text, c.text) || (f.Remedy == "") != (c.want == findings.OK) {
			t.Errorf("%v, %v: %+v", c.conflicts, c.err, f)
		}
	}
}

// TestLANConflicts: a LAN is refused, what leads to containers or to one pod is only reported.
func TestLANConflicts(t *testing.T) {
	link := func(kind, name string, index, master int, mac string) netlink.Link {
		a := netlink.LinkAttrs{Name: name, Index: index, MasterIndex: master, Flags: net.FlagUp}
		if mac != "" {
			a.HardwareAddr, _ = net.ParseMAC(mac)
		}
		return &netlink.GenericLink{LinkType: kind, LinkAttrs: a}
	}
	const mac = "02:00:00:00:00:01"
	links := []netlink.Link{
		link("device", "eth0", 2, 0, mac), link("bridge", "docker0", 3, 0, mac), link("veth", "veth1", 4, 3, mac),
		link("bridge", "br0", 5, 0, mac), link("device", "eth1", 6, 5, mac), link("wireguard", "wg0", 7, 0, ""), link("veth", "ptp0", 8, 0, mac),
	}
	for _, c := range []struct {
		device, other string
		route, refuse bool
	}{
		{"eth0", "10.244.9.1/24", false, true},
		{"br0", "10.244.9.1/24", false, true},
		{"eth0", "10.244.9.0/24", true, false},
		{"docker0", "10.244.9.1/24", false, false},
		{"wg0", "10.244.9.1/24", false, false},
		{"ptp0", "10.244.9.1/32", false, false},
	} {
		got := lanConflicts([]overlap.Conflict{{Device: c.device, Other: netip.MustParsePrefix(c.other), Route: c.route}}, links)
		if (len(got) > 0) != c.refuse {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// TestWarnLiving: pods that a network of before has left on its bridge are cut off with a word before; a bridge that none is plugged into, and
// keep mode, need none.
func TestWarnLiving(t *testing.T) {
	if nstest.Outside(t) {
		return
	}
	nstest.Enter(t)
	w := mesh.Host{}
	w.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	says := func() string {
		var out strings.Builder
		warnLiving(w, slog.New(slog.NewTextHandler(&out, nil)))
		return out.String()
	}
	nstest.Run(t, `ip link add cni0 type bridge
ip addr add 10.244.3.1/24 dev cni0
ip link set cni0 up`)
	if got := says(); got != "" {
		t.Errorf("no pods: %s", got)
	}
	nstest.Run(t, `ip link add veth1 type veth peer name eth1
ip link set veth1 master cni0`)
	if got := says(); !strings.Contains(got, "cut off") || !strings.Contains(got, "bridge=cni0") || !strings.Contains(got, "pods=1") {
		t.Errorf("%q", got)
	}
	if w.Keep = true; says() != "" {
		t.Error("keep mode")
	}
}
