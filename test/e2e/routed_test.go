package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/cpu"
	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// startUnfiltered starts a node's agent on a host whose kernel seems to lack br_netfilter.
func startUnfiltered(t *testing.T, n *lab.Node) {
	t.Helper()
	ok(t, n.WriteConfig())
	ok(t, n.Script("sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0",
		"ip link set edgemesh-br type bridge nf_call_iptables 0 nf_call_ip6tables 0 2>/dev/null || true"))
	startBy(t, n, []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs none /proc/sys/net/bridge && exec "$@"`, "sh"})
	ready(t, n)
}

// apart waits until so many ports are isolated.
func apart(t *testing.T, n *lab.Node, want int) {
	t.Helper()
	fair.Eventually(t, 10*time.Second, "the host forwards between its pods, or the bridge does", func() error {
		out, err := n.Run(t.Context(), "bridge", "-d", "link", "show")
		if err == nil && strings.Count(out, "isolated on") != want {
			err = fmt.Errorf("want %d isolated: %s", want, out)
		}
		return err
	})
}

// TestRoutedPods: without br_netfilter the host forwards between its pods, so that NetworkPolicies hold there, too, for pods from before
// and for new ones.
func TestRoutedPods(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := cloud(t, l, "edge-1", lab.NodeOptions{})
	file := filepath.Join(n.Dir, "policies.yaml")
	l.Cluster.Policies = file
	ok(t, os.WriteFile(file, nil, 0o600))
	startAll(t, l)
	web, near := pod(t, n, "web"), pod(t, n, "near")
	curlPods(t, near, web, 3*time.Second)
	ok(t, n.Agent.Stop())
	startUnfiltered(t, n)
	apart(t, n, 2)
	curlPods(t, near, web, 2*time.Second)
	other := pod(t, n, "other")
	for _, p := range pairs(web, other) {
		curl(t, other.NS, web, p[0], p[1], 2*time.Second)
	}
	ok(t, lab.ReplaceFile(file, policyFile(onlyNear, web, near, other)))
	fair.Eventually(t, 10*time.Second, "the policy is in force", func() error {
		for _, a := range web.Addrs {
			if _, err := other.Get(t.Context(), a, 300*time.Millisecond); err == nil {
				return fmt.Errorf("%s is reached", a)
			}
		}
		return nil
	})
	curlPods(t, near, web, 2*time.Second)
	_, all := verdict(t, n, "status")
	for _, f := range all {
		if f.ID == "network-policy" {
			t.Errorf("a finding: %+v", f)
		}
	}
}

// TestRoutedThroughput measures one flow between two pods of a node, by the bridge with br_netfilter and by the host without it.
func TestRoutedThroughput(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := cloud(t, l, "edge-1", lab.NodeOptions{})
	startAll(t, l)
	to, from := pod(t, n, "to"), pod(t, n, "from")
	for range 4 {
		for _, routed := range []bool{false, true} {
			ok(t, n.Agent.Stop())
			if routed {
				startUnfiltered(t, n)
			} else {
				ok(t, n.Start())
				ready(t, n)
			}
			apart(t, n, map[bool]int{true: 2}[routed])
			time.Sleep(3 * time.Second) // sleep: what the start costs
			var b lab.Bulk
			before := cpu.Now()
			ok(t, from.Tool(within(t, time.Minute), &b, "bulk", "--bytes", "10000000000", "--sum=false", to.IP4().String()))
			t.Logf("by the host %t: %.1f Gbit/s, %.2f s of CPU a GB", routed, b.Mbps/1000, float64(cpu.Now().Since(before).Busy)/cpu.Ticks/10)
		}
	}
}
