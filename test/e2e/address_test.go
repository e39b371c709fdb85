package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestMeshAddresses: by its mesh address each node is reached from other nodes and from pods, over every kind of path, by
// TCP, UDP and ICMP. Who sends is seen: a pod under its own address, a node under its own mesh address.
func TestMeshAddresses(t *testing.T) {
	beside(t)
	strict := func(t *testing.T, nodes ...*lab.Node) {
		for _, n := range nodes {
			for _, iface := range []string{"all", "default", n.Uplink} {
				ok(t, n.Script("sysctl -qw net.ipv4.conf."+iface+".rp_filter=1"))
			}
		}
	}
	t.Run("tunnel", func(t *testing.T) {
		p := newPair(t, lab.EIM, "")
		strict(t, p.n1, p.n2)
		meshAddresses(t, p.pod1, p.pod2)
		nodeIP(t, p.n1)
	})
	for kind, lan := range map[string]map[string]any{"native": nil, "vxlan": {"native": false}} {
		t.Run(kind, func(t *testing.T) {
			p := newLANPair(t, func(p *lanPair) {
				p.n1.Config.LAN, p.n2.Config.LAN = lan, lan
				strict(t, p.n1, p.n2)
			})
			curlPods(t, p.pod1, p.pod2, 3*time.Second)
			p.both(t, 20*time.Second, kind)
			meshAddresses(t, p.pod1, p.pod2)
			p.both(t, time.Second, kind)
		})
	}
}

// TestMeshAddressIPv6: a node with an IPv6 block alone, behind a NAT without IPv6, is reached by its mesh address, and reaches
// others by theirs.
func TestMeshAddressIPv6(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	const block = "fd44:44:0:66::/64"
	six := node(t, site(t, l, "site-a", lab.EIM), "six", lab.NodeOptions{PodCIDRs: []string{block}})
	both := cloud(t, l, "both", lab.NodeOptions{})
	startAll(t, l)
	ends := []struct {
		ns   *lab.NS
		addr netip.Addr
	}{{six.NS, netip.MustParsePrefix(block).Addr().Next()}, {both.NS, netip.MustParsePrefix(both.PodCIDRs[1]).Addr().Next()}}
	st, err := six.Status(t.Context())
	ok(t, err)
	if !slices.Equal(st.Addresses, []string{ends[0].addr.String()}) {
		t.Errorf("addresses %v in status, want %s", st.Addresses, ends[0].addr)
	}
	for i, to := range ends {
		server, err := to.ns.Serve(within(t, 5*time.Second), to.ns.Name)
		ok(t, err)
		t.Cleanup(func() { ok(t, server.Stop()) })
		from := ends[1-i]
		ok(t, reachNode(t, from.ns, to.ns, from.addr, to.addr))
	}
	out, stderr, err := six.AgentCommand(within(t, 5*time.Second), "node-ip", "--config", six.ConfigFile())
	if err != nil || out != ends[0].addr.String()+"\n" {
		t.Errorf("node-ip: %q, %v %s", out, err, stderr)
	}
}

// meshAddresses tries the mesh addresses of two pods' nodes from both nodes and both pods.
func meshAddresses(t *testing.T, pods ...*lab.Pod) {
	t.Helper()
	type end struct {
		ns    *lab.NS
		addrs []netip.Addr // IPv4, IPv6
	}
	var senders, nodes []end
	for _, p := range pods {
		at := []netip.Addr{gateway(p.IP4()), gateway(p.IP6())}
		st, err := p.Node.Status(t.Context())
		ok(t, err)
		if !slices.Equal(st.Addresses, []string{at[0].String(), at[1].String()}) {
			t.Errorf("%s: addresses %v in status, want %v", p.Node.Name, st.Addresses, at)
		}
		server, err := p.Node.NS.Serve(within(t, 5*time.Second), p.Node.Name)
		ok(t, err)
		t.Cleanup(func() { ok(t, server.Stop()) })
		nodes = append(nodes, end{p.Node.NS, at})
		senders = append(senders, end{p.Node.NS, at}, end{p.NS, []netip.Addr{p.IP4(), p.IP6()}})
	}
	for _, to := range nodes {
		for _, from := range senders {
			for v, addr := range to.addrs {
				if from.ns == to.ns {
					continue
				}
				if err := reachNode(t, from.ns, to.ns, from.addrs[v], addr); err != nil {
					t.Errorf("%s → %s at %s: %v", from.ns.Name, to.ns.Name, addr, err)
				}
			}
		}
	}
}

// reachNode wants answers of a node by all protocols, and that it has seen source.
func reachNode(t *testing.T, from, to *lab.NS, source, addr netip.Addr) error {
	ctx := within(t, 5*time.Second)
	r, err := from.Get(ctx, addr, 5*time.Second)
	if err != nil {
		return err
	}
	if r.Client != source {
		return fmt.Errorf("TCP is seen from %s, want %s", r.Client, source)
	}
	if err := from.Ping(ctx, addr.String(), 2*time.Second); err != nil {
		return err
	}
	before, err := datagrams(t, to, source)
	if err != nil {
		return err
	}
	const count = 5 // the socket that sends them takes answers of addr alone
	var u lab.Echoed
	if err := from.Tool(ctx, &u, "udp", "--size", "9000", "--count", fmt.Sprint(count), addr.String()); err != nil {
		return fmt.Errorf("UDP: %d of %d came back: %w", u.Received, u.Sent, err)
	}
	after, err := datagrams(t, to, source)
	if err == nil && after-before < count {
		err = fmt.Errorf("UDP: %d datagrams are seen from %s, want %d", after-before, source, count)
	}
	return err
}

// datagrams returns how many from source the server in a namespace has seen.
func datagrams(t *testing.T, ns *lab.NS, source netip.Addr) (int, error) {
	counts := map[string]int{}
	err := ns.Tool(t.Context(), &counts, "get", fmt.Sprintf("http://127.0.0.1:%d/seen", lab.ServePort))
	return counts[source.String()], err
}

// nodeIP wants the command to print the mesh addresses with and without a running agent, and to say what is missing.
func nodeIP(t *testing.T, n *lab.Node) {
	t.Helper()
	want := fmt.Sprintf("%s,%s\n", netip.MustParsePrefix(n.PodCIDRs[0]).Addr().Next(), netip.MustParsePrefix(n.PodCIDRs[1]).Addr().Next())
	prints := func(what string, args ...string) {
		t.Helper()
		out, stderr, err := n.AgentCommand(within(t, 5*time.Second), append([]string{"node-ip", "--config", n.ConfigFile()}, args...)...)
		if err != nil || out != want || stderr != "" {
			t.Errorf("node-ip %s: %q, want %q; %v %s", what, out, want, err, stderr)
		}
	}
	prints("while the agent runs", "--wait", "3s")
	ok(t, n.Agent.Stop())
	prints("after the agent")
	prints("after a reboot, from the snapshot", "--runtime-dir", t.TempDir())
	empty := t.TempDir()
	contains(t, refused(t, n.NS, []int{1}, n.AgentPath(), "node-ip", "--config", n.ConfigFile(), "--runtime-dir", empty, "--state-dir", empty),
		"no mesh address yet", empty)
	for _, dev := range []string{"edgemesh-br", "edgemesh-tun", "edgemesh-vx"} { // each has them
		ok(t, n.Script("ip addr flush dev "+dev+" scope global"))
	}
	contains(t, refused(t, n.NS, []int{1}, n.AgentPath(), "node-ip", "--config", n.ConfigFile(), "--wait", "300ms"), "does not have its mesh addresses yet")
	ok(t, n.Start())
	ready(t, n)
	prints("started again", "--wait", "3s")
}

// TestNodeSession: a TCP connection from node to node by the mesh address, as of ssh or kubectl exec, stays while the path
// goes from relayed over punched to native, and while an agent restarts.
func TestNodeSession(t *testing.T) {
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	a, b := site(t, l, "site-a", lab.EIM), site(t, l, "site-b", lab.EIM)
	n1, n2 := node(t, a, "edge-1", lab.NodeOptions{}), node(t, b, "edge-2", lab.NodeOptions{})
	undo, err := a.Block(b)
	ok(t, err)
	startAll(t, l)
	server, err := n2.NS.Serve(within(t, 5*time.Second), n2.Name)
	ok(t, err)
	t.Cleanup(func() { ok(t, server.Stop()) })
	to := netip.MustParsePrefix(n2.PodCIDRs[0]).Addr().Next()
	ok(t, lab.Until(within(t, 10*time.Second), 50*time.Millisecond, func() error { return n1.NS.Ping(t.Context(), to.String(), time.Second) }))
	flowing := lasting(t, n1.NS, "tcp", to)
	path := func(kinds ...string) {
		t.Helper()
		if _, err := n1.WaitPath(within(t, 20*time.Second), n2, kinds...); err != nil {
			t.Error(err)
		}
		time.Sleep(500 * time.Millisecond) // sleep: of the session on that path
	}
	path("relayed")
	ok(t, undo())
	path("punched")
	ok(t, l.Wire(n1.NS, "eth1", "10.99.0.1/24", n2.NS, "eth1", "10.99.0.2/24"))
	path("native")
	ok(t, n2.Agent.Stop())
	ok(t, n2.Start())
	ready(t, n2)
	path("native")
	g, err := flowing()
	if err != nil || g.Lost > 0 || g.Doubled > 0 {
		t.Errorf("session: %+v: %v", g, err)
	}
	t.Logf("the session stayed; longest gap %.0f ms, of which %.0f count", g.GapMs, g.FairMs)
}

// TestMeshMetrics: with metricsAddress mesh:9469 other nodes and pods scrape the agent at its mesh address; on the LAN and
// on other addresses nothing listens.
func TestMeshMetrics(t *testing.T) {
	beside(t)
	p := newLANPair(t, func(p *lanPair) { p.n2.Config.MetricsAddress = "mesh:9469" })
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	for _, from := range []*lab.NS{p.n1.NS, p.pod1.NS} {
		for _, at := range []netip.Addr{gateway(p.pod2.IP4()), gateway(p.pod2.IP6())} {
			out, err := from.Run(within(t, 5*time.Second), "curl", "-gsS", "-m", "3", "http://"+netip.AddrPortFrom(at, 9469).String()+"/metrics")
			if err != nil || !strings.Contains(out, "edgemesh_membership_good 1") {
				t.Errorf("%s → %s: %v: %.100s", from.Name, at, err, out)
			}
		}
	}
	out, err := p.n2.Run(t.Context(), "curl", "-sS", "-m", "3", "http://127.0.0.1:9469/healthz")
	if err != nil || strings.TrimSpace(out) != "ok" {
		t.Errorf("on 127.0.0.1: %q, %v", out, err)
	}
	if out, err := p.n1.Run(t.Context(), "curl", "-sS", "-m", "3", "http://"+p.n2.Addr.String()+":9469/healthz"); err == nil {
		t.Errorf("on the LAN: %q", out)
	}
}
