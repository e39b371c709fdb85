package e2e

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// TestNodeThroughput: between nodes by their mesh addresses a transfer is as fast as between their pods, in turn over the
// same path.
func TestNodeThroughput(t *testing.T) {
	slow(t)
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
