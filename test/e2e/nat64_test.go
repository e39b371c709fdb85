package e2e

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// A node with IPv6 alone reaches a relay that has an IPv4 literal through its network's NAT64, however that says its prefix, and
// gets direct paths to IPv4 nodes.
func TestNAT64(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	open := cloud(t, l, "cloud-1", lab.NodeOptions{})
	behind := node(t, site(t, l, "far", lab.EIM), "edge-2", lab.NodeOptions{})
	s := site(t, l, "six", lab.EIM)
	n := node(t, s, "edge-1", lab.NodeOptions{})
	ok(t, s.IPv6Only())
	startRelays(t, l)
	ok(t, open.Start())
	ok(t, behind.Start())
	ready(t, open, behind)
	to, cone := pod(t, open, "to"), pod(t, behind, "cone")
	ok(t, n.WriteConfig())

	var from *lab.Pod
	own := netip.MustParsePrefix("2a05:6:64::/96")
	for _, x := range []struct {
		what   string
		prefix netip.Prefix
		names  []string   // the name server's options
		ras    [][]string // those of router advertisements
		within time.Duration
	}{
		{"DNS64", own, []string{"--dns64", own.String()}, nil, 3 * time.Second},
		{"router advertisements", own, nil, [][]string{{"--nat64", own.String()}}, 3 * time.Second},
		{"the well-known prefix", netip.MustParsePrefix("64:ff9b::/96"), nil, nil, 6 * time.Second},
		{"DNS64, in a flood of forged router advertisements", own, []string{"--dns64", own.String()},
			[][]string{{"--nat64", "2a05:6:bad::/96", "--every", "1ms"}}, 10 * time.Second},
	} {
		nat64, err := s.StartNAT64(x.prefix)
		ok(t, err)
		helpers := []*lab.Process{nat64}
		dns, err := s.Router.StartTool("dns", append(append([]string{"names"}, x.names...), lab.Router6, r.Addr)...)
		ok(t, err)
		helpers = append(helpers, dns)
		for _, args := range x.ras {
			ra, err := s.Router.StartTool("ra", append([]string{"ra", "--iface", "lan0"}, args...)...)
			ok(t, err)
			helpers = append(helpers, ra)
		}
		elapsed := stopwatch(t)
		n.Agent, err = n.NS.Start(n.Name, append(resolver(t, n, lab.Router6), n.AgentPath(), "run", "--config", n.ConfigFile(), "--verbose")...)
		ok(t, err)
		ok(t, n.WaitPods(within(t, 20*time.Second)))
		if from == nil {
			from = pod(t, n, "from")
		}
		ok(t, lab.Until(within(t, 20*time.Second), 20*time.Millisecond, func() error {
			return tryCurl(t.Context(), from.NS, to, pairs(from, to)[0][1], pairs(from, to)[0][0], fair.Slowest*time.Second)
		}))
		took := elapsed()
		if t.Logf("by %s: first curl after %v", x.what, took); took > x.within && tier.IsLong() { // a figure
			t.Errorf("by %s: the first curl took %v, want at most %v", x.what, took, x.within)
		}
		curlPods(t, from, cone, 5*time.Second)
		for _, far := range []struct {
			n    *lab.Node
			path string
		}{{open, "direct"}, {behind, "punched"}} {
			if p, err := n.WaitPath(within(t, 20*time.Second), far.n, far.path); err != nil {
				t.Errorf("by %s: %v", x.what, err)
			} else if !p.NAT64 {
				t.Errorf("by %s: the path to %s is not said to lead through NAT64: %+v", x.what, far.n.Name, p)
			} else {
				t.Logf("%s: %s over %s at %s", far.n.Name, p.Path, p.Transport, p.Endpoint)
			}
		}
		ok(t, n.Agent.Stop())
		for _, p := range helpers {
			ok(t, p.Stop())
		}
		ok(t, s.Router.Script("ip link del nat64"))
		_ = os.Remove(filepath.Join(n.Config.StateDir, "addresses.json"))
	}
}

// A site whose uplink changes from IPv4 to IPv6 with NAT64 and back keeps its flows. The relay has a name, and the agent runs in a
// pod whose copy of resolv.conf is from before; each uplink has a name server of its own, and the host knows which.
func TestNAT64Failover(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	far := node(t, site(t, l, "far", lab.EIM), "edge-2", lab.NodeOptions{})
	s := site(t, l, "near", lab.EIM)
	n := node(t, s, "edge-1", lab.NodeOptions{})
	prefix := netip.MustParsePrefix("2a05:6:64::/96")
	_, err := s.StartNAT64(prefix)
	ok(t, err)
	dns, at, err := l.AddStranger("dns", 1)
	ok(t, err)
	_, err = dns.Start("dns-4", n.ToolPath(), "names", at.String(), r.Addr)
	ok(t, err)
	_, err = s.Router.StartTool("dns-6", "names", "--dns64", prefix.String(), lab.Router6, r.Addr)
	ok(t, err)
	startRelays(t, l)
	ok(t, far.Start())
	ready(t, far)
	byName(t, l, n, r)
	ok(t, n.WriteConfig())
	run, nameserver := inPod(t, n, at.String())
	nameserver(at.String())
	startBy(t, n, run)
	ok(t, n.WaitPods(within(t, 20*time.Second)))
	from, to := pod(t, n, "from"), pod(t, far, "to")
	curlPods(t, from, to, 5*time.Second)
	_, err = n.WaitPath(within(t, 20*time.Second), far, "punched")
	ok(t, err)
	stop := lasting(t, from.NS, "tcp", to.IP4())
	for _, x := range []struct {
		what   string
		do     func() error
		server string
		within float64
		nat64  bool
	}{{"from IPv4 to NAT64", s.IPv6Only, lab.Router6, 3000, true}, {"back to IPv4", s.IPv4Only, at.String(), 2000, false}} {
		wait := pings(t, from, to.IP4(), 8*time.Second)
		ok(t, x.do())
		nameserver(x.server)
		gap := wait()
		if t.Logf("%s: a gap of %.0f ms", x.what, gap); gap > x.within {
			t.Errorf("%s: a gap of %.0f ms, want at most %.0f", x.what, gap, x.within)
		}
		if p, err := n.WaitPath(within(t, 20*time.Second), far, "punched"); err != nil || p.NAT64 != x.nat64 {
			t.Errorf("%s: %s over %s at %s, NAT64 %v: %v", x.what, p.Path, p.Transport, p.Endpoint, p.NAT64, err)
		}
	}
	if g, err := stop(); err != nil || g.Lost > 0 {
		t.Errorf("the TCP flow: %+v: %v", g, err)
	}
}

// Of two nodes one has IPv4 alone, behind a NAT, and one IPv6 alone: they are relayed, say why, and do not punch.
func TestNoIPVersionInCommon(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	r.Listen = []string{"/ip6/::/tcp/4501", "/ip6/::/udp/4501/quic-v1"}
	for _, a := range []string{"/ip6/2a05:5:0:5::5/tcp/4501/p2p/", "/ip6/2a05:5:0:5::5/udp/4501/quic-v1/p2p/"} {
		l.Cluster.Relays = append(l.Cluster.Relays, a+r.PeerID)
	}
	four := node(t, site(t, l, "four", lab.EIM), "edge-1", lab.NodeOptions{})
	six := cloud(t, l, "edge-2", lab.NodeOptions{})
	ok(t, six.Script("ip -4 addr flush dev wan0"))
	startAll(t, l)
	from, to := pod(t, four, "from"), pod(t, six, "to")
	curlPods(t, from, to, 5*time.Second)
	wait := pings(t, from, to.IP4(), 10*time.Second)
	wait()
	for _, x := range [][2]*lab.Node{{four, six}, {six, four}} {
		p, err := x[0].WaitPath(within(t, 5*time.Second), x[1], "relayed")
		if ok(t, err); !strings.Contains(p.Reason, "no IP version in common") || strings.Contains(p.Reason, "attempt") {
			t.Errorf("%s: %s", x[0].Name, p.Reason)
		}
		out, _, err := x[0].AgentCommand(t.Context(), "status", "--json", "--runtime-dir", x[0].Config.RuntimeDir)
		ok(t, err)
		if !strings.Contains(out, `"tried": []`) {
			t.Errorf("%s has punched: %s", x[0].Name, out)
		}
	}
	ok(t, six.Script("ip addr add "+six.Addr.String()+"/16 dev wan0", "ip route add default via "+lab.InternetAddr))
	elapsed := stopwatch(t)
	curlPods(t, from, to, 5*time.Second)
	_, err := four.WaitPath(within(t, 15*time.Second), six, "direct", "punched")
	ok(t, err)
	t.Logf("with IPv4: a direct path after %v", elapsed())
}
