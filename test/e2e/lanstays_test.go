package e2e

import (
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// TestLANPathStays: two nodes of one LAN keep the native path, with traffic and without, for longer than any of its timers, and
// prove it seldom without.
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
	// Two nodes whose pods say nothing prove their three paths seldom, in each direction every 16 s.
	time.Sleep(105 * time.Second) // sleep: 30 s after traffic, as long after the peer's word of its own, and as long again
	frames := func() (n int) {
		t.Helper()
		out, err := p.n1.Run(t.Context(), "awk", "$1 == \""+p.n1.Uplink+":\" {print $3}", "/proc/net/dev")
		ok(t, err)
		_, err = fmt.Sscan(out, &n)
		ok(t, err)
		return n
	}
	before := frames()
	time.Sleep(30 * time.Second) // sleep: what is counted
	if n := frames() - before; n > 80 {
		t.Errorf("%d frames in 30 s without traffic", n)
	} else {
		t.Logf("%d frames in 30 s without traffic", n)
	}
}
