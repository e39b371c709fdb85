package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestFirewalls holds that what is often found on hosts does not break pods:
// each alone, set before the agent starts, and all of them set while it runs.
func TestFirewalls(t *testing.T) {
	beside(t)
	conditions := []struct {
		name     string
		set, end []string
	}{
		{
			name: "StrictRPFilter",
			set:  reversePathFilter(1),
			end:  reversePathFilter(0),
		},
		{
			name: "BridgeNFCallIptables",
			set:  []string{"sysctl -qw net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1"},
			end:  []string{"sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0"},
		},
		{
			name: "ForwardDrop",
			set:  []string{"iptables -w -P FORWARD DROP", "ip6tables -w -P FORWARD DROP"},
			end:  []string{"iptables -w -P FORWARD ACCEPT", "ip6tables -w -P FORWARD ACCEPT"},
		},
	}
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			l := newLab(t)
			relay(t, l, "relay")
			o := lab.NodeOptions{Iptables: backend}
			n1, n2 := cloud(t, l, "edge-1", o), cloud(t, l, "edge-2", o)
			nodes := []*lab.Node{n1, n2}
			startRelays(t, l)
			for _, n := range nodes {
				ok(t, n.Script(conditions[1].end...)) // new namespaces have it on
				ok(t, n.Start())
			}
			ready(t, nodes...)
			one, near, two := pod(t, n1, "one"), pod(t, n1, "near"), pod(t, n2, "two")
			check := func(t *testing.T) {
				t.Helper()
				curlPods(t, one, near, 2*time.Second)
				curlPods(t, one, two, 3*time.Second)
				curlPods(t, two, one, 3*time.Second)
				curl(t, n1.NS, two, two.IP4(), netip.Addr{}, 3*time.Second)
			}
			if t.Run("AsItIs", check); t.Failed() {
				return
			}
			apply := func(t *testing.T, lines []string) {
				t.Helper()
				for _, n := range nodes {
					ok(t, n.Script(lines...))
				}
			}
			for _, c := range conditions {
				t.Run(c.name, func(t *testing.T) {
					apply(t, c.set)
					check(t)
					for _, n := range nodes {
						ok(t, n.Agent.Stop())
						ok(t, n.Start())
					}
					ready(t, nodes...)
					check(t)
					apply(t, c.end)
				})
			}
			t.Run("AllOfThem", func(t *testing.T) {
				for _, c := range conditions {
					apply(t, c.set)
				}
				// Another program's rules, put before ours as Docker does.
				apply(t,
					[]string{
						"iptables -w -N FOREIGN", "iptables -w -A FOREIGN -j RETURN",
						"iptables -w -I FORWARD -j FOREIGN",
					})
				check(t)
			})
			t.Run("BackendIsTheHosts", func(t *testing.T) {
				other := map[string]string{"nft": "legacy", "legacy": "nft"}[backend]
				out, err := n1.Run(t.Context(), "iptables-"+other+"-save")
				ok(t, err)
				if strings.Contains(out, "EDGEMESH") {
					t.Errorf("the host uses %s, the agent put rules into %s too:\n%s", backend, other, out)
				}
			})
		})
	}
}

// reversePathFilter sets it for all interfaces.
func reversePathFilter(value int) (lines []string) {
	for _, iface := range []string{"all", "default", "wan0"} {
		lines = append(lines, fmt.Sprintf("sysctl -qw net.ipv4.conf.%s.rp_filter=%d", iface, value))
	}
	return lines
}

// TestIPv6UplinkKeepsDefaultRoute holds that a default route learnt from router
// advertisements stays, and is still renewed, when the agent switches
// forwarding on.
func TestIPv6UplinkKeepsDefaultRoute(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site-a", lab.EIM)
	n := node(t, s, "edge-1", lab.NodeOptions{})
	_, err := s.Router.StartTool("ra", "ra", "--iface", "lan0", "--prefix", "2a05:5:1::/64", "--lifetime", "4s")
	ok(t, err)
	hasRoute := func() error {
		out, err := n.Run(t.Context(), "ip", "-6", "route", "show", "default", "proto", "ra")
		if err == nil && strings.TrimSpace(out) == "" {
			err = errors.New("no default route from router advertisements")
		}
		return err
	}
	ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, hasRoute))
	startRelays(t, l)
	ok(t, n.Start())
	ready(t, n)
	out, err := n.Run(t.Context(), "sysctl", "-n", "net.ipv6.conf.all.forwarding")
	ok(t, err)
	if strings.TrimSpace(out) != "1" {
		t.Errorf("net.ipv6.conf.all.forwarding is %s: this proves nothing", out)
	}
	// Longer than the route's life: it is there only if it is renewed.
	for range 30 {
		if err := hasRoute(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond) // sleep: longer than the route's life
	}
}

// TestOfflineStart holds what a node does without its membership file and
// without a network: the last good membership is used.
func TestOfflineStart(t *testing.T) {
	beside(t)
	p := newPair(t, lab.EIM, "")
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	n := p.n1
	for name, spoil := range map[string]func() error{
		"Missing": func() error { return os.Remove(n.Membership) },
		"Torn":    func() error { return os.WriteFile(n.Membership, []byte("podCIDRs: [10.244"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			ok(t, n.Agent.Stop())
			ok(t, spoil())
			before := n.Agent.Tail(1 << 20)
			ok(t, n.Start())
			ready(t, n)
			ok(t, lab.Until(within(t, 8*time.Second), 50*time.Millisecond, func() error {
				return tryCurl(t.Context(), p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
			}))
			log := strings.TrimPrefix(n.Agent.Tail(1<<20), before)
			contains(t, log, n.Membership, "level=WARN")
			// The file comes back: it counts again.
			ok(t, p.lab.WriteMembership())
		})
	}
	t.Run("RebootWithoutNetwork", func(t *testing.T) {
		ok(t, n.Agent.Stop())
		ok(t, n.Script("ip link set eth0 down"))
		ok(t, os.RemoveAll(n.Config.RuntimeDir))
		start := time.Now()
		ok(t, n.Start())
		if err := n.WaitPods(within(t, time.Second)); err != nil {
			t.Errorf("subnet.json within 1 s of a start without network: %v", err)
		}
		t.Logf("subnet.json after %d ms", time.Since(start).Milliseconds())
		b, err := os.ReadFile(filepath.Join(n.Config.RuntimeDir, "subnet.json"))
		ok(t, err)
		var s subnet
		ok(t, json.Unmarshal(b, &s))
		if !slices.Equal(s.PodCIDRs, n.PodCIDRs) || !slices.Equal(s.ClusterCIDRs, p.lab.Cluster.PodCIDRs) ||
			s.MTU != 1500 {
			t.Errorf("subnet.json is %s", b)
		}
		curlPods(t, p.pod1, p.pod1, time.Second)
		near := pod(t, n, "offline")
		curlPods(t, near, p.pod1, time.Second)
		ok(t, n.Script("ip link set eth0 up", "ip route replace default via 192.168.1.1"))
		ctx := within(t, 15*time.Second)
		err = lab.Until(ctx, 50*time.Millisecond, func() error {
			return tryCurl(ctx, near.NS, p.pod2, p.pod2.IP4(), near.IP4(), time.Second)
		})
		if err != nil {
			t.Errorf("15 s after the network came: %v", err)
		}
		t.Logf("network back, first curl after %d ms", time.Since(start).Milliseconds())
	})
}

// hostState is all that the agent might have changed on a host.
func hostState(t *testing.T, n *lab.Node) map[string]string {
	t.Helper()
	// Duplicate address detection adds routes when it ends.
	ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
		out, err := n.Run(t.Context(), "ip", "-6", "addr", "show", "tentative")
		if err == nil && out != "" {
			err = errors.New("tentative addresses: " + out)
		}
		return err
	}))
	state := map[string]string{}
	for name, script := range map[string]string{
		"links":     `ip -br link | awk '{print $1}' | sort`,
		"addresses": `ip -br addr | awk '{$2=""; print}' | sort`,
		"rules":     `ip rule; ip -6 rule`,
		"routes":    `ip route show table all | grep -v '^multicast\|^anycast' | sed 's/ pref .*//; s/expires [^ ]*//; s/ linkdown//; s/ *$//'`,
		// Empty tables and chains of the kernel's own are what asking for them makes.
		"firewall": `for t in iptables ip6tables; do for b in nft legacy; do $t-$b-save 2>/dev/null | grep -E '^(-|:[A-Z]+ (DROP|REJECT)|:[^ ]+ -)' | sed 's/ \[[0-9:]*\]$//' || true; done; done`,
		"sysctls":  `sysctl -a -r '^net\.(ipv4\.ip_forward|ipv4\.conf|ipv6\.conf|bridge)' 2>/dev/null | grep -v stable_secret`,
		"nftables": `nft -s list tables | grep -vE ' ip6? (filter|nat|raw|mangle|security)$' | while read -r _ t; do nft -s list table $t; done`,
		"sets":     `ipset save 2>/dev/null | sort`,
		"fdb":      `bridge fdb show | sort`,
		"qdiscs":   `tc qdisc show | grep -v noqueue || true`,
	} {
		out, err := n.Run(t.Context(), "sh", "-ec", script)
		ok(t, err)
		state[name] = out
	}
	return state
}

// TestCleanup holds that `cleanup` leaves the host as the agent found it.
func TestCleanup(t *testing.T) {
	beside(t)
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			l := newLab(t)
			relay(t, l, "relay")
			n := cloud(t, l, "edge-1", lab.NodeOptions{Iptables: backend})
			n.Config.CNIConfDir, n.Config.CNIBinDir = filepath.Join(n.Dir, "net.d"), filepath.Join(n.Dir, "cnibin")
			// Things of others, which must stay.
			ok(t, n.Script("iptables -w -A FORWARD -s 172.17.0.0/16 -j ACCEPT",
				"iptables -w -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE",
				"ip rule add pref 100 from 172.17.0.0/16 lookup main",
				"sysctl -qw net.ipv4.conf.all.rp_filter=1"))
			before := hostState(t, n)
			startRelays(t, l)
			ok(t, n.Start())
			ready(t, n)
			p := pod(t, n, "one")
			ok(t, lab.Until(within(t, 5*time.Second), 50*time.Millisecond, func() error {
				all, err := filepath.Glob(filepath.Join(n.Config.CNIConfDir, "*edgemesh*.conflist"))
				if err == nil && len(all) != 1 {
					err = fmt.Errorf("conflists: %v", all)
				}
				if err != nil {
					return err
				}
				b, err := os.ReadFile(all[0])
				if err == nil && !strings.Contains(string(b), `"cniVersion": "1.0.0"`) &&
					!strings.Contains(string(b), `"cniVersion":"1.0.0"`) {
					err = fmt.Errorf("the conflist is not of 1.0.0: %s", b)
				}
				return err
			}))
			if _, err := os.Stat(filepath.Join(n.Config.CNIBinDir, "edgemesh-cni")); err != nil {
				t.Errorf("the plugin is not installed: %v", err)
			}
			during := hostState(t, n)
			if during["firewall"] == before["firewall"] || during["rules"] == before["rules"] {
				t.Error("the agent changed nothing: this proves nothing")
			}
			t.Run("RefusedWhileRunning", func(t *testing.T) {
				refused(t, n.NS, []int{1, 2}, n.AgentPath(), "cleanup", "--config", n.ConfigFile())
				curlPods(t, p, p, time.Second)
			})
			t.Run("RefusedForAnotherStateDir", func(t *testing.T) {
				b, err := os.ReadFile(n.ConfigFile())
				ok(t, err)
				other := filepath.Join(n.Dir, "other.yaml")
				ok(t, os.WriteFile(other,
					[]byte(replace("stateDir: "+n.Config.StateDir, "stateDir: "+n.Dir+"/other")(string(b))),
					0o644))
				contains(t, refused(t, n.NS, []int{1}, n.AgentPath(), "cleanup", "--config", other),
					"another agent runs on this host", "edgemesh-tun")
				// Neither does a second agent start beside the first.
				ok(t, os.MkdirAll(n.Dir+"/other", 0o700))
				ok(t, os.Link(filepath.Join(n.Config.StateDir, "identity.key"), n.Dir+"/other/identity.key"))
				edit(t, other, replace(n.Config.MetricsAddress, "127.0.0.1:9999"))
				contains(t, refused(t, n.NS, []int{1}, n.AgentPath(), "run", "--config", other),
					"another agent runs on this host", "edgemesh-tun")
				if now := hostState(t, n); now["firewall"] != during["firewall"] || now["links"] != during["links"] ||
					now["routes"] != during["routes"] {
					t.Errorf("the refused changed the host")
				}
				curlPods(t, p, p, time.Second)
			})
			ok(t, n.Agent.Stop())
			stopped := hostState(t, n)
			during["links"] = strings.Replace(during["links"], "edgemesh-fwd\n", "", 1) // the process's own
			for _, what := range []string{"firewall", "rules", "routes", "links"} {
				if stopped[what] != during[what] {
					t.Errorf("a mere stop changed %s:\n%s\nto\n%s", what, during[what], stopped[what])
				}
			}
			ok(t, p.Delete(t.Context()))
			for range 2 { // a second time there is nothing to do
				_, stderr, err := n.AgentCommand(t.Context(), "cleanup", "--config", n.ConfigFile())
				if err != nil {
					t.Fatalf("cleanup: %v\n%s", err, stderr)
				}
			}
			after := hostState(t, n)
			for what := range before {
				if before[what] != after[what] {
					t.Errorf("%s differ.\nbefore:\n%s\nafter:\n%s", what, before[what], after[what])
				}
			}
			if all, _ := filepath.Glob(filepath.Join(n.Config.CNIConfDir, "*")); len(all) > 0 {
				t.Errorf("left in cniConfDir: %v", all)
			}
			if _, err := os.Stat(filepath.Join(n.Config.StateDir, "identity.key")); err != nil {
				t.Errorf("the key must stay: %v", err)
			}
		})
	}
}
