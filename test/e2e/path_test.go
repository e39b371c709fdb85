package e2e

import (
	"sync"
	"testing"
	"time"

	"edgemesh/test/lab"
)

// TestBulkFromFirstPacket sends 200 MB each way as fast as it gets, beginning
// with the first packet between two idle sites: the path moves from relayed to
// punched under full load.
func TestBulkFromFirstPacket(t *testing.T) {
	p := newPair(t, lab.EIM, lab.EIM)
	var wg sync.WaitGroup
	for _, dir := range [][]string{{"--bytes", "200000000"}, {"--bytes", "200000000", "--pull"}} {
		for _, addrs := range pairs(p.pod1, p.pod2) {
			wg.Go(func() {
				var b lab.Bulk
				err := p.pod1.Tool(within(t, 90*time.Second), &b, append(append([]string{"bulk"}, dir...), addrs[1].String())...)
				if err != nil || !b.Match {
					t.Errorf("%v to %s: %+v: %v", dir, addrs[1], b, err)
				}
				t.Logf("%v to %s: %.0f Mbit/s, longest stall %.0f ms", dir, addrs[1], b.Mbps, b.StallMs)
			})
		}
	}
	wg.Wait()
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		if _, err := n[0].WaitPath(within(t, 10*time.Second), n[1], "punched"); err != nil {
			t.Error(err)
		}
	}
}

// TestDeadPath cuts a punched path silently under flows, which must go on through
// the relay, and come back.
func TestDeadPath(t *testing.T) {
	p := newPair(t, lab.EIM, lab.EIM)
	a, b := p.lab.Sites[0], p.lab.Sites[1]
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	_, err := p.n1.WaitPath(within(t, 10*time.Second), p.n2, "punched")
	ok(t, err)
	time.Sleep(time.Second) // a second punched connection, over the other transport, may follow
	flows := map[string]func() (lab.Gaps, error){
		"tcp":  flow(t, p.pod1, "tcp", 10*time.Second, p.pod2.IP4()),
		"back": flow(t, p.pod2, "tcp", 10*time.Second, p.pod1.IP6()),
	}
	ping := flow(t, p.pod1, "icmp", 10*time.Second, p.pod2.IP4())
	time.Sleep(time.Second)
	undo, err := p.lab.Cut(a.WAN, b.WAN)
	ok(t, err)
	start := time.Now()
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		st, err := n[0].WaitPath(within(t, 5*time.Second), n[1], "relayed")
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s: relayed %d ms after the path died; %s", n[0].Name, time.Since(start).Milliseconds(), st.Reason)
	}
	time.Sleep(time.Second)
	ok(t, undo())
	start = time.Now()
	for _, n := range [][2]*lab.Node{{p.n1, p.n2}, {p.n2, p.n1}} {
		if _, err := n[0].WaitPath(within(t, 20*time.Second), n[1], "punched"); err != nil {
			t.Errorf("20 s after the sites came together: %v", err)
		}
		t.Logf("%s: punched again after %d ms", n[0].Name, time.Since(start).Milliseconds())
	}
	for name, wait := range flows {
		g, err := wait()
		if err != nil || g.Lost > 0 || g.Reordered > 0 || g.Doubled > 0 {
			t.Errorf("TCP flow %s: %+v: %v", name, g, err)
		}
		t.Logf("TCP flow %s: longest gap %.0f ms", name, g.GapMs)
	}
	g, err := ping()
	if err != nil {
		t.Error(err)
	}
	t.Logf("ping: longest gap %.0f ms, %d of %d lost", g.GapMs, g.Lost, g.Sent)
}
