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
	l := newLab(t)
	relay(t, l, "relay")
	s := site(t, l, "site-1", lab.EIM)
	n1, n2 := node(t, s, "edge-1", lab.NodeOptions{}), node(t, s, "edge-2", lab.NodeOptions{})
	startAll(t, l)
	one, two := pod(t, n1, "one"), pod(t, n2, "two")
	curlPods(t, one, two, 10*time.Second)
	for _, n := range [][2]*lab.Node{{n1, n2}, {n2, n1}} {
		_, err := n[0].WaitPath(within(t, 10*time.Second), n[1], "native")
		ok(t, err)
	}
	for start := time.Now(); time.Since(start) < 3*time.Minute; time.Sleep(time.Second) {
		if time.Since(start)%(40*time.Second) < 20*time.Second {
			curlPods(t, one, two, time.Second)
		}
		for _, n := range [][2]*lab.Node{{n1, n2}, {n2, n1}} {
			st, err := n[0].Status(t.Context())
			ok(t, err)
			if p := st.Peer(n[1].Name); p.Path != "native" {
				t.Errorf("%v after it was native: %s to %s: %s", time.Since(start).Round(time.Second), p.Path, n[1].Name, p.Reason)
			}
		}
	}
}
