package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// faultRounds is how often each fault is made, healthyRounds how often doctor looks at nodes without any.
const faultRounds, healthyRounds = 5, 20

// askAgain is how often a command of the page is asked that finds nothing.
const askAgain = 3

// wrong is what doctor says first, unless all is well.
func wrong(t *testing.T, n *lab.Node, to ...string) (f finding, found bool) {
	t.Helper()
	_, all := doctorOf(t, n, to...)
	for _, severity := range []string{"broken", "warning"} {
		for _, f := range all {
			if f.Severity == severity {
				return f, true
			}
		}
	}
	return finding{}, false
}

// first waits until doctor on n names this check first, with a remedy.
func first(t *testing.T, n *lab.Node, check, severity string) {
	t.Helper()
	var said finding
	err := lab.Until(within(t, 20*time.Second), 100*time.Millisecond, func() error {
		var found bool
		if said, found = wrong(t, n); !found || said.Check != check || said.Severity != severity || said.Remedy == "" {
			return fmt.Errorf("doctor says first: %+v, want %s, %s", said, check, severity)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	t.Logf("doctor: %s: %s → %s", said.Check, said.Detail, said.Remedy)
}

// healed waits until doctor is content on all nodes, and pods reach each other.
func healed(t *testing.T, from, to *lab.Pod, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		ok(t, lab.Until(within(t, 40*time.Second), 200*time.Millisecond, func() error {
			if f, found := wrong(t, n); found {
				return fmt.Errorf("%s, after the remedy: %+v", n.Name, f)
			}
			return nil
		}))
	}
	curlPods(t, from, to, 10*time.Second)
}

// newcomer is what docs/troubleshooting.md tells who knows nothing: commands, and by fault which of them names which check.
type newcomer struct {
	commands []string
	faults   map[string]documented
}

type documented struct {
	command  int // from 1
	check    string
	severity string
}

// readNewcomer reads the page.
func readNewcomer(t *testing.T) (n newcomer) {
	t.Helper()
	root, err := repo.Root()
	ok(t, err)
	b, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	ok(t, err)
	_, page, _ := strings.Cut(string(b), "\n## From \"pod A cannot reach pod B\" to the cause\n")
	script, page, _ := strings.Cut(page, "\n## What doctor says first\n")
	n.commands = regexp.MustCompile(`(?m)^edgemesh-agent .*$`).FindAllString(script, -1)
	page, _, _ = strings.Cut(page, "\n## ")
	n.faults = map[string]documented{}
	for _, row := range regexp.MustCompile("(?m)^\\| ([^|]+) \\| ([1-3]) \\| `([a-z-]+)`(?:, (broken|warning))?").FindAllStringSubmatch(page, -1) {
		n.faults[row[1]] = documented{int(row[2][0] - '0'), row[3], row[4]}
	}
	if len(n.commands) != 3 || len(n.faults) < 16 {
		t.Fatalf("docs/troubleshooting.md: commands %q, faults %+v", n.commands, n.faults)
	}
	return n
}

// run runs the page's commands for two pods, until one names the fault first.
func (n newcomer) run(t *testing.T, fault string, a, b *lab.Node, ip netip.Addr) {
	t.Helper()
	d, found := n.faults[fault]
	if !found {
		t.Fatalf("docs/troubleshooting.md lacks the fault %q", fault)
	}
	for i, line := range n.commands[:d.command] {
		command, where, _ := strings.Cut(line, "#")
		at := a
		if strings.Contains(where, "pod B's node") {
			at = b
		}
		var to []string
		if args := strings.Fields(command)[2:]; len(args) > 0 {
			to = append(to, strings.ReplaceAll(args[0], "POD-B-IP", ip.String()))
		}
		f, found := wrong(t, at, to...)
		for tries := 1; i+1 == d.command && !found && tries < askAgain; tries++ {
			f, found = wrong(t, at, to...) // the agent has repaired it that moment, and it is harmed again
		}
		t.Logf("%d: %s → %s %s: %s %s", i+1, strings.TrimSpace(command), f.Severity, f.Check, f.Node, f.Detail)
		if i+1 == d.command && (!found || f.Check != d.check || f.Remedy == "") {
			t.Errorf("command %d of docs/troubleshooting.md says first: %+v, want %s", i+1, f, d.check)
		}
	}
}

// fault is one that is made in TestFaults, under its name in docs/troubleshooting.md.
type fault struct {
	name            string
	node            *lab.Node // whose doctor names it
	check, severity string    // none: plain doctor need not name it
	harm, undo      func() error
}

// again is harm that comes back, as that of a program which disagrees with the agent: what the agent repairs itself is harmed
// again within milliseconds, until stop.
type again struct {
	ns      *lab.NS
	line    string
	process *lab.Process
}

func (a *again) harm() (err error) {
	if err = a.ns.Script(a.line); err == nil {
		a.process, err = a.ns.Start("again", "sh", "-c", "while :; do "+a.line+"; sleep 0.01; done")
	}
	return err
}

// stop is what ends it: the rest is the agent's.
func (a *again) stop() error {
	a.process.Kill() // and waits
	return nil
}

// TestFaults makes one fault after the other, five times each. Each time doctor names it first, with what to do, and so do the
// commands of docs/troubleshooting.md; once that is done, doctor is content and pods reach each other. What the agent repairs
// itself is harmed again and again, so that doctor finds it; what it says meanwhile is that, or that nothing is wrong. Not here: large packets that vanish (TestFaultMTUHole), the
// proxy (TestFaultProxy) and kubelet's address (test/kube TestFaultNodeAddress, test/kubeapi TestNodeWithoutAddress).
func TestFaults(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	r.Listen = append(r.Listen, "/ip4/0.0.0.0/tcp/443/ws") // tells the time
	l.Cluster.Relays = append(l.Cluster.Relays, "/ip4/"+r.Addr+"/tcp/443/ws/p2p/"+r.PeerID)
	p := &pair{lab: l}
	p.n1 = node(t, site(t, l, "site-1", lab.EIM), "edge-1", lab.NodeOptions{})
	p.n2 = node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	full := cloud(t, l, "full", lab.NodeOptions{PodCIDRs: []string{"10.244.90.0/30"}}) // one address
	clock, err := p.n1.OwnClock()
	ok(t, err)
	l.Cluster.Observers = []string{"full"}
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	p.onPaths(t, 30*time.Second, "punched")
	show := newShown(t, full, l.Nodes()...)
	t.Run("healthy", func(t *testing.T) {
		for range healthyRounds {
			for _, n := range []*lab.Node{p.n1, p.n2, full} {
				if f, found := wrong(t, n); found {
					t.Errorf("%s: %+v", n.Name, f)
				}
			}
			if f, found := wrong(t, p.n1, p.pod2.IP4().String()); found {
				t.Errorf("to %s: %+v", p.pod2.IP4(), f)
			}
		}
	})
	page := readNewcomer(t)
	for _, f := range seeded(t, p, r, full, clock) {
		for round := range faultRounds {
			t.Run(fmt.Sprintf("%s/%d", f.name, round+1), func(t *testing.T) { f.test(t, p, page, full, show) })
		}
	}
}

// test makes the fault and undoes it. Map and plugin show it meanwhile.
func (f fault) test(t *testing.T, p *pair, page newcomer, full *lab.Node, show *shown) {
	if x, found := wrong(t, f.node); found {
		t.Fatalf("before: %+v", x)
	}
	ok(t, f.harm())
	if f.check != "" {
		first(t, f.node, f.check, f.severity)
		firstLine(t, f.node, f.check)
		show.await(t, f.node, f.check, true)
	}
	b := p.n2
	if f.node == full {
		b = full
	}
	page.run(t, f.name, p.n1, b, p.pod2.IP4())
	ok(t, f.undo())
	healed(t, p.pod1, p.pod2, f.node)
	ok(t, lab.Until(within(t, knows(f.check)), 200*time.Millisecond, func() error {
		if line, all := verdict(t, f.node, "status"); !strings.HasPrefix(line, "OK: ") {
			return fmt.Errorf("after the remedy status says: %s %+v", line, all)
		}
		return nil
	}))
	if f.check != "" {
		show.await(t, f.node, f.check, false)
	}
}

// knows is how long it may take until an agent knows of a fault, and says so: the host's firewall is probed some seconds after a
// change.
func knows(check string) time.Duration {
	if check == "nftables" || check == "iptables" {
		return 10*time.Second + 15*time.Second
	}
	return 10 * time.Second
}

// verdict is the first line of status or doctor, and the findings of the same moment.
func verdict(t *testing.T, n *lab.Node, command ...string) (line string, all []findings.Finding) {
	t.Helper()
	run := func(args ...string) string {
		out, stderr, err := n.AgentCommand(within(t, 30*time.Second), slices.Concat(command, []string{"--runtime-dir", n.Config.RuntimeDir}, args)...)
		if exit := (*lab.ExitError)(nil); err != nil && (command[0] == "status" || !errors.As(err, &exit)) {
			t.Fatalf("%s: %v: %s", command, err, stderr)
		}
		return out
	}
	line, _, _ = strings.Cut(run(), "\n")
	if command[0] == "doctor" {
		ok(t, json.Unmarshal([]byte(run("--json")), &all))
		return line, all
	}
	var st struct{ Findings []findings.Finding }
	ok(t, json.Unmarshal([]byte(run("--json")), &st))
	return line, st.Findings
}

// firstLine waits until the first line of the command that docs/findings.md names for a finding names it.
func firstLine(t *testing.T, n *lab.Node, id string) {
	t.Helper()
	kind, known := findings.Of(id)
	if !known {
		t.Fatalf("docs/findings.md lacks %s", id)
	}
	ok(t, lab.Until(within(t, knows(id)), 200*time.Millisecond, func() error {
		line, all := verdict(t, n, string(kind.Seen))
		for _, f := range all {
			if f.ID == id && strings.HasPrefix(line, "TROUBLE: "+f.Text[:min(len(f.Text), 20)]) {
				return nil
			}
		}
		return fmt.Errorf("%s says first %q, want %s: %+v", kind.Seen, line, id, all)
	}))
}

// TestFaultsOfPaths makes what docs/troubleshooting.md has under no connection between nodes: a peer that is off, and an uplink
// that is gone. Each is one finding, named in the first line of status, and gone with its cause.
func TestFaultsOfPaths(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	p := &pair{lab: l}
	p.n1 = node(t, site(t, l, "site-1", lab.EIM), "edge-1", lab.NodeOptions{})
	p.n2 = node(t, site(t, l, "site-2", lab.EIM), "edge-2", lab.NodeOptions{})
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	show := newShown(t, p.n1, p.n1, p.n2)
	route := filepath.Join(t.TempDir(), "route")
	for _, f := range []struct {
		id, check, severity string
		harm, undo          func() error
		victims             string
	}{
		{"peer-offline", "peer-offline", "warning", func() error { p.n2.Agent.Kill(); return nil }, p.n2.Start, ""},
		{"uplink", "uplink", "broken", func() error { return p.n1.Script("ip route show default >"+route, "ip route del default") },
			func() error { return p.n1.Script("ip route add $(cat " + route + ")") }, "relay-unreachable"},
	} {
		for round := range faultRounds {
			t.Run(fmt.Sprintf("%s/%d", f.id, round+1), func(t *testing.T) {
				ok(t, f.harm())
				ok(t, lab.Until(within(t, 60*time.Second), time.Second, func() error { // until the paths and the relay's connection are noticed to be dead
					_ = p.pod1.Ping(t.Context(), p.pod2.IP4().String(), time.Second)
					line, all := verdict(t, p.n1, "status")
					wrong := findings.Only(all, findings.Broken, findings.Warning)
					if len(wrong) != 1 || wrong[0].ID != f.id || string(wrong[0].Severity) != f.severity || !strings.HasPrefix(line, "TROUBLE: "+wrong[0].Text) ||
						f.victims != "" && !strings.Contains(strings.Join(wrong[0].Victims, " "), f.victims) {
						return fmt.Errorf("%s: %+v", line, wrong)
					}
					t.Logf("%s; then %v", line, wrong[0].Victims)
					return show.has(t, p.n1, f.id, "", true)
				}))
				ok(t, f.undo())
				healed(t, p.pod1, p.pod2, p.n1)
				show.await(t, p.n1, f.id, false)
			})
		}
	}
}

// seeded are the faults.
func seeded(t *testing.T, p *pair, r *lab.Relay, full *lab.Node, clock lab.Clock) []fault {
	t.Helper()
	key := filepath.Join(p.n1.Config.StateDir, "identity.key")
	good, err := os.ReadFile(key)
	ok(t, err)
	other, err := os.ReadFile(filepath.Join(p.n2.Config.StateDir, "identity.key"))
	ok(t, err)
	at := p.pod1.IP4().As4()
	inside := netip.AddrFrom4([4]byte{at[0], at[1], 200, 1})
	script := func(ns *lab.NS, lines ...string) func() error { return func() error { return ns.Script(lines...) } }
	drop := []string{"nft add table inet other", "nft 'add chain inet other closed { type filter hook forward priority 10; policy drop; }'"}
	var last *lab.Pod
	filter := &again{ns: p.n1.NS, line: "sysctl -qw net.ipv4.conf.edgemesh-tun.rp_filter=1"}
	forwarding := &again{ns: p.n1.NS, line: "sysctl -qw net.ipv4.ip_forward=0"}
	routes := &again{ns: p.n1.NS, line: "ip route flush table 5210 dev edgemesh-tun"}
	down := &again{ns: p.n1.NS, line: "ip link set edgemesh-tun down"}
	return []fault{
		{"the relay is off, and no other is there", p.n1, "relay-unreachable", "broken", func() error { r.Process.Kill(); return nil }, r.Start},
		{"the relay's UDP port is closed", p.n1, "udp", "warning",
			script(r.NS, "iptables -w -I INPUT -p udp -j DROP"), script(r.NS, "iptables -w -D INPUT -p udp -j DROP")},
		{"forwarded packets are dropped on pod A's node", p.n1, "nftables", "broken",
			script(p.n1.NS, drop...), script(p.n1.NS, "nft delete table inet other")},
		{"forwarded packets are dropped on pod B's node", p.n2, "nftables", "broken",
			script(p.n2.NS, drop...), script(p.n2.NS, "nft delete table inet other")},
		{"iptables drops the pod range on pod A's node", p.n1, "iptables", "broken",
			script(p.n1.NS, "iptables-legacy -w -I FORWARD -d "+lab.DefaultRange4+" -j DROP"), script(p.n1.NS, "iptables-legacy -w -F FORWARD")},
		{"iptables drops the pod range on pod B's node", p.n2, "iptables", "broken",
			script(p.n2.NS, "iptables-nft -w -I FORWARD -d "+lab.DefaultRange4+" -j DROP"), script(p.n2.NS, "iptables-nft -w -D FORWARD -d "+lab.DefaultRange4+" -j DROP")},
		{"strict rp_filter", p.n1, "tun", "broken", filter.harm, filter.stop},
		{"forwarding is off", p.n1, "forwarding", "broken", forwarding.harm, forwarding.stop},
		{"a route is gone", p.n1, "routes", "broken", routes.harm, routes.stop},
		{"the TUN is down", p.n1, "tun", "broken", down.harm, down.stop},
		{"another rule takes the pod range", p.n1, "way", "broken",
			script(p.n1.NS, "ip route add default dev lo table 99", "ip rule add pref 1 to 10.244.0.0/16 lookup 99"), // ours cannot come before it
			script(p.n1.NS, "ip rule del pref 1", "ip route flush table 99")},
		{"docker has a pod range", p.n1, "addresses", "broken",
			script(p.n1.NS, "ip link add docker0 type bridge", "ip addr add "+inside.String()+"/24 dev docker0", "ip link set docker0 up"),
			script(p.n1.NS, "ip link del docker0")},
		{"the clock is wrong", p.n1, "clock", "warning",
			func() error { return clock.Set(3 * time.Hour) }, func() error { return clock.Set(0) }},
		{"no addresses are left", full, "pool", "broken",
			func() (err error) { last, err = full.AddPod(t.Context(), "last"); return err },
			func() error { return last.Delete(t.Context()) }},
		{"the membership is broken", p.n1, "membership", "warning",
			func() error { return lab.ReplaceFile(p.n1.Membership, "podCIDRs: [") }, p.lab.WriteMembership},
		{"pod B's node has an outdated membership", p.n2, "", "", func() error {
			old := strings.Replace(p.lab.Cluster.YAML(), p.n1.PodCIDRs[0], "10.244.77.0/24", 1)
			if err := lab.ReplaceFile(p.n2.Membership, old); err != nil {
				return err
			}
			return lab.Until(t.Context(), 50*time.Millisecond, func() error {
				st, err := p.n2.Status(t.Context())
				if err == nil && st.Peer(p.n1.Name).PodCIDRs[0] != "10.244.77.0/24" {
					err = fmt.Errorf("edge-2 has %+v", st.Peer(p.n1.Name))
				}
				return err
			})
		}, p.lab.WriteMembership},
		{"the key is another one", p.n1, "key", "broken",
			func() error { return os.WriteFile(key, other, 0o600) }, func() error { return os.WriteFile(key, good, 0o600) }},
	}
}
