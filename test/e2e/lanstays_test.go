package e2e

import (
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestLANPathStays: two nodes of one LAN keep the native path, with traffic and without, for longer than any of its timers.
func TestLANPathStays(t *testing.T) {
	tier.Long(t)
	beside(t)
	p := newLANPair(t, nil)
	one, two := p.pod1, p.pod2
	curlPods(t, one, two, 10*time.Second)
	p.both(t, 10*time.Second, "native")
	for start := time.Now(); time.Since(start) < 3*time.Minute; time.Sleep(time.Second) { // sleep: the path stays meanwhile
		if time.Since(start)%(40*time.Second) < 20*time.Second {
			curlPods(t, one, two, time.Second)
		}
		for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
			st, err := n[0].Status(t.Context())
			ok(t, err)
			if to := st.Peer(n[1].Name); to.Path != "native" {
				t.Errorf("%v after it was native: %s to %s: %s", time.Since(start).Round(time.Second), to.Path, n[1].Name, to.Reason)
			}
		}
	}
}
