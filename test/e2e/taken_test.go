package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	netns "github.com/containernetworking/plugins/pkg/ns"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// readOnlySysctls and noIptables run a program on a host that lacks something.
func readOnlySysctls(*lab.Node) []string {
	return []string{
		"unshare", "-m", "sh", "-c",
		`mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"`, "sh",
	}
}

func noIptables(*lab.Node) []string {
	return []string{
		"unshare", "-m", "sh", "-c",
		`for f in /usr/sbin/xtables-*-multi; do mount --bind /dev/null $f; done && exec "$@"`, "sh",
	}
}

// TestHostTaken: the agent does not start where something of others has its names or
// numbers, or where it cannot set what it must. It says so in its log, and in status
// and doctor afterwards; nothing of the host changes, by the start nor by a cleanup.
func TestHostTaken(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	for _, tc := range []struct {
		name    string
		prepare []string
		wrap    func(*lab.Node) []string
		wants   []string
	}{
		{
			name: "bridge",
			prepare: []string{
				"ip link add edgemesh-br type bridge", "ip addr add 10.9.0.1/24 dev edgemesh-br",
				"ip link set edgemesh-br up",
			},
			wants: []string{"edgemesh-br is a bridge", "not ours", "rename or delete it"},
		},
		{
			name:    "tun",
			prepare: []string{"ip link add edgemesh-tun type bridge"},
			wants:   []string{"edgemesh-tun", "not a TUN", "rename or remove it"},
		},
		{
			name: "table",
			prepare: []string{
				"ip route add 192.0.2.0/24 dev lo table 5210",
				"ip rule add pref 99 from 192.0.2.1 lookup 5210",
			},
			wants: []string{"another program uses this routing table", "5210", "another number"},
		},
		{name: "sysctls", wrap: readOnlySysctls, wants: []string{"sysctl", "read-only", "/host/proc/sys"}},
		{name: "iptables", wrap: noIptables, wants: []string{"iptables is missing", "apt install iptables"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := cloud(t, l, "taken-"+tc.name, lab.NodeOptions{})
			if len(tc.prepare) > 0 {
				ok(t, n.Script(tc.prepare...))
			}
			ok(t, n.WriteConfig())
			ok(t, l.WriteMembership())
			before := hostState(t, n)
			args := []string{n.AgentPath(), "run", "--config", n.ConfigFile()}
			if tc.wrap != nil {
				args = append(tc.wrap(n), args...)
			}
			contains(t, ended(t, n, args), tc.wants...)
			for _, command := range []string{"status", "doctor"} {
				stdout, stderr, err := n.AgentCommand(t.Context(), command, "--runtime-dir", n.Config.RuntimeDir)
				var exit *lab.ExitError
				if !errors.As(err, &exit) || exit.Code != 1 {
					t.Errorf("%s: %v, want exit code 1", command, err)
				}
				contains(t, stdout+stderr, tc.wants...)
			}
			if _, stderr, err := n.AgentCommand(t.Context(), "cleanup", "--config", n.ConfigFile()); err != nil {
				t.Errorf("cleanup: %v %s", err, stderr)
			}
			sameState(t, before, hostState(t, n))
		})
	}
}

// ended runs an agent that must end by itself with code 1, and returns its log.
func ended(t *testing.T, n *lab.Node, args []string) string {
	t.Helper()
	p, err := n.NS.Start(n.Name, args...)
	ok(t, err)
	if err := p.Wait(within(t, 20*time.Second)); err != nil {
		p.Kill()
		t.Fatalf("the agent does not end: %v\n%s", err, p.Tail(20))
	}
	if p.ExitCode() != 1 {
		t.Errorf("exit code %d, want 1", p.ExitCode())
	}
	return p.Tail(100)
}

// sameState wants nothing to differ.
func sameState(t *testing.T, before, after map[string]string) {
	t.Helper()
	for what := range before {
		if before[what] != after[what] {
			t.Errorf("%s differ.\nbefore:\n%s\nafter:\n%s", what, before[what], after[what])
		}
	}
}

// TestHostInTheWay: what the agent can live with is named in its log, in status and by
// doctor, and stays.
func TestHostInTheWay(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{})
	n.Config.CNIConfDir, n.Config.CNIBinDir = "", ""
	ok(t, n.Script(
		"ip link add flannel.1 type vxlan id 1 dstport 5210 dev "+n.Uplink, "ip link set flannel.1 up", // the port of ours
		"ip link add docker0 type bridge",
		"ip addr add 10.244.77.1/24 dev docker0",
		"ip link set docker0 up",
		"iptables-legacy -A INPUT -s 192.0.2.1 -j DROP", "iptables-nft -A INPUT -s 192.0.2.2 -j DROP", // both backends
		"ip link add vpn0 type bridge", "ip addr add 172.31.0.1/24 dev vpn0", "ip link set vpn0 up",
		"ip route add default dev vpn0 table 51820", "ip rule add pref 1 to 10.0.0.0/8 lookup 51820",
		"nft add table inet firewalld",
		"nft add chain inet firewalld filter_FORWARD '{ type filter hook forward priority 10; }'",
		"nft add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited",
	))
	before := hostState(t, n)
	startRelays(t, l)
	ok(t, n.Start())
	wants := [][]string{
		{"UDP port 5210 is in use by another program", "lan.vxlanPort"},
		{"docker0", "10.244.77.1/24", "default-address-pools"},
		{"mixed backends", "update-alternatives --set iptables"},
		{"10.244.0.0/16", "routing table 51820, interface vpn0", "ip rule"},
		{"nftables table inet firewalld", "--zone=trusted --add-source=10.244.0.0/16", "firewall-cmd --reload"},
	}
	ok(t, lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
		s, err := n.Status(t.Context())
		if err == nil && len(s.Problems) < len(wants) {
			err = errors.New("not all problems are known yet")
		}
		return err
	}))
	status, _, err := n.AgentCommand(t.Context(), "status", "--runtime-dir", n.Config.RuntimeDir)
	ok(t, err)
	doctor, _, err := n.AgentCommand(t.Context(), "doctor", "--runtime-dir", n.Config.RuntimeDir)
	if err == nil {
		t.Error("doctor is content")
	}
	log := strings.ReplaceAll(n.Agent.Tail(1000), `\"`, `"`)
	for _, parts := range wants {
		for _, text := range []string{status, doctor, log} {
			contains(t, text, parts...)
		}
	}
	ok(t, n.Agent.Stop())
	if _, stderr, err := n.AgentCommand(t.Context(), "cleanup", "--config", n.ConfigFile()); err != nil {
		t.Errorf("cleanup: %v %s", err, stderr)
	}
	sameState(t, before, hostState(t, n))
}

// TestLANInsideRange: the node's own LAN is inside the pod range. The agent does not start:
// the host would lose that LAN. Nothing of the host changes.
func TestLANInsideRange(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	l.Cluster.PodCIDRs = []string{"192.168.0.0/16"}
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{PodCIDRs: []string{"192.168.200.0/24"}})
	ok(t, n.WriteConfig())
	startRelays(t, l)
	before := hostState(t, n)
	wants := []string{
		"LAN is inside the pod range", "interface eth0 has address " + n.Addr.String() + "/24", "192.168.0.0/16",
		"other podCIDRs",
	}
	contains(t, ended(t, n, []string{n.AgentPath(), "run", "--config", n.ConfigFile()}), wants...)
	for _, command := range []string{"status", "doctor"} {
		stdout, stderr, err := n.AgentCommand(t.Context(), command, "--runtime-dir", n.Config.RuntimeDir)
		var exit *lab.ExitError
		if !errors.As(err, &exit) || exit.Code != 1 {
			t.Errorf("%s: %v, want exit code 1", command, err)
		}
		contains(t, stdout+stderr, wants...)
	}
	sameState(t, before, hostState(t, n))
	ok(t, n.NS.Ping(t.Context(), "192.168.1.1", 2*time.Second))
}

// TestLANComesInsideRange: a LAN inside the pod range comes while the agent runs. The agent's
// own connections keep to the LAN, by mark and rule; pods are refused, and it is told why. A
// restart of the agent does not take the network from the pods that are there.
func TestLANComesInsideRange(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	l.Cluster.PodCIDRs = []string{"10.99.0.0/16"}
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{PodCIDRs: []string{"10.99.200.0/24"}})
	startRelays(t, l)
	ok(t, n.Start())
	ok(t, n.WaitReserved(within(t, 15*time.Second)))
	ok(t, n.WaitPods(within(t, 5*time.Second)))
	ok(t, n.Script("ip addr add 10.99.7.1/24 dev "+n.Uplink))
	wants := []string{"interface eth0 has address 10.99.7.1/24", "inside the pod range 10.99.0.0/16", "other podCIDRs"}
	for range 2 {
		fair.Eventually(t, 10*time.Second, "status names what took the range", func() error {
			status, _, err := n.AgentCommand(t.Context(), "status", "--runtime-dir", n.Config.RuntimeDir)
			for _, want := range wants {
				if err == nil && !strings.Contains(status, want) {
					err = fmt.Errorf("no %q in: %s", want, status)
				}
			}
			return err
		})
		doctor, _, err := n.AgentCommand(t.Context(), "doctor", "--runtime-dir", n.Config.RuntimeDir)
		if err == nil {
			t.Error("doctor is content")
		}
		contains(t, doctor, wants...)
		if _, err := n.AddPod(t.Context(), "refused"); err == nil {
			t.Error("a pod is taken")
		} else {
			contains(t, err.Error(), "10.99.0.0/16", "in use by another network")
		}
		out, err := n.Run(t.Context(), "ip", "route", "get", "10.99.7.9", "mark", "0xed0000")
		ok(t, err)
		contains(t, out, "dev eth0") // never into the TUN
		ok(t, n.Agent.Stop())
		ok(t, n.Start())
		ready(t, n)
	}
	contains(t, strings.ReplaceAll(n.Agent.Tail(1000), `\"`, `"`), wants...)
}

// TestRangeComesOverLAN: the membership gains a range that has the node's LAN while the agent runs. Router and ssh stay, also after a
// restart, the rest of the membership is in force, and the range is named.
func TestRangeComesOverLAN(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{})
	startRelays(t, l)
	ok(t, n.Start())
	ok(t, n.WaitReserved(within(t, 15*time.Second)))
	ok(t, n.WaitPods(within(t, 5*time.Second)))
	l.Cluster.PodCIDRs = append(slices.Clone(l.Cluster.PodCIDRs), "192.168.0.0/16")
	ok(t, l.WriteMembership())
	wants := []string{"192.168.0.0/16", "interface eth0 has address " + n.Addr.String() + "/24", "other"}
	for range 2 {
		fair.Eventually(t, 10*time.Second, "status names the range", func() error {
			status, _, err := n.AgentCommand(t.Context(), "status", "--runtime-dir", n.Config.RuntimeDir)
			for _, want := range wants {
				if err == nil && !strings.Contains(status, want) {
					err = fmt.Errorf("no %q in: %s", want, status)
				}
			}
			return err
		})
		ok(t, n.NS.Ping(t.Context(), "192.168.1.1", 2*time.Second))
		subnet, err := os.ReadFile(filepath.Join(n.Config.RuntimeDir, "subnet.json"))
		ok(t, err)
		if strings.Contains(string(subnet), "192.168.") {
			t.Errorf("the plugin has the range: %s", subnet)
		}
		ok(t, n.Agent.Stop())
		ok(t, n.Start())
		ready(t, n)
	}
	contains(t, strings.ReplaceAll(n.Agent.Tail(1000), `\"`, `"`), wants...)
}

// TestVXLANPortTaken: a program that has VXLAN's port when the agent starts costs its node VXLAN and no native path.
func TestVXLANPortTaken(t *testing.T) {
	beside(t)
	var taken net.PacketConn
	p := newLANPair(t, func(p *lanPair) {
		ok(t, netns.WithNetNSPath("/run/netns/"+p.n2.Full, func(netns.NetNS) (err error) {
			taken, err = net.ListenPacket("udp4", fmt.Sprint(":", mesh.VXLANPort))
			return err
		}))
	})
	defer taken.Close()
	curlPods(t, p.pod1, p.pod2, 5*time.Second)
	p.both(t, 20*time.Second, "native")
	if _, err := p.n2.Run(t.Context(), "ip", "link", "show", "edgemesh-vx"); err == nil {
		t.Fatal("the VXLAN device is there, with a port that is another program's")
	}
}
