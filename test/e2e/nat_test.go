package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// pair is one topology with a pod on each of two nodes.
type pair struct {
	lab        *lab.Lab
	n1, n2     *lab.Node
	pod1, pod2 *lab.Pod
}

// newPair makes and starts two sites with one node each, or nodes on the WAN for
// the kind "".
func newPair(t *testing.T, a, b lab.NAT, moreRelays ...string) *pair {
	t.Helper()
	l := newLab(t)
	for _, name := range append([]string{"relay"}, moreRelays...) {
		relay(t, l, name)
	}
	p := &pair{lab: l}
	member := func(name string, kind lab.NAT) *lab.Node {
		if kind == "" {
			return cloud(t, l, name, lab.NodeOptions{})
		}
		return node(t, site(t, l, "site-of-"+name, kind), name, lab.NodeOptions{})
	}
	p.n1, p.n2 = member("edge-1", a), member("edge-2", b)
	startAll(t, l)
	sniffed(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	return p
}

// probesPerHour bounds what two sites that stay relayed send each other in an hour. There are three attempts at first, the
// one before the kinds of NATs are known among them, and one every fifteen minutes.
const probesPerHour, firstAttempts, attemptsPerHour = 200, 3, 7

// countProbes counts what both routers send to the other's public address, which on a relayed path are attempts alone.
func (p *pair) countProbes(t *testing.T) (count func() int) {
	t.Helper()
	sites := p.lab.Sites
	for i, s := range sites {
		ok(t, s.Router.Script("iptables -w -t mangle -A POSTROUTING -o wan0 -d "+sites[1-i].WAN.String()+" -m comment --comment probe"))
	}
	return func() (sum int) {
		t.Helper()
		for _, s := range sites {
			out, err := s.Router.Run(t.Context(), "sh", "-c", "iptables -w -t mangle -nvxL POSTROUTING | grep probe")
			ok(t, err)
			n, err := strconv.Atoi(strings.Fields(out)[0])
			ok(t, err)
			sum += n
		}
		return sum
	}
}

// TestSymmetricNATIsLeftAlone holds that two sites that cannot meet send each other little, however many relays see them.
func TestSymmetricNATIsLeftAlone(t *testing.T) {
	tier.All(t)
	beside(t)
	p := newPair(t, lab.Symmetric, lab.Symmetric, "relay-2")
	probes := p.countProbes(t)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	for over := stopwatch(t); over() < 15*time.Second; { // the first attempts are over
		pings(t, p.pod1, p.pod2.IP4(), time.Second)()
	}
	p.onPaths(t, 5*time.Second, "relayed")
	n := probes()
	t.Logf("%d probe packets between the sites in the first attempts", n)
	if most := probesPerHour * firstAttempts / attemptsPerHour; n == 0 || n > most {
		t.Errorf("%d probe packets between the sites, want at most %d: with those that follow %d in an hour", n, most, probesPerHour)
	}
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
	time.Sleep(5 * time.Second) // sleep: attempts to do better fail
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
		r.Process.Kill()
		time.Sleep(time.Second) // sleep: the relay is down
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
	tier.Long(t)
	p := newPair(t, lab.EIM, lab.EIM)
	for i := range 15 {
		elapsed := stopwatch(t)
		ctx := within(t, 10*time.Second)
		err := lab.Until(ctx, 20*time.Millisecond, func() error {
			return tryCurl(ctx, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
		})
		curled := elapsed()
		if err != nil || i > 0 && curled > 5*time.Second {
			t.Errorf("start %d: first curl after %v: %v", i, curled, err)
		}
		if _, err := p.n1.WaitPath(ctx, p.n2, "punched"); err != nil {
			t.Errorf("start %d: %v", i, err)
		}
		t.Logf("start %d: first curl after %d ms, punched after %d ms", i, curled.Milliseconds(),
			elapsed().Milliseconds())
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

// TestGuessedEveryTime starts two sites again and again, of which one has a symmetric NAT: of 30 starts 29 are punched
// within 30 s.
func TestGuessedEveryTime(t *testing.T) {
	tier.Long(t)
	const starts, enough, most = 30, 29, 30 * time.Second
	p := newPair(t, lab.EIM, lab.Symmetric)
	punched := 0
	var took []float64
	for i := range starts {
		start, elapsed, left := time.Now(), stopwatch(t), within(t, most)
		ok(t, lab.Until(left, 20*time.Millisecond, func() error {
			return tryCurl(left, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), time.Second)
		}))
		_, err1 := p.n1.WaitPath(left, p.n2, "punched")
		_, err2 := p.n2.WaitPath(left, p.n1, "punched")
		if err := errors.Join(err1, err2); err != nil {
			t.Logf("start %d: %v", i, err)
		} else {
			punched++
			took = append(took, time.Since(start).Seconds())
		}
		t.Logf("start %d: punched %d of %d, after %.1f s", i, punched, i+1, elapsed().Seconds())
		if punched == 1 {
			var b lab.Bulk
			err := p.pod1.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", "300000000", p.pod2.IP4().String())
			if err != nil || !b.Match {
				t.Errorf("300 MB punched: %+v %v", b, err)
			}
			t.Logf("punched: %.0f Mbit/s with checksums", b.Mbps)
		}
		for k, n := range []*lab.Node{p.n1, p.n2} { // one of the two, or both
			switch {
			case i%3 == k:
			case i%2 == 0:
				n.Agent.Kill()
				ok(t, n.Start())
			default:
				ok(t, n.Agent.Stop())
				ok(t, n.Start())
			}
		}
	}
	if punched < enough {
		t.Errorf("%d of %d starts were punched within %v", punched, starts, most)
	}
	t.Logf("%d of %d punched; median %.1f s, longest %.1f s", punched, starts, median(took), slices.Max(took))
}

// TestRouterRemembersUntranslated holds that a node gets through although its router forwarded its first packets before the
// NAT rules were loaded: the router remembers those ports without a translation for as long as they are used.
func TestRouterRemembersUntranslated(t *testing.T) {
	tier.All(t)
	beside(t)
	l := newLab(t)
	r := relay(t, l, "relay")
	s := site(t, l, "site", lab.EIM)
	n := node(t, s, "edge-1", lab.NodeOptions{})
	startRelays(t, l)
	ok(t, s.Router.Script("iptables -w -t nat -F POSTROUTING"))
	ok(t, n.Start())
	untranslated := fmt.Sprintf("conntrack -L 2>/dev/null | grep -q 'src=%s dst=%s .*src=%s dst=%s '", n.Addr, r.Addr, r.Addr, n.Addr)
	ok(t, lab.Until(within(t, 10*time.Second), 100*time.Millisecond, func() error { return s.Router.Script(untranslated) }))
	ok(t, s.SetNAT(lab.EIM))
	elapsed := stopwatch(t)
	if err := r.WaitReservations(within(t, 30*time.Second), 1); err != nil {
		t.Errorf("no reservation 30 s after the router was right: %v", err)
	}
	t.Logf("reserved %.1f s after the router was right", elapsed().Seconds())
	if err := s.Router.Script(untranslated); err != nil {
		t.Errorf("the router has forgotten, so nothing was tested: %v", err)
	}
}
