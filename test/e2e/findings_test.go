package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// shown are the places that show findings beside status and doctor: the page of a map, and kubectl's plugin.
type shown struct {
	page   *liveMap
	plugin *lab.Node // runs it
	script string    // its kubectl
}

// newShown opens a map on an observer, and makes a kubectl that reaches the agents of all nodes.
func newShown(t *testing.T, observer *lab.Node, nodes ...*lab.Node) *shown {
	t.Helper()
	dir := t.TempDir()
	var members, cases []string
	pods := []string{`{"kind": "DaemonSet", "metadata": {"uid": "ds"}, "spec": {"template": {"spec": {"containers": [{"image": "agent:1"}]}}}}`}
	for _, n := range nodes {
		members = append(members, fmt.Sprintf(`{"metadata": {"name": %q}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}`, n.Name))
		pods = append(pods, fmt.Sprintf(`{"kind": "Pod", "metadata": {"name": "agent-%s", "ownerReferences": [{"uid": "ds", "controller": true}]}, "spec": {"nodeName": %[1]q}, "status": {"phase": "Running"}}`, n.Name))
		cases = append(cases, fmt.Sprintf("agent-%s) exec ip netns exec %s %s \"$@\" --runtime-dir %s ;;", n.Name, n.Full, n.AgentPath(), n.Config.RuntimeDir))
	}
	list := func(of []string) string { return `{"items": [` + strings.Join(of, ",") + "]}" }
	script := "#!/bin/sh\ncase \"$*\" in\n*\"get meshnodes\"*) echo '" + list(members) + "'; exit ;;\n*\"get daemonsets.apps,pods\"*) echo '" + list(pods) + "'; exit ;;\n*\" get \"*) echo forbidden >&2; exit 1 ;;\nesac\n" +
		"while [ \"$1\" != exec ]; do shift; done\npod=\nfor a; do case $a in agent-*) [ -n \"$pod\" ] || pod=$a ;; esac; done\n" +
		"while [ \"$1\" != edgemesh-agent ]; do shift; done\nshift\ncase $pod in\n" + strings.Join(cases, "\n") + "\nesac\n"
	s := &shown{plugin: observer, script: filepath.Join(dir, "kubectl")}
	ok(t, os.WriteFile(s.script, []byte(script), 0o700))
	ok(t, os.Symlink(observer.AgentPath(), filepath.Join(dir, "kubectl-edgemesh")))
	s.page = newLiveMap(t, observer)
	return s
}

// kubectl runs the plugin.
func (s *shown) kubectl(ctx context.Context, args ...string) (out string, err error) {
	return s.plugin.Run(ctx, append([]string{"env", "KUBECTL=" + s.script, filepath.Join(filepath.Dir(s.script), "kubectl-edgemesh"), "-n", "mesh"}, args...)...)
}

// pluginSays is what the plugin shows of a node: its findings in JSON, and its text.
func (s *shown) pluginSays(t *testing.T, node string) (text string, all []findings.Finding) {
	t.Helper()
	out, err := s.kubectl(within(t, 30*time.Second), "status", "--json") // it waits 20 s for an agent that hangs
	ok(t, err)
	var states struct {
		Nodes []struct {
			Node   string
			Status struct{ Findings []findings.Finding }
		}
	}
	ok(t, json.Unmarshal([]byte(out), &states))
	for _, n := range states.Nodes {
		if n.Node == node {
			all = n.Status.Findings
		}
	}
	text, err = s.kubectl(within(t, 30*time.Second), "status")
	ok(t, err)
	return text, all
}

// has reports whether page and plugin show a finding of the node, or that they do not.
func (s *shown) has(t *testing.T, n *lab.Node, id, subject string, wanted bool) error {
	t.Helper()
	text, all := s.pluginSays(t, n.Name)
	is := func(f findings.Finding) bool { return f.ID == id && (subject == "" || f.Subject == subject) }
	i := slices.IndexFunc(all, is)
	if (i >= 0) != wanted {
		return fmt.Errorf("the plugin's JSON has %s of %s: %v, want %v: %+v", id, n.Name, i >= 0, wanted, all)
	}
	if wanted && all[i].Severity.Wrong() && (!strings.HasPrefix(text, "TROUBLE on ") || !strings.Contains(text, n.Name+": "+string(all[i].Severity)+": "+id+": ")) {
		return fmt.Errorf("the plugin shows no %s of %s:\n%s", id, n.Name, text)
	}
	var onPage []string
	seen := false
	for _, f := range s.page.findings(t) {
		onPage = append(onPage, f.Kind+" by "+strings.Join(f.By, ","))
		seen = seen || f.Kind == id && slices.Contains(f.By, n.Name)
	}
	if seen != wanted {
		return fmt.Errorf("the map has %s by %s: %v, want %v: %q", id, n.Name, seen, wanted, onPage)
	}
	return nil
}

// await waits until page and plugin show a finding of the node, or no longer do.
func (s *shown) await(t *testing.T, n *lab.Node, id string, wanted bool) {
	t.Helper()
	ok(t, lab.Until(within(t, knows(id)), 200*time.Millisecond, func() error { return s.has(t, n, id, "", wanted) }))
}

// mapFinding is a finding on the page.
type mapFinding struct {
	ID, Kind string
	By       []string
}

// findings are those that the page shows.
func (m *liveMap) findings(t *testing.T) map[string]mapFinding {
	t.Helper()
	text, err := os.ReadFile(m.stream.Log)
	ok(t, err)
	out := map[string]mapFinding{}
	for e := range strings.SplitSeq(string(text), "\n\n") {
		data, found := strings.CutPrefix(e, "data: ")
		var news struct {
			Full     bool
			Findings []mapFinding
			Gone     struct{ Findings []string }
		}
		if !found || json.Unmarshal([]byte(data), &news) != nil {
			continue // the last one, half written
		}
		if news.Full {
			clear(out)
		}
		for _, f := range news.Findings {
			out[f.ID] = f
		}
		for _, id := range news.Gone.Findings {
			delete(out, id)
		}
	}
	return out
}

// made is a finding that is made in TestFindings.
type made struct {
	id, subject string
	severity    findings.Severity
	node        *lab.Node     // which says so
	learns      time.Duration // how late the agent can know it, and that it is over
	to          []string      // doctor's destination, of what only that sees
	harm, undo  func() error
	stays       bool // until the agent restarts: nobody can know that it is over
	follows     bool // from another one, which is said first
	alone       bool // nobody else hears of it: a map there shows it
}

// command is the one that names it.
func (m made) command() []string {
	kind, _ := findings.Of(m.id)
	switch kind.Seen {
	case findings.ByStatus:
		return []string{"status"}
	case findings.ByDoctor:
		return []string{"doctor"}
	}
	return append([]string{"doctor"}, m.to...)
}

// says is whether the first line of that command names the finding; a note is never in the verdict.
func (m made) says(t *testing.T) error {
	t.Helper()
	line, all := verdict(t, m.node, m.command()...)
	for _, f := range all {
		if f.ID != m.id || m.subject != "" && f.Subject != m.subject || f.Severity != m.severity || f.Remedy == "" {
			continue
		}
		where := ""
		if f.Node != "" {
			where = "on " + f.Node + ": "
		}
		if first := strings.HasPrefix(line, "TROUBLE: "+where+f.Text[:min(len(f.Text), 20)]); first != (f.Severity == findings.Note || m.follows) {
			return nil
		}
	}
	return fmt.Errorf("%v says first %q, want %s %s: %+v", m.command(), line, m.severity, m.id, findings.Only(all, findings.Broken, findings.Warning, findings.Note))
}

// over is whether that command no longer has the finding.
func (m made) over(t *testing.T) error {
	t.Helper()
	line, all := verdict(t, m.node, m.command()...)
	for _, f := range all {
		if f.ID == m.id && f.Severity != findings.OK && f.Severity != findings.Skipped && (m.subject == "" || f.Subject == m.subject) {
			return fmt.Errorf("%v still says %q: %+v", m.command(), line, f)
		}
	}
	return nil
}

// test makes it: it is named in time by its command, on the map and by the plugin, and gone in time.
func (m made) test(t *testing.T, s *shown) {
	t.Helper()
	kind, _ := findings.Of(m.id)
	ok(t, lab.Until(within(t, 70*time.Second), 200*time.Millisecond, func() error { // what was before is over: a peer in demand counts for 60 s
		if err := m.over(t); err != nil {
			return fmt.Errorf("before: %w", err)
		}
		f, found := wrong(t, m.node)
		line, _ := verdict(t, m.node, "status")
		if !m.stays && (found || !strings.HasPrefix(line, "OK: ")) {
			return fmt.Errorf("before: %+v; status: %s", f, line)
		}
		return nil
	}))
	if m.alone {
		s = &shown{newLiveMap(t, m.node), s.plugin, s.script}
	}
	undo := sync.OnceValue(m.undo)
	defer func() { // also where it failed
		if err := undo(); err != nil {
			t.Error(err)
		}
	}()
	ok(t, m.harm())
	lag := stopwatch(t)
	limit := m.learns + 10*time.Second
	ok(t, lab.Until(within(t, limit), 200*time.Millisecond, func() error { return m.says(t) }))
	said := lag()
	if kind.Seen != findings.ByPath { // what doctor sees on the way to one address is about that address, and not kept
		ok(t, lab.Until(within(t, limit), 200*time.Millisecond, func() error { return s.has(t, m.node, m.id, m.subject, true) }))
	} else {
		out, err := s.kubectl(within(t, 30*time.Second), append([]string{"doctor", m.node.Name}, m.to...)...)
		if exit := (*lab.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if !strings.Contains(out, "TROUBLE: ") && !strings.Contains(fmt.Sprint(err), "TROUBLE: ") {
			t.Errorf("the plugin's doctor says %s %v", out, err)
		}
	}
	everywhere := lag()
	ok(t, undo())
	if m.stays {
		t.Logf("%s: said after %.1f s, everywhere after %.1f s", m.id, said.Seconds(), everywhere.Seconds())
		return
	}
	lag = stopwatch(t)
	ok(t, lab.Until(within(t, limit), 200*time.Millisecond, func() error { return m.over(t) }))
	if kind.Seen != findings.ByPath {
		ok(t, lab.Until(within(t, limit), 200*time.Millisecond, func() error { return s.has(t, m.node, m.id, m.subject, false) }))
	}
	t.Logf("%s: said after %.1f s, everywhere after %.1f s, gone everywhere after %.1f s", m.id, said.Seconds(), everywhere.Seconds(), lag().Seconds())
}

// elsewhere are the tests that make the findings which TestFindings does not.
var elsewhere = map[string]string{
	"relay-unreachable": "TestFaults", "udp": "TestFaults", "nftables": "TestFaults", "iptables": "TestFaults", "tun": "TestFaults",
	"forwarding": "TestFaults", "routes": "TestFaults", "way": "TestFaults", "addresses": "TestFaults", "clock": "TestFaults",
	"pool": "TestFaults", "membership": "TestFaults", "key": "TestFaults", "owner": "TestFaults",
	"clone": "TestClone", "uplink": "TestFaultsOfPaths", "peer-offline": "TestFaultsOfPaths",
	"hung-loop": "TestHungLoop", "mtu": "TestFaultMTUHole", "proxy": "TestFaultProxy",
	// Not in this lab: what the host has, an hour, a cluster's API, or an attack is needed.
	"names":           "TestTaken",          // an agent that runs has had its names; one that does not is the finding agent: TestHostTaken
	"runtime":         "TestRuntimeFinding", // it reads the host's own files, which namespaces share
	"relayed":         "TestRelayed",        // after an hour
	"limits":          "TestRefusedFindings",
	"handshakes":      "TestRefusedFindings",
	"stranger":        "TestRefusedFindings",
	"key-mismatch":    "TestRefusedFindings",
	"node-ip":         "TestFaultNodeAddress",
	"node-ip-missing": "TestNodeWithoutAddress",
	"policy":          "TestFarSide",    // a membership that denies pods' own addresses is refused: an older agent may have one
	"input":           "TestCheckInput", // only where kubelet reports the mesh address
	"lan-trusted":     "TestUpgradeKeepsPaths",
	"lan-global":      "TestGlobalUnderlay",
	"lan-forward":     "TestForwardDrop",
	"relay-behind":    "TestRelayService",
	"relay-old":       "TestOlder", // a release of its own
	"one-relay":       "TestRelayService",
	"ports":           "TestStartDegraded",
	"host-ports":      "TestConflist",
	"conntrack":       "TestConntrackFull",             // a namespace's table, which takes a quarter of a million connections
	"interfaces":      "TestOthersConfigureInterfaces", // it is over ten minutes after the last removal
	"captive-portal":  "TestPortal",
	"resolver":        "TestServersOfNow", // it needs a container
	"controller":      "TestLeaderless",
	"upkeep":          "TestCost",       // after an hour
	"ip-version":      "TestBrokenIPv6", // it needs a relay with both versions
	"network-policy":  "TestRefusedByTheKernel",
	"bridge-filter":   "TestBridgeFilterMissing", // the module is built into many kernels
	"agent":           "TestFindings",            // and path, which follows from it
	"path":            "TestFindings",
}

// TestEveryFindingHasATest: each ID of the catalogue is made by a test, the closest to real that there is.
func TestEveryFindingHasATest(t *testing.T) {
	root, err := repo.Root()
	ok(t, err)
	tests := map[string]bool{}
	ok(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = true
		}
		return err
	}))
	source, err := os.ReadFile("findings_test.go")
	ok(t, err)
	for _, k := range findings.Kinds {
		here := strings.Contains(string(source), fmt.Sprintf("{id: %q", k.ID)) || strings.Contains(string(source), fmt.Sprintf("repeat(%q", k.ID))
		switch there := elsewhere[k.ID]; {
		case there == "" && !here:
			t.Errorf("no test makes the finding %s", k.ID)
		case there != "" && !tests[there]:
			t.Errorf("the finding %s has no test: %s is gone", k.ID, there)
		case there != "" && here:
			t.Errorf("%s: made here, so that %s needs no mention", k.ID, there)
		}
	}
	for id := range elsewhere {
		if _, known := findings.Of(id); !known {
			t.Errorf("%s is not in the catalogue", id)
		}
	}
}

// TestFindings makes one finding after the other, in one lab.
func TestFindings(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	s := &scene{t: t, lab: l, relay: relay(t, l, "relay"), home: site(t, l, "site-2", lab.EIM)}
	lan := site(t, l, "site-1", lab.EIM)
	s.one, s.two, s.far = node(t, lan, "edge-1", lab.NodeOptions{}), node(t, lan, "edge-2", lab.NodeOptions{}), node(t, s.home, "edge-3", lab.NodeOptions{})
	s.watcher, s.router = cloud(t, l, "cloud-1", lab.NodeOptions{}), cloud(t, l, "cloud-2", lab.NodeOptions{})
	l.Cluster.Observers, l.Cluster.Encryption = []string{"cloud-1"}, "always"
	s.one.Config.ProxyUser = filepath.Join(s.one.Dir, "proxy-user")
	ok(t, os.WriteFile(s.one.Config.ProxyUser, []byte("edge:secret\n"), 0o600))
	s.router.Config.Forward = map[string]any{"from": []string{"10.99.0.0/24"}}
	ok(t, s.router.Script("sysctl -qw net.ipv4.ip_forward=1"))
	for _, n := range []*lab.Node{s.two, s.router} { // a second uplink, without an address
		ok(t, n.Script("ip link add other type veth peer name end", "ip link set dev other up", "ip link set dev end up"))
	}
	startAll(t, l)
	pod(t, s.router, "here")
	s.pod1, s.pod2, s.pod3 = pod(t, s.one, "one"), pod(t, s.two, "two"), pod(t, s.far, "three")
	curlPods(t, s.pod1, s.pod2, 10*time.Second)
	curlPods(t, s.pod1, s.pod3, 10*time.Second)
	show := newShown(t, s.watcher, l.Nodes()...)
	for _, m := range slices.Concat(s.kernel(), s.files(), s.membership(), s.network(), s.strangers()) {
		t.Run(m.id, func(t *testing.T) { m.test(t, show) })
	}
	t.Run("agent", func(t *testing.T) { s.dead(t, show) })
}

// scene is what findings are made of.
type scene struct {
	t                              *testing.T
	lab                            *lab.Lab
	relay                          *lab.Relay
	one, two, far, watcher, router *lab.Node
	home                           *lab.Site // of far
	pod1, pod2, pod3               *lab.Pod
}

func onto(n *lab.NS, lines ...string) func() error { return func() error { return n.Script(lines...) } }

// inOrder does one after the other.
func inOrder(all ...func() error) func() error {
	return func() error {
		for _, f := range all {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}
}

// repeat is harm that the agent repairs, and that returns.
func repeat(id string, n *lab.Node, line string) made {
	a := &again{ns: n.NS, line: line + " 2>/dev/null || true"}
	return made{id: id, severity: findings.Broken, node: n, harm: a.harm, undo: a.stop}
}

// native has the two nodes of the LAN use a native path.
func (s *scene) native() error {
	s.lab.Cluster.Encryption = ""
	if err := s.lab.WriteMembership(); err != nil {
		return err
	}
	return lab.Until(within(s.t, 40*time.Second), 200*time.Millisecond, func() error {
		_ = s.pod1.Ping(s.t.Context(), s.pod2.IP4().String(), time.Second)
		st, err := s.two.Status(s.t.Context())
		if err == nil && st.Peer(s.one.Name).Path != "native" {
			err = fmt.Errorf("edge-2 reaches edge-1: %+v", st.Peer(s.one.Name))
		}
		return err
	})
}

// member changes the membership of one node alone; back undoes that.
func (s *scene) member(n *lab.Node, change func(*lab.Cluster)) func() error {
	return func() error {
		c := s.lab.Cluster
		c.Nodes, c.Relays = slices.Clone(c.Nodes), slices.Clone(c.Relays)
		change(&c)
		return lab.ReplaceFile(n.Membership, c.YAML())
	}
}

func (s *scene) back() error { return s.lab.WriteMembership() }

// kernel are findings of the kernel's state.
func (s *scene) kernel() []made {
	undone := &again{ns: s.one.NS, line: "sysctl -qw net.ipv4.ip_forward=0"}
	return []made{
		{id: "plaintext", severity: findings.Note, node: s.one, learns: 20 * time.Second, harm: s.native, undo: func() error {
			s.lab.Cluster.Encryption = "always"
			return s.back()
		}},
		{id: "undone", severity: findings.Warning, node: s.one, learns: 12 * time.Second, harm: undone.harm, undo: inOrder(undone.stop, s.native)},
		repeat("bridge", s.two, "ip link set edgemesh-br down"),
		repeat("vxlan", s.two, "ip link del edgemesh-vx"),
		repeat("rules", s.two, "ip rule del lookup 5210"),
		repeat("guard", s.two, "nft flush table inet edgemesh"),
		repeat("snat", s.two, "nft delete table inet edgemesh-nat"),
		repeat("firewall", s.two, "iptables -w -F FORWARD"),
		repeat("paths", s.two, "ip route del "+s.one.PodCIDRs[0]+" table 5210"),
		{id: "host", severity: findings.Broken, node: s.watcher, harm: onto(s.watcher.NS, "ip link add third type vxlan id 3 dstport 9999 dev wan0", "ip link del edgemesh-br", "ip link set dev third name edgemesh-br"),
			undo: onto(s.watcher.NS, "ip link del edgemesh-br")},
		{id: "ipv6", severity: findings.Warning, node: s.two, learns: 30 * time.Second, harm: onto(s.two.NS, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1"),
			undo: onto(s.two.NS, "sysctl -qw net.ipv6.conf.all.disable_ipv6=0")},
		{id: "router", severity: findings.Note, node: s.router, learns: 20 * time.Second,
			harm: onto(s.router.NS, "ip addr add 172.30.0.1/24 dev other"), undo: onto(s.router.NS, "ip addr del 172.30.0.1/24 dev other")},
		{id: "uplinks", severity: findings.Note, node: s.two, learns: 20 * time.Second,
			harm: onto(s.two.NS, "ip addr add 172.30.0.1/24 dev other"), undo: onto(s.two.NS, "ip addr del 172.30.0.1/24 dev other")},
		{id: "lan", severity: findings.Warning, node: s.two, learns: 20 * time.Second, harm: onto(s.two.NS, "ip link del edgemesh-vx", "ip link add edgemesh-vx type bridge"),
			undo: onto(s.two.NS, "ip link del edgemesh-vx")},
		{id: "offloads", severity: findings.Warning, node: s.two, learns: 10 * time.Second, harm: func() (err error) {
			if err = s.two.Agent.Stop(); err == nil {
				s.two.Agent, err = s.two.NS.Start(s.two.Name, s.two.AgentPath(), "run", "--portable-tun", "--config", s.two.ConfigFile())
			}
			return err
		}, undo: inOrder(func() error { return s.two.Agent.Stop() }, s.two.Start)},
	}
}

// files are findings of what stands in files.
func (s *scene) files() []made {
	key := filepath.Join(s.one.Config.StateDir, "identity.key")
	return []made{
		repeat("cni", s.one, "rm -f "+filepath.Join(s.one.Config.RuntimeDir, "subnet.json")),
		{id: "cniMode", severity: findings.Warning, node: s.one, harm: onto(s.one.NS, "ip link add flannel.1 type vxlan id 1 dstport 8472 dev eth0"),
			undo: onto(s.one.NS, "ip link del flannel.1")},
		{id: "secrets", severity: findings.Warning, node: s.one, learns: 5 * time.Second, harm: func() error { return os.Chmod(s.one.Config.ProxyUser, 0o644) },
			undo: func() error { return os.Chmod(s.one.Config.ProxyUser, 0o600) }},
		{id: "judge", subject: "key", severity: findings.Warning, node: s.one, learns: 8 * time.Second, // reading it blocks
			harm: onto(s.one.NS, "mv "+key+" "+key+".kept", "mkfifo -m 600 "+key), undo: onto(s.one.NS, "cat "+key+".kept >"+key+" || true", "mv "+key+".kept "+key)},
	}
}

// membership are findings of what the membership says.
func (s *scene) membership() []made {
	return []made{
		{id: "no-relays", severity: findings.Warning, node: s.one, harm: s.member(s.one, func(c *lab.Cluster) { c.Relays = nil }), undo: s.back},
		{id: "relay", severity: findings.Broken, node: s.one, harm: s.member(s.one, func(c *lab.Cluster) {
			c.Relays = append(c.Relays, "/ip4/"+s.one.Addr.String()+"/tcp/4001/p2p/"+s.one.PeerID)
		}), undo: s.back},
		{id: "forward", severity: findings.Broken, node: s.router,
			harm: s.member(s.router, func(c *lab.Cluster) { c.PodCIDRs = append(slices.Clone(c.PodCIDRs), "10.99.0.0/16") }), undo: s.back},
		{id: "pods", severity: findings.Broken, node: s.router, learns: 10 * time.Second, harm: s.member(s.router, func(c *lab.Cluster) { // another block
			i := slices.IndexFunc(c.Nodes, func(m lab.Member) bool { return m.Name == s.router.Name })
			c.Nodes[i].PodCIDRs = []string{"10.244.78.0/24"}
		}), undo: s.back},
	}
}

// network are findings of what is between nodes.
func (s *scene) network() []made {
	far := s.pod3.IP4().String()
	var gone *lab.Pod
	gone, err := s.far.AddPod(s.t.Context(), "gone")
	ok(s.t, err)
	ok(s.t, gone.Serve(within(s.t, 5*time.Second)))
	signal := func(name string) func() error {
		return func() error { return s.far.Script(fmt.Sprintf("kill -%s %d", name, s.far.Agent.PID())) }
	}
	mesh := netip.MustParsePrefix(s.far.PodCIDRs[0]).Addr().Next().String()
	var pings *lab.Process
	return []made{
		{id: "route", severity: findings.Broken, node: s.one, to: []string{far}, follows: true, // from way
			harm: onto(s.one.NS, "ip route add default dev lo table 98", "ip rule add pref 1 to "+far+"/32 lookup 98"), // ours cannot come before it
			undo: onto(s.one.NS, "ip rule del pref 1", "ip route flush table 98")},
		{id: "node", severity: findings.Broken, node: s.one, to: []string{s.far.Name}, harm: onto(s.far.NS, "iptables -w -I INPUT -p icmp -j DROP"),
			undo: onto(s.far.NS, "iptables -w -D INPUT -p icmp -j DROP")},
		{id: "size", severity: findings.Broken, node: s.one, to: []string{s.far.Name}, harm: onto(s.far.NS, "iptables -w -I INPUT -p icmp -m length --length 1400: -j DROP"),
			undo: onto(s.far.NS, "iptables -w -D INPUT -p icmp -m length --length 1400: -j DROP")},
		{id: "pod", severity: findings.Broken, node: s.one, to: []string{gone.IP4().String()}, harm: func() error { return gone.Delete(s.t.Context()) }, undo: func() error {
			_, err := s.far.AddPod(s.t.Context(), "gone") // of the same name: it gets that address
			return err
		}},
		{id: "relay-refuses", severity: findings.Broken, node: s.far, learns: 40 * time.Second, harm: func() error { // full before it comes
			s.relay.Limits = map[string]int{"maxReservations": 1}
			return inOrder(signal("STOP"), s.relay.Process.Stop, s.relay.Start, func() error { return s.relay.WaitReservations(within(s.t, 60*time.Second), 1) }, signal("CONT"))()
		}, undo: func() error {
			s.relay.Limits = nil
			return inOrder(s.relay.Process.Stop, s.relay.Start, func() error {
				return lab.Until(within(s.t, 60*time.Second), time.Second, func() error { return s.far.WaitReserved(within(s.t, time.Second)) })
			})()
		}},
		{id: "no-relay-answers", severity: findings.Broken, node: s.far, alone: true, learns: 90 * time.Second, // a firewall drops everything
			harm: inOrder(s.member(s.far, func(c *lab.Cluster) {
				c.Relays = append(c.Relays, "/ip4/5.5.0.77/tcp/4501/p2p/"+freshID(s.t, s.far))
			}), onto(s.home.Router, "iptables -w -I FORWARD -j DROP")),
			undo: inOrder(onto(s.home.Router, "iptables -w -D FORWARD -j DROP"), s.back, func() error {
				return lab.Until(within(s.t, 90*time.Second), time.Second, func() error { return s.far.WaitReserved(within(s.t, time.Second)) })
			})},
		{id: "peer-unreachable", subject: s.far.Name, severity: findings.Warning, node: s.watcher, learns: 60 * time.Second, harm: inOrder(signal("STOP"), func() (err error) {
			pings, err = s.watcher.NS.Start("pings", "ping", "-q", "-i", "0.5", mesh)
			return err
		}), undo: inOrder(signal("CONT"), func() error {
			err := lab.Until(within(s.t, 60*time.Second), time.Second, func() error { return s.watcher.Ping(s.t.Context(), mesh, time.Second) })
			pings.Kill()
			return err
		})},
	}
}

// strangers are findings of who is refused: they stay for ten minutes, as nobody knows when the last one has come.
func (s *scene) strangers() []made {
	gateway := func(n *lab.Node) string { return netip.MustParsePrefix(n.PodCIDRs[0]).Addr().Next().String() }
	come := func(n *lab.Node) func() error {
		return func() error {
			_, err := s.far.NS.Start("pings", "ping", "-q", "-i", "0.5", "-c", "20", gateway(n))
			return err
		}
	}
	return []made{
		{id: "banned", severity: findings.Warning, node: s.router, learns: 20 * time.Second, stays: true,
			harm: inOrder(s.member(s.router, func(c *lab.Cluster) { c.Banned = []string{s.far.Name} }), come(s.router)), undo: s.back},
	}
}

// dead has an agent end: status and doctor there say so, and so does doctor elsewhere; the map and the plugin have no news of it.
func (s *scene) dead(t *testing.T, show *shown) {
	s.far.Agent.Kill()
	for _, command := range []string{"status", "doctor"} {
		out, stderr, err := s.far.AgentCommand(within(t, 30*time.Second), command, "--runtime-dir", s.far.Config.RuntimeDir)
		if exit := (*lab.ExitError)(nil); !errors.As(err, &exit) || exit.Code != 1 || !strings.Contains(out+stderr, "no agent is running here") {
			t.Errorf("%s: %v %s%s", command, err, out, stderr)
		}
	}
	ok(t, lab.Until(within(t, 60*time.Second), time.Second, func() error {
		line, all := verdict(t, s.one, "doctor", s.far.Name)
		names := map[string]bool{}
		for _, f := range all {
			names[f.ID] = names[f.ID] || f.Severity == findings.Broken
		}
		if !names["agent"] || !names["path"] || !strings.HasPrefix(line, "TROUBLE: ") {
			return fmt.Errorf("%s %+v", line, all)
		}
		t.Log(line)
		return nil
	}))
	await(t, 25*time.Second, "the map has no news of it", func() bool {
		nodes, _ := show.page.now(t)
		return nodes[s.far.Name].State != "well"
	})
	text, _ := show.pluginSays(t, s.one.Name)
	contains(t, text, "TROUBLE on ", "not reached: ")
}
