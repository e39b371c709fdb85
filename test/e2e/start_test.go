package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/snapshot"
	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestStartDegraded: what is missing at a boot does not take the network from the node's own pods, is named by a finding, and is used
// once it is there: a torn or missing key beside the snapshot, a host name that no member has, default ports that others have.
func TestStartDegraded(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{})
	startRelays(t, l)
	ok(t, n.Start())
	ready(t, n)
	key := filepath.Join(n.Config.StateDir, "identity.key")
	good, err := os.ReadFile(key)
	ok(t, err)
	reboot := func(change func()) {
		t.Helper()
		ok(t, n.Agent.Stop())
		ok(t, n.Script("ip link del edgemesh-br", "ip link del edgemesh-tun"))
		ok(t, os.RemoveAll(n.Config.RuntimeDir))
		change()
		ok(t, n.Start())
		ok(t, n.WaitPods(within(t, 5*time.Second)))
	}
	says := func(wants ...string) {
		t.Helper()
		fair.Eventually(t, 10*time.Second, "status says why", func() error {
			status, _, err := n.AgentCommand(t.Context(), "status", "--json", "--runtime-dir", n.Config.RuntimeDir)
			for _, want := range wants {
				if err == nil && !strings.Contains(status, want) {
					err = fmt.Errorf("no %q in: %s", want, status)
				}
			}
			return err
		})
	}
	full := tier.IsLong()
	for i, x := range []struct {
		name  string
		spoil func() error
		says  string
	}{
		{"torn", func() error { return os.WriteFile(key, good[:20], 0o600) }, key},
		{"missing", func() error { return os.Remove(key) }, "but this node's key is"},
	} {
		if i > 0 && !full {
			break
		}
		reboot(func() { ok(t, x.spoil()) })
		says(`"id": "key"`, `"broken"`, x.says)
		p := pod(t, n, x.name)
		ok(t, n.NS.Ping(t.Context(), p.IP4().String(), 2*time.Second))
		ok(t, n.Script("nft flush table inet edgemesh")) // what guards the pods is repaired by events here, too
		fair.Eventually(t, 10*time.Second, "the guard is back", func() error {
			out, err := n.Run(t.Context(), "nft", "list", "table", "inet", "edgemesh")
			if err == nil && !strings.Contains(out, "drop") {
				err = errors.New(out)
			}
			return err
		})
		ok(t, os.WriteFile(key, good, 0o600))
		ready(t, n)
		ok(t, p.Delete(t.Context()))
	}

	n.Config.NodeName, n.Config.MetricsAddress = "", "" // the default is used, and may be another port
	reboot(func() {
		squat(t, n, 9469)
		port, err := os.ReadFile(filepath.Join(n.Config.StateDir, "port"))
		ok(t, err)
		var number int
		_, err = fmt.Sscan(string(port), &number)
		ok(t, err)
		squat(t, n, number)
	})
	ready(t, n)
	says(`"id": "ports"`, "metricsAddress", "listen", `"subject": "nodeName"`, "set nodeName: edge-1", `"node": "edge-1"`)

	if !full {
		return
	}
	// On a LAN inside of its ranges the agent sets nothing, says why, and continues once the LAN has other addresses.
	n.Config.MetricsAddress = "127.0.0.1:9999"
	inside := strings.TrimSuffix(n.PodCIDRs[0], "0/24") + "77/16"
	ok(t, n.Agent.Stop())
	ok(t, n.Script("ip link del edgemesh-br", "ip link del edgemesh-tun", "while ip rule del lookup 5210; do :; done 2>/dev/null", "while ip -6 rule del lookup 5210; do :; done 2>/dev/null",
		"ip addr add "+inside+" dev "+n.Uplink))
	ok(t, os.RemoveAll(n.Config.RuntimeDir))
	ok(t, n.Start())
	says(`"id": "addresses"`, `"broken"`, "this node's LAN is inside the pod range", inside)
	time.Sleep(6 * time.Second) // sleep: another attempt
	if _, err := n.Run(t.Context(), "ip", "link", "show", "edgemesh-tun"); err == nil || !n.Agent.Running() {
		t.Errorf("on a LAN inside the pod range: running %t, ip link show: %v", n.Agent.Running(), err)
	}
	ok(t, n.Script("ip addr del "+inside+" dev "+n.Uplink))
	ready(t, n)

	// No membership says who this is: exit code 2, as for a port that is configured, the default one, too.
	for _, x := range []struct {
		says  string
		spoil func() error
	}{
		{"127.0.0.1:9469", func() error { n.Config.MetricsAddress = "127.0.0.1:9469"; return n.WriteConfig() }},
		{"metricsAddress", func() error { n.Config.MetricsAddress = "127.0.0.1:4002"; squat(t, n, 4002); return n.WriteConfig() }},
		{"cluster.yaml", func() error {
			return errors.Join(os.Remove(filepath.Join(n.Config.StateDir, snapshot.File)), os.Remove(n.Membership))
		}},
	} {
		if n.Agent.Running() {
			ok(t, n.Agent.Stop())
		}
		ok(t, x.spoil())
		_, stderr, err := n.AgentCommand(within(t, 5*time.Second), "run", "--config", n.ConfigFile())
		var exit *lab.ExitError
		if !errors.As(err, &exit) || exit.Code != 2 {
			t.Errorf("%s: %v, want exit code 2", x.says, err)
		}
		contains(t, stderr, x.says)
	}
}

// TestNoIPv6OnHost: of a dual-stack node whose host has no IPv6 the plugin knows the IPv4 block alone, and the bridge's IPv6 stays off.
func TestNoIPv6OnHost(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{})
	ok(t, n.Script("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1"))
	startRelays(t, l)
	ok(t, n.Start())
	ready(t, n)
	subnet, err := os.ReadFile(filepath.Join(n.Config.RuntimeDir, "subnet.json"))
	ok(t, err)
	contains(t, string(subnet), n.PodCIDRs[0])
	p := pod(t, n, "one")
	off, err := n.Run(t.Context(), "sysctl", "-n", "net.ipv6.conf.edgemesh-br.disable_ipv6")
	ok(t, err)
	if strings.Contains(string(subnet), n.PodCIDRs[1]) || p.IP6().IsValid() || strings.TrimSpace(off) != "1" {
		t.Errorf("subnet.json %s, the pod has %v, disable_ipv6 of the bridge is %s", subnet, p.Addrs, off)
	}
}

// TestOnlyIPv6BlocksOnHostWithoutIPv6: such a node's agent runs and says why it takes no pods; no pod gets addresses that lead nowhere,
// from a subnet.json of before, neither. Once the host has IPv6 pods start; and when it loses it, no new ones do.
func TestOnlyIPv6BlocksOnHostWithoutIPv6(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := node(t, site(t, l, "site", lab.EIM), "edge-1", lab.NodeOptions{PodCIDRs: []string{"fd44:44:0:66::/64"}})
	subnet := filepath.Join(n.Config.RuntimeDir, "subnet.json")
	ok(t, os.WriteFile(subnet, []byte(`{"podCIDRs":["fd44:44:0:66::/64"],"clusterCIDRs":["`+lab.DefaultRange6+`"],"mtu":1500}`), 0o644)) //nolint:gosec // as the agent's
	ipv6 := func(off int) {
		ok(t, n.Script(fmt.Sprintf("sysctl -qw net.ipv6.conf.all.disable_ipv6=%[1]d net.ipv6.conf.default.disable_ipv6=%[1]d", off)))
	}
	refused := func() {
		t.Helper()
		fair.Eventually(t, 40*time.Second, "status says why", func() error {
			status, _, err := n.AgentCommand(t.Context(), "status", "--json", "--runtime-dir", n.Config.RuntimeDir)
			if exit := (*lab.ExitError)(nil); errors.As(err, &exit) {
				err = nil
			}
			for _, want := range []string{`"id": "ipv6"`, `"broken"`, "net.ipv6.conf.all.disable_ipv6 is 1", "enable IPv6 on this host"} {
				if err == nil && !strings.Contains(status, want) {
					err = fmt.Errorf("no %q in: %s", want, status)
				}
			}
			if _, there := os.Stat(subnet); err == nil && there == nil {
				err = errors.New("the plugin still gives pods addresses")
			}
			return err
		})
		if !n.Agent.Running() {
			t.Errorf("the agent has ended: %s", n.Agent.Tail(5))
		}
		if !tier.IsLong() { // the plugin waits 6 s for the agent
			return
		}
		_, err := n.AddPod(t.Context(), "refused")
		if cni := (*lab.CNIError)(nil); !errors.As(err, &cni) || cni.Code != lab.CNITryAgain {
			t.Errorf("ADD: %v, want code %d", err, lab.CNITryAgain)
		}
	}
	ipv6(1)
	startRelays(t, l)
	ok(t, n.Start())
	refused()
	ipv6(0)
	ready(t, n)
	p := pod(t, n, "one")
	ok(t, n.NS.Ping(t.Context(), p.IP6().String(), 2*time.Second))
	if !tier.IsLong() {
		return
	}
	ipv6(1)
	refused()
	ipv6(0)
	fair.Eventually(t, 40*time.Second, "pods are taken again", func() error { _, err := os.Stat(subnet); return err })
	ok(t, n.NS.Ping(t.Context(), pod(t, n, "two").IP6().String(), 2*time.Second))
}
