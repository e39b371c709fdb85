package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
)

// TestLinkChanges has a site's line stop for 5 s, become a hundred times slower, deliver packets twice and out of order,
// and take smaller packets, all while flows run: packets continue within 5 s, no TCP flow ends, and one that sends little
// is not silent for long beside the others.
func TestLinkChanges(t *testing.T) {
	slow(t)
	for _, kind := range []struct {
		name string
		nat  lab.NAT
		path string
	}{{"punched", lab.EIM, "punched"}, {"relayed", lab.Symmetric, "relayed"}} {
		t.Run(kind.name, func(t *testing.T) { linkChanges(t, kind.nat, kind.path) })
	}
}

func linkChanges(t *testing.T, nat lab.NAT, path string) {
	l := newLab(t)
	relay(t, l, "relay")
	from, to := at(t, l, "edge-1", nat), at(t, l, "edge-2", nat)
	usual := link.Direction{Rate: 100e6, Delay: 20 * time.Millisecond, QueueTime: 100 * time.Millisecond}
	k, err := l.InsertLink(t.Context(), from.Site.Router, link.Both(usual), 1)
	ok(t, err)
	startAll(t, l)
	here, there := pod(t, from, "here"), pod(t, to, "there")
	curlPods(t, here, there, 10*time.Second)
	_, err = from.WaitPath(within(t, 15*time.Second), to, path)
	ok(t, err)

	messages := lasting(t, here.NS, "tcp", there.IP4())
	const bytes = 60_000_000 // 48 s
	var sent lab.Bulk
	done := make(chan error, 1)
	go func() {
		done <- here.Tool(within(t, 150*time.Second), &sent, "bulk", "--bytes", fmt.Sprint(bytes), "--mbps", "10", there.IP4().String())
	}()

	const longestWait = 6500 // ms: 3 s, 6 s for what is sent again, and a little
	with := func(change func(*link.Direction)) link.Config { d := usual; change(&d); return link.Both(d) }
	time.Sleep(2 * time.Second) // both flows have begun
	ok(t, k.Set(t.Context(), with(func(d *link.Direction) { d.Loss = 1 })))
	time.Sleep(5 * time.Second)
	for _, step := range []struct {
		name string
		link link.Config
		new  time.Duration // within which a new flow's bytes arrive
		stay time.Duration
		gap  time.Duration // a flow of messages that begins then is never silent for longer
	}{
		{"after it stopped for 5 s", link.Both(usual), 5 * time.Second, 3 * time.Second, 5 * time.Second},
		// The new flow has a third of 1 Mbit/s.
		{"a hundred times slower", with(func(d *link.Direction) { d.Rate = 1e6 }), 15 * time.Second, 8 * time.Second, 2500 * time.Millisecond},
		{"as fast as before", link.Both(usual), 5 * time.Second, 3 * time.Second, 5 * time.Second},
		{"a fifth of its packets twice, a tenth late", with(func(d *link.Direction) { d.Duplicate, d.Reorder = 0.2, 0.1 }), 5 * time.Second, 5 * time.Second, 5 * time.Second},
		{"packets of 1280 bytes at most", with(func(d *link.Direction) { d.Hole = 1280 }), 5 * time.Second, 5 * time.Second, 5 * time.Second},
	} {
		ok(t, k.Set(t.Context(), step.link))
		elapsed := stopwatch(t)
		ok(t, lab.Until(within(t, 5*time.Second), 10*time.Millisecond, func() error { return responds(t.Context(), here, there) }))
		first := elapsed()
		ok(t, lab.Until(within(t, step.new), 10*time.Millisecond, func() error { return carries(t.Context(), here, there) }))
		t.Logf("%s: continues after %d ms, a new flow's 50 kB after %d ms", step.name, first.Milliseconds(), elapsed().Milliseconds())
		g, err := flow(t, here, "tcp", step.stay, there.IP4())()
		if err != nil || g.Lost > 0 || g.FairMs > float64(step.gap.Milliseconds()) {
			t.Errorf("%s: new messages: %+v: %v", step.name, g, err)
		}
		t.Logf("%s: new messages: longest gap %.0f ms, round trip p50 %.0f, p99 %.0f ms", step.name, g.GapMs, g.P50Ms, g.P99Ms)
		st, err := from.Status(t.Context())
		ok(t, err)
		switch p := st.Peer("edge-2"); {
		case p.Path == "":
			t.Errorf("%s: no path", step.name)
		case p.QueueMs != nil && *p.QueueMs > longestWait:
			t.Errorf("%s: a packet has waited for %.0f ms", step.name, *p.QueueMs)
		}
	}
	if err := <-done; err != nil || !sent.Match || sent.Bytes != bytes {
		t.Errorf("the transfer: %+v: %v", sent, err)
	}
	// The stop of 5 s and 5 s after it; after other changes 5 s.
	if sent.StuckMs[0] > 10_000 || sent.StuckMs[1] > 5000 {
		t.Errorf("the transfer: nothing was acknowledged for %.0f ms", sent.StuckMs)
	}
	t.Logf("the transfer: nothing acknowledged for %.0f ms at most", sent.StuckMs)
	g, err := messages()
	if err != nil || g.Doubled > 0 || g.Reordered > 0 || g.Lost > 0 {
		t.Errorf("the messages: %+v: %v", g, err)
	}
	t.Logf("the messages: longest gap %.0f ms, round trip p50 %.0f, p99 %.0f ms", g.GapMs, g.P50Ms, g.P99Ms)
}

// responds wants an answer to a ping.
func responds(ctx context.Context, from, to *lab.Pod) error {
	return from.Ping(ctx, to.IP4().String(), time.Second)
}

// carries wants a new flow's bytes to arrive, in packets as large as they get.
func carries(ctx context.Context, from, to *lab.Pod) error {
	var b lab.Bulk
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err := from.Tool(ctx, &b, "bulk", "--bytes", "50000", to.IP4().String())
	if err == nil && !b.Match {
		err = fmt.Errorf("what came is not what was sent: %+v", b)
	}
	return err
}
