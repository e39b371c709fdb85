package e2e

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// worst are the longest gaps, in ms, that pings each 50 ms may see.
const (
	worstCut = 2000
	// worstDirectCut is that of a direct path. Where a second QUIC connection to the peer is open, sealed packets continue there for the 1.2 s
	// that it takes to find that dead, too: gaps are 1.2 or 2.4 s, either in half of the cuts.
	worstDirectCut = 2600
	worstBack      = 200
	worstMoved     = 5000
	worstRestart   = 3000
)

// onPaths waits until both ends are on a path.
func (p *pair) onPaths(t *testing.T, d time.Duration, kinds ...string) {
	t.Helper()
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		if _, err := n[0].WaitPath(within(t, d), n[1], kinds...); err != nil {
			t.Error(err)
		}
	}
}

// TestDirectPathCut cuts the direct path silently, and restores it. A running transfer
// continues, and its checksum is right; small flows lose nothing and keep their order.
func TestDirectPathCut(t *testing.T) {
	tier.All(t)
	p := newPair(t, lab.EIM, lab.EIM)
	a, b := p.lab.Sites[0], p.lab.Sites[1]
	var cut, back []float64
	for i := 0; remeasure(cut, worstDirectCut) || remeasure(back, worstBack); i++ {
		curlPods(t, p.pod1, p.pod2, 3*time.Second)
		p.onPaths(t, 60*time.Second, "punched")
		var bulk lab.Bulk
		transferred := make(chan error, 1)
		if i == 0 { // 60 Mbit/s, as long as the cut and what follows
			size := "120000000"
			if rounds() == 1 { // over before the path is back: it is beside one of five gaps otherwise, which has no say in the median
				size = "60000000"
			}
			ctx := within(t, 90*time.Second)
			go func() {
				transferred <- p.pod1.Tool(ctx, &bulk, "bulk", "--bytes", size, "--mbps", "60", p.pod2.IP4().String())
			}()
		} else {
			transferred <- nil
			bulk.Match = true
		}
		small := flow(t, p.pod2, "tcp", 8*time.Second, p.pod1.IP6())
		wait := pings(t, p.pod1, p.pod2.IP4(), 6*time.Second)
		undo, err := p.lab.Cut(a.WAN, b.WAN)
		ok(t, err)
		cut = append(cut, wait())
		p.onPaths(t, 3*time.Second, "relayed")
		wait = pings(t, p.pod1, p.pod2.IP4(), 5*time.Second)
		ok(t, undo())
		start := time.Now()
		gap := wait()
		for back := false; !back && time.Since(start) < time.Minute; {
			wait = pings(t, p.pod1, p.pod2.IP4(), 3*time.Second)
			gap = max(gap, wait())
			st, err := p.n1.Status(t.Context())
			ok(t, err)
			back = st.Peer(p.n2.Name).Path == "punched"
		}
		p.onPaths(t, 5*time.Second, "punched")
		t.Logf("punched again at most %.1f s after the path was", time.Since(start).Seconds())
		back = append(back, gap)
		if g, err := small(); err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
			t.Errorf("small TCP flow: %+v: %v", g, err)
		}
		if err := <-transferred; err != nil || !bulk.Match {
			t.Errorf("transfer across it: %+v: %v", bulk, err)
		}
	}
	t.Run("cut", func(t *testing.T) { held(t, cut, worstDirectCut) })
	t.Run("restored", func(t *testing.T) { held(t, back, worstBack) })
}

// TestSiteMoves gives a site another public address.
func TestSiteMoves(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newPair(t, lab.EIM, lab.EIM)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	var gaps []float64
	for i := 0; remeasure(gaps, medianMoved); i++ {
		p.onPaths(t, 60*time.Second, "punched")
		wait := pings(t, p.pod1, p.pod2.IP4(), 8*time.Second)
		ok(t, p.lab.Sites[1].SetWAN(netip.AddrFrom4([4]byte{5, 5, 2, byte(100 + i)})))
		gaps = append(gaps, wait())
		p.onPaths(t, 30*time.Second, "punched")
	}
	heldAll(t, gaps, worstMoved)
	held(t, gaps, medianMoved)
}

// TestAgentRestarts kills an agent and starts it again immediately.
func TestAgentRestarts(t *testing.T) {
	tier.Long(t) // TestTwoSites has one restart
	p := newPair(t, lab.EIM, lab.EIM)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	var gaps []float64
	for remeasure(gaps, worstRestart) {
		p.onPaths(t, 60*time.Second, "punched")
		wait := pings(t, p.pod1, p.pod2.IP4(), 8*time.Second)
		p.n2.Agent.Kill()
		ok(t, p.n2.Start())
		gaps = append(gaps, wait())
	}
	held(t, gaps, worstRestart)
}

// TestSleep stops an agent for a minute (a short one unless the whole suite runs),
// as a host that sleeps, and resumes it.
func TestSleep(t *testing.T) {
	tier.All(t)
	beside(t)
	asleep := 8 * time.Second
	if rounds() > 1 {
		asleep = time.Minute
	}
	p := newPair(t, lab.EIM, lab.EIM)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.onPaths(t, 10*time.Second, "punched")
	ok(t, syscall.Kill(p.n2.Agent.PID(), syscall.SIGSTOP))
	time.Sleep(asleep) // sleep: the process sleeps
	ok(t, syscall.Kill(p.n2.Agent.PID(), syscall.SIGCONT))
	start := time.Now()
	ctx := within(t, 5*time.Second)
	err := lab.Until(ctx, 20*time.Millisecond, func() error {
		return tryCurl(ctx, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
	})
	if err != nil {
		t.Errorf("after %v of sleep: %v", asleep, err)
	}
	t.Logf("answers again after %d ms", time.Since(start).Milliseconds())
	curlPods(t, p.pod2, p.pod1, 2*time.Second)
	p.onPaths(t, 30*time.Second, "punched")
	t.Logf("punched again after %d ms", time.Since(start).Milliseconds())
}

// TestRebinding has a router forget all its connections, and then boot: its NAT is
// gone for some seconds, and remembers nothing.
func TestRebinding(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newPair(t, lab.EIM, lab.EIM)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	p.onPaths(t, 10*time.Second, "punched")
	router := p.lab.Sites[1].Router
	t.Run("forgets", func(t *testing.T) {
		var gaps []float64
		for remeasure(gaps, worstCut) {
			wait := pings(t, p.pod1, p.pod2.IP4(), 6*time.Second)
			ok(t, router.Script("conntrack -F"))
			gaps = append(gaps, wait())
			p.onPaths(t, 30*time.Second, "punched")
		}
		held(t, gaps, worstCut)
	})
	t.Run("boots", func(t *testing.T) {
		tier.Long(t)
		const away = 5 * time.Second
		wait := pings(t, p.pod1, p.pod2.IP4(), away+10*time.Second)
		ok(t, router.Script("ip link set wan0 down", "conntrack -F"))
		time.Sleep(away) // sleep: the router is off
		ok(t, router.Script("ip link set wan0 up", "ip route replace default via "+lab.InternetAddr))
		gap := wait()
		t.Logf("gap %.0f ms, of which the router was off for %d", gap, away.Milliseconds())
		if gap > float64(away.Milliseconds())+worstMoved {
			t.Errorf("gap %.0f ms after %v without a router", gap, away)
		}
		p.onPaths(t, 60*time.Second, "punched")
	})
}
