package e2e

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
	"edgemesh/test/tier"
)

// TestNodeThroughput: between nodes by their mesh addresses a transfer is as fast as between their pods, in turn over the
// same path.
func TestNodeThroughput(t *testing.T) {
	tier.Long(t)
	p := newPair(t, lab.EIM, lab.EIM)
	curlPods(t, p.pod1, p.pod2, 5*time.Second)
	_, err := p.n1.WaitPath(within(t, 20*time.Second), p.n2, "punched")
	ok(t, err)
	server, err := p.n2.NS.Serve(within(t, 5*time.Second), p.n2.Name)
	ok(t, err)
	t.Cleanup(func() { ok(t, server.Stop()) })
	ends := [2]struct {
		from *lab.NS
		to   netip.Addr
		mbps []float64
	}{{from: p.pod1.NS, to: p.pod2.IP4()}, {from: p.n1.NS, to: gateway(p.pod2.IP4())}}
	for range 5 {
		for i := range ends {
			var b lab.Bulk
			ok(t, ends[i].from.Tool(within(t, 30*time.Second), &b, "bulk", "--bytes", "400000000", "--sum=false", ends[i].to.String()))
			ends[i].mbps = append(ends[i].mbps, b.Mbps)
		}
	}
	for i := range ends {
		slices.Sort(ends[i].mbps)
	}
	ratio := ends[1].mbps[2] / ends[0].mbps[2]
	t.Logf("pods %.0f Mbit/s, nodes %.0f Mbit/s: %.2f", ends[0].mbps, ends[1].mbps, ratio)
	if ratio < 0.95 {
		t.Errorf("nodes have %.2f of the pods' throughput, want 0.95", ratio)
	}
}

// TestGuessedThroughput: a path over a guessed port carries what a punched one over the same transport does, from a site
// whose line has 100 Mbit/s.
func TestGuessedThroughput(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	relay(t, l, "relay-2")
	from := at(t, l, "edge-1", lab.EIM)
	_, err := l.InsertLink(t.Context(), from.Site.Router, link.Both(link.Direction{Rate: 100e6, Delay: 10 * time.Millisecond, QueueTime: 50 * time.Millisecond}), 1)
	ok(t, err)
	// Ports are guessed for QUIC, so the other pair has no TCP either.
	to := []*lab.Node{at(t, l, "punched", lab.EIM), at(t, l, "guessed", lab.Symmetric)}
	ok(t, to[0].Site.Router.Script("iptables -w -I FORWARD -p tcp -d "+from.Site.WAN.String()+" -j DROP", "iptables -w -I FORWARD -p tcp -s "+from.Site.WAN.String()+" -j DROP"))
	startAll(t, l)
	here := pod(t, from, "here")
	var there []*lab.Pod
	for _, n := range to {
		p := pod(t, n, "there")
		there = append(there, p)
		curlPods(t, here, p, 10*time.Second)
	}
	mbps := make([][]float64, len(to))
	for range 5 {
		for i, n := range to {
			_, err := from.WaitPath(within(t, 40*time.Second), n, "punched")
			ok(t, err)
			_, err = from.WaitTransport(within(t, 20*time.Second), n, "sealed")
			ok(t, err)
			var b lab.Bulk
			ok(t, here.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", "40000000", there[i].IP4().String()))
			mbps[i] = append(mbps[i], b.Mbps)
			if !b.Match {
				t.Errorf("%s: what came is not what was sent", n.Name)
			}
		}
	}
	t.Logf("punched %.0f Mbit/s, guessed %.0f Mbit/s", mbps[0], mbps[1])
	if ratio := median(mbps[1]) / median(mbps[0]); ratio < 0.9 {
		t.Errorf("the guessed path has %.2f of the punched one's throughput, want 0.9", ratio)
	}
}
