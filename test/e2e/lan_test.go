package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// lanPair is two nodes on one LAN, each with a pod.
type lanPair struct {
	lab        *lab.Lab
	site       *lab.Site
	n1, n2     *lab.Node
	pod1, pod2 *lab.Pod
}

// newLANPair starts two nodes on one LAN; prepare runs before the agents.
func newLANPair(t *testing.T, prepare func(*lanPair)) *lanPair {
	t.Helper()
	l := newLab(t)
	relay(t, l, "relay")
	p := &lanPair{lab: l, site: site(t, l, "site", lab.EIM)}
	p.n1, p.n2 = node(t, p.site, "edge-1", lab.NodeOptions{}), node(t, p.site, "edge-2", lab.NodeOptions{})
	if prepare != nil {
		prepare(p)
	}
	startAll(t, l)
	sniffed(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	return p
}

// both waits until each node's path to the other is of a kind.
func (p *lanPair) both(t *testing.T, wait time.Duration, kinds ...string) {
	t.Helper()
	ctx := within(t, wait)
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		st, err := n[0].WaitPath(ctx, n[1], kinds...)
		ok(t, err)
		t.Logf("%s → %s: %s, transport %s, rtt %v ms, reason %q", n[0].Name, n[1].Name, st.Path, st.Transport,
			value(st.RTTMs), st.Reason)
	}
}

func value(f *float64) float64 {
	if f == nil {
		return -1
	}
	return *f
}

// port is the name of a node's port of the LAN's bridge.
func port(t *testing.T, n *lab.Node) string {
	t.Helper()
	index, err := n.Run(t.Context(), "cat", "/sys/class/net/"+n.Uplink+"/iflink")
	ok(t, err)
	out, err := n.Site.Router.Run(t.Context(), "ip", "-o", "link")
	ok(t, err)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); f[0] == strings.TrimSpace(index)+":" {
			name, _, _ := strings.Cut(f[1], "@")
			return strings.TrimSuffix(name, ":")
		}
	}
	t.Fatalf("no port of %s in:\n%s", n.Name, out)
	return ""
}

// onWire counts the packets on a node's uplink that match a filter, until at least
// want came or, when none is wanted, for a second after f.
func (p *lanPair) onWire(t *testing.T, n *lab.Node, filter string, want int, f func()) int {
	t.Helper()
	d, err := n.NS.Start("dump", "tcpdump", "--immediate-mode", "-lnni", n.Uplink, filter)
	ok(t, err)
	ok(t, lab.Until(within(t, 5*time.Second), 20*time.Millisecond, func() error {
		if !strings.Contains(d.Tail(20), "listening on") {
			return fmt.Errorf("tcpdump does not listen yet")
		}
		return nil
	}))
	f()
	count := 0
	ctx := within(t, 5*time.Second)
	if want == 0 {
		ctx = within(t, time.Second)
	}
	_ = lab.Until(ctx, 20*time.Millisecond, func() error {
		if count = strings.Count(d.Tail(1000), " > "); want == 0 || count < want {
			return fmt.Errorf("%d packets", count)
		}
		return nil
	})
	ok(t, d.Stop())
	return count
}

// TestNativeOnTheLAN: the first packet goes through the tunnel, and soon none does.
func TestNativeOnTheLAN(t *testing.T) {
	beside(t)
	p := newLANPair(t, nil)
	start := time.Now()
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.both(t, 15*time.Second, "native")
	t.Logf("native on both sides %d ms after the first packet", time.Since(start).Milliseconds())
	for _, pods := range [][2]*lab.Pod{{p.pod1, p.pod2}, {p.pod2, p.pod1}} {
		curlPods(t, pods[0], pods[1], 3*time.Second)
		curl(t, pods[0].Node.NS, pods[1], pods[1].IP4(), gateway(pods[0].IP4()), 3*time.Second)
	}
	n := p.onWire(t, p.n1, "icmp and net 10.244.0.0/16", 2,
		func() { ok(t, p.pod1.Ping(t.Context(), p.pod2.IP4().String(), 2*time.Second)) })
	if n < 2 {
		t.Errorf("%d packets of a ping between the pods on the LAN, want 2", n)
	}
}
