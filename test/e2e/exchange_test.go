package e2e

import (
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestAgentExchanged: an agent that takes over from another one, as in a rolling update, takes its TUN's queue, and members are told before
// that ends: of 100 pings a second one is lost in a hundred exchanges (24 exchanges: 1 of 6,400), before the queue was handed over five in each.
func TestAgentExchanged(t *testing.T) {
	tier.Long(t) // TestKubernetesUpgrade and TestUpgradeTells have the same beside an API server
	p := newPair(t, lab.EIM, lab.EIM)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.onPaths(t, 60*time.Second, "punched")
	flow := lasting(t, p.pod1.NS, "icmp", p.pod2.IP4(), "--interval", "10ms")
	const rounds = 3
	for range rounds {
		for _, n := range []*lab.Node{p.n1, p.n2} {
			time.Sleep(time.Second) // sleep: the flow at rest
			(&upgraded{}).exchange(t, n)
			p.onPaths(t, 60*time.Second, "punched")
		}
	}
	g, err := flow()
	ok(t, err)
	t.Logf("%d exchanges: %d of %d pings lost, longest gap %.0f ms", 2*rounds, g.Lost, g.Sent, g.FairMs)
	if g.Sent == 0 || g.Lost > rounds || g.FairMs > 1000 {
		t.Errorf("%d exchanges: %+v", 2*rounds, g)
	}
}
