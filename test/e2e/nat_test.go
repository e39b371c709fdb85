package e2e

import (
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// pair is one topology with a pod on each of two nodes.
type pair struct {
	lab        *lab.Lab
	n1, n2     *lab.Node
	pod1, pod2 *lab.Pod
}

// newPair makes and starts two sites with one node each, or nodes on the WAN for
// the kind "".
func newPair(t *testing.T, a, b lab.NAT) *pair {
	t.Helper()
	l := newLab(t)
	relay(t, l, "relay")
	p := &pair{lab: l}
	member := func(name string, kind lab.NAT) *lab.Node {
		if kind == "" {
			return cloud(t, l, name, lab.NodeOptions{})
		}
		return node(t, site(t, l, "site-of-"+name, kind), name, lab.NodeOptions{})
	}
	p.n1, p.n2 = member("edge-1", a), member("edge-2", b)
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	return p
}

// TestSymmetricNAT holds that two sites behind symmetric NATs stay relayed, and
// that everything works there.
func TestSymmetricNAT(t *testing.T) {
	beside(t)
	p := newPair(t, lab.Symmetric, lab.Symmetric)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	curlPods(t, p.pod2, p.pod1, 3*time.Second)
	for _, addrs := range pairs(p.pod1, p.pod2) {
		var u lab.Echoed
		if err := p.pod1.Tool(t.Context(), &u, "udp", "--size", "60000", "--count", "10",
			addrs[1].String()); err != nil {
			t.Errorf("60000 bytes relayed: %+v %v", u, err)
		}
		if err := p.pod1.Ping(t.Context(), addrs[1].String(), time.Second, "-M", "do", "-s",
			fmt.Sprint(fullPing(addrs[1]))); err != nil {
			t.Errorf("full size relayed: %v", err)
		}
	}
	var b lab.Bulk
	if err := p.pod1.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", "100000000",
		p.pod2.IP4().String()); err != nil ||
		!b.Match {
		t.Errorf("100 MB relayed: %+v %v", b, err)
	}
	t.Logf("relayed: %.0f Mbit/s with checksums", b.Mbps)
	// The attempts to do better have had time by now.
	time.Sleep(5 * time.Second)
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		st, err := n[0].WaitPath(within(t, 5*time.Second), n[1], "relayed")
		if err != nil {
			t.Error(err)
		}
		if st.Reason == "" {
			t.Errorf("%s does not say why it is relayed: %+v", n[0].Name, st)
		}
		t.Logf("%s: %s over %s because %s", n[0].Name, st.Path, st.Transport, st.Reason)
	}
	curlPods(t, p.pod1, p.pod2, 2*time.Second)

	t.Run("FlowSurvivesRelayRestart", func(t *testing.T) {
		r := p.lab.Relays[0]
		wait := flow(t, p.pod1, "tcp", 8*time.Second, p.pod2.IP4())
		time.Sleep(time.Second)
		r.Process.Kill()
		time.Sleep(time.Second)
		ok(t, r.Start())
		start := time.Now()
		if err := r.WaitReservations(within(t, 5*time.Second), 2); err != nil {
			t.Errorf("5 s after the relay's restart: %v", err)
		}
		if time.Since(start) > 3*time.Second {
			t.Logf("that was slow:\n%s", p.lab.Logs(20))
		}
		t.Logf("reservations back after %d ms", time.Since(start).Milliseconds())
		g, err := wait()
		if err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
			t.Errorf("TCP flow: %+v: %v", g, err)
		}
		t.Logf("TCP flow: longest gap %.0f ms", g.GapMs)
	})
}

// TestPunchedEveryTime starts two sites again and again: no start may need
// longer than promised.
func TestPunchedEveryTime(t *testing.T) {
	slow(t)
	p := newPair(t, lab.EIM, lab.EIM)
	for i := range 15 {
		start := time.Now()
		ctx := within(t, 10*time.Second)
		err := lab.Until(ctx, 20*time.Millisecond, func() error {
			return tryCurl(ctx, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
		})
		curled := time.Since(start)
		if err != nil || i > 0 && curled > 5*time.Second {
			t.Errorf("start %d: first curl after %v: %v", i, curled, err)
		}
		if _, err := p.n1.WaitPath(ctx, p.n2, "punched"); err != nil {
			t.Errorf("start %d: %v", i, err)
		}
		t.Logf("start %d: first curl after %d ms, punched after %d ms", i, curled.Milliseconds(),
			time.Since(start).Milliseconds())
		for _, n := range []*lab.Node{p.n1, p.n2} {
			if i%2 == 0 {
				n.Agent.Kill()
			} else {
				ok(t, n.Agent.Stop())
			}
			ok(t, n.Start())
		}
	}
}
