package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
	"edgemesh/test/tier"
)

// TestSealedPackets holds that sealed packets with repair carry flows of TCP and datagrams on a line that loses 1 %, while an address changes
// under them, and that TCP carries where one end has them off.
func TestSealedPackets(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	from, to, off := at(t, l, "edge-1", lab.EIM), at(t, l, "edge-2", public), at(t, l, "edge-3", lab.EIM)
	off.Config.Carrier = map[string]any{"sealed": "off"}
	_, err := l.InsertLink(t.Context(), from.Site.Router, link.Both(link.Direction{Rate: 30e6, Delay: 20 * time.Millisecond, QueueTime: 100 * time.Millisecond, Loss: .01}), 1)
	ok(t, err)
	startAll(t, l)
	here, there, older := pod(t, from, "here"), pod(t, to, "there"), pod(t, off, "older")
	for _, p := range []*lab.Pod{there, older} {
		curlPods(t, here, p, 10*time.Second)
	}
	isSealed := func() {
		t.Helper()
		for _, pair := range [][2]*lab.Node{{from, to}, {to, from}} {
			_, err := pair[0].WaitTransport(within(t, 30*time.Second), pair[1], "sealed")
			ok(t, err)
		}
	}
	isSealed()
	metrics, err := from.Run(t.Context(), "curl", "-sS", "-m", "2", "http://127.0.0.1:9469/metrics")
	ok(t, err)
	contains(t, metrics, `edgemesh_peer_transports{transport="sealed"} 1`)
	pings := lasting(t, here.NS, "udp", there.IP4())
	const bytes = 16_000_000 // 13 s
	sent := make([]lab.Bulk, 2)
	done := make(chan error, len(sent))
	for i := range sent {
		ctx := within(t, 150*time.Second)
		go func() { done <- bulk(ctx, [2]*lab.Pod{here, there}, i, &sent[i], bytes) }()
	}
	time.Sleep(5 * time.Second) // sleep: of the transfer before the change
	ok(t, from.Site.SetWAN(netip.AddrFrom4([4]byte{5, 5, 1, 100})))
	for range sent {
		ok(t, <-done)
	}
	for i, s := range sent {
		slices.SortFunc(s.Silences, func(a, b lab.Silence) int { return int(b.Ms - a.Ms) })
		if !s.Match || s.Bytes != bytes {
			t.Errorf("flow %d: %+v", i, s)
		}
		if len(s.Silences) > 0 {
			t.Logf("flow %d: silent for %.0f ms", i, s.Silences[0].Ms)
		}
	}
	g, err := pings()
	if err != nil || g.Received == 0 || g.GapMs > 10_000 {
		t.Errorf("datagrams: %+v: %v", g, err)
	}
	t.Logf("datagrams: %d of %d lost, longest gap %.0f ms, p50 %.0f, p99 %.0f", g.Lost, g.Sent, g.GapMs, g.P50Ms, g.P99Ms)
	isSealed()
	// Without UDP the lanes fall back to TCP, with what had not arrived.
	messages := lasting(t, here.NS, "tcp", there.IP4())
	ok(t, from.Site.Router.Script("iptables -I FORWARD -p udp -j DROP"))
	_, err = from.WaitTransport(within(t, 30*time.Second), to, "tcp", "relay/tcp")
	ok(t, err)
	curlPods(t, here, there, 10*time.Second)
	m, err := messages()
	if err != nil || m.Lost > 0 || m.Doubled > 0 || m.Reordered > 0 || m.GapMs > 15_000 {
		t.Errorf("messages: %+v: %v", m, err)
	}
	t.Logf("messages: longest gap %.0f ms", m.GapMs)
	curlPods(t, here, older, 10*time.Second) // the move ended their path, and nothing was sent since
	st, err := from.Status(within(t, 5*time.Second))
	ok(t, err)
	if p := st.Peer(off.Name); p.Transport == "sealed" || p.Path == "idle" {
		t.Errorf("the peer that has them off: %s over %s", p.Path, p.Transport)
	}
}

// bulk has one of two pods send to the other.
func bulk(ctx context.Context, pods [2]*lab.Pod, from int, sent *lab.Bulk, bytes int) error {
	return pods[from].Tool(ctx, sent, "bulk", "--bytes", fmt.Sprint(bytes), "--mbps", "10", pods[1-from].IP4().String())
}

// TestPolicedUDP holds that a flow ends on TCP where the network gives UDP a tenth of the line, with at least half of what the line has, and
// that status says why.
func TestPolicedUDP(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	from, to := at(t, l, "edge-1", lab.EIM), at(t, l, "edge-2", public)
	_, err := l.InsertLink(t.Context(), from.Site.Router, link.Both(link.Direction{Rate: 40e6, Delay: 15 * time.Millisecond, QueueTime: 100 * time.Millisecond}), 1)
	ok(t, err)
	ok(t, from.Site.Router.Script("iptables -w -I FORWARD -p udp -m hashlimit --hashlimit-above 500kb/s --hashlimit-burst 500kb "+
		"--hashlimit-mode srcip --hashlimit-name udp -j DROP"))
	startAll(t, l)
	here, there := pod(t, from, "here"), pod(t, to, "there")
	curlPods(t, here, there, 10*time.Second)
	_, err = from.WaitTransport(within(t, 20*time.Second), to, "sealed")
	ok(t, err)
	var sent lab.Bulk
	done := make(chan error, 1)
	ctx := within(t, 200*time.Second)
	go func() { done <- here.Tool(ctx, &sent, "bulk", "--bytes", "90000000", there.IP4().String()) }()
	since := stopwatch(t)
	status := func() lab.PeerStatus {
		st, err := from.Status(ctx)
		ok(t, err)
		return st.Peer(to.Name)
	}
	// On a busy machine the first trials may show nothing, and the pause doubles.
	fair.Eventually(t, 90*time.Second, "TCP carries", func() error {
		if p := status(); p.Transport != "tcp" || !strings.Contains(p.Choice, "tcp carries more") {
			return fmt.Errorf("%s: %s, after %d bytes", p.Transport, p.Choice, p.TxBytes)
		}
		return nil
	})
	t.Logf("after %.0f s: %s", since().Seconds(), status().Choice)
	before := status().TxBytes
	time.Sleep(5 * time.Second) // sleep: so much is carried in that time
	if p := status(); p.Transport != "tcp" || p.TxBytes-before < 20e6/8*5 {
		t.Errorf("%s carries %.1f Mbit/s: %s", p.Transport, float64(p.TxBytes-before)*8e-6/5, p.Choice)
	}
	ok(t, <-done)
	t.Logf("%.0f Mbit/s, %.0f s, silent for %v", sent.Mbps, sent.Seconds, sent.Silences)
	if !sent.Match {
		t.Error("what came is not what was sent")
	}
}
