package e2e

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
	"edgemesh/test/tier"
)

// longestSilence is for how long flows may be silent after a line has changed.
const longestSilence = 5 * time.Second

// largeDatagrams are of the size of a video stream's, at a rate that fits 1 Mbit/s.
var largeDatagrams = []string{"--size", "1400", "--interval", "100ms", "--linger", "1s"}

// lineChange is a sudden change of a line, and how long flows may take to recover.
type lineChange struct {
	name string
	line func(*link.Direction) // applied to the usual line
	new  time.Duration         // within which a new flow's 50 kB arrive
	stay time.Duration         // of a flow of messages after them
	gap  time.Duration         // in that flow
	old  time.Duration         // the longest silence of messages that ran before; 0: longestSilence
}

func asUsual(*link.Direction) {}

// TestLinkChanges has a site's line stop for 5 s, become a hundred times slower, deliver packets twice and out of order,
// and take smaller packets, all while flows run: packets continue within 5 s, large datagrams too, no TCP flow ends, and
// one that sends little is not silent for long beside the others.
func TestLinkChanges(t *testing.T) {
	tier.Long(t)
	changes := []lineChange{
		{"after it stopped for 5 s", asUsual, 5 * time.Second, 3 * time.Second, longestSilence, 0},
		// The new flow shares 1 Mbit/s with the transfer and two flows of datagrams. Messages that ran before should not be
		// silent for longer than 5 s either, but where retransmissions are lost as well, TCP doubles its timeout: up to 12 s.
		{"a hundred times slower", func(d *link.Direction) { d.Rate = 1e6 }, 15 * time.Second, 8 * time.Second, 2500 * time.Millisecond, 15 * time.Second},
		{"as fast as before", asUsual, 5 * time.Second, 3 * time.Second, longestSilence, 0},
		{"a fifth of its packets twice, a tenth late", func(d *link.Direction) { d.Duplicate, d.Reorder = 0.2, 0.1 }, 5 * time.Second, 5 * time.Second, longestSilence, 0},
		{"packets of 1280 bytes at most", func(d *link.Direction) { d.Hole = 1280 }, 5 * time.Second, 5 * time.Second, longestSilence, 0},
	}
	for _, kind := range []struct {
		name string
		nat  lab.NAT
		path string
	}{{"punched", lab.EIM, "punched"}, {"relayed", lab.Symmetric, "relayed"}} {
		t.Run(kind.name, func(t *testing.T) { linkChanges(t, kind.nat, kind.path, 60_000_000, changes) }) // 48 s
	}
}

// TestLinkStopsAndShrinks is the short form of TestLinkChanges.
func TestLinkStopsAndShrinks(t *testing.T) {
	tier.All(t)
	beside(t)
	linkChanges(t, lab.EIM, "punched", 24_000_000, []lineChange{ // 19 s
		{"after it stopped for 5 s", asUsual, 5 * time.Second, time.Second, longestSilence, 0},
		{"packets of 1280 bytes at most, some twice, some late", func(d *link.Direction) {
			d.Hole, d.Duplicate, d.Reorder = 1280, 0.2, 0.1
		}, 5 * time.Second, time.Second, longestSilence, 0},
	})
}

// linkChanges stops a line for 5 s, then has it change, while a transfer, messages and large datagrams go over it.
func linkChanges(t *testing.T, nat lab.NAT, path string, bytes int64, changes []lineChange) {
	c := newChangingLine(t, nat, path)
	messages := lasting(t, c.here.NS, "tcp", c.there.IP4())
	datagrams := lasting(t, c.here.NS, "udp", c.there.IP4(), largeDatagrams...)
	transfer := c.transfer(t, bytes)
	time.Sleep(2 * time.Second) // sleep: the transfer has begun
	const stop = 5 * time.Second
	c.bounds = append(c.bounds, bound{time.Now(), stop + longestSilence, stop + longestSilence})
	c.set(t, func(d *link.Direction) { d.Loss = 1 })
	time.Sleep(stop) // sleep: the line stands
	for _, change := range changes {
		c.hold(t, change)
	}
	notSilent(t, "the transfer: nothing acknowledged", transfer(), c.bounds, bound.others)

	g, err := messages()
	if err != nil || g.Doubled > 0 || g.Reordered > 0 || g.Lost > 0 {
		t.Errorf("the messages: %+v: %v", g, err)
	}
	t.Logf("the messages: longest gap %.0f ms, round trip p50 %.0f, p99 %.0f ms", g.GapMs, g.P50Ms, g.P99Ms)
	notSilent(t, "the messages: silent", g.Silences, c.bounds, bound.ofMessages)
	g, err = datagrams()
	if err != nil || g.Received == 0 {
		t.Errorf("the large datagrams: %+v: %v", g, err)
	}
	t.Logf("the large datagrams: %d of %d lost, longest gap %.0f ms", g.Lost, g.Sent, g.GapMs)
	notSilent(t, "the large datagrams: silent", g.Silences, c.bounds, bound.others)
}

// bound is how long silences may be that begin at a moment or later.
type bound struct {
	from              time.Time
	messages, longest time.Duration
}

func (b bound) ofMessages() time.Duration { return b.messages }
func (b bound) others() time.Duration     { return b.longest }

// notSilent fails when a silence was longer than it may be.
func notSilent(t *testing.T, what string, silences []lab.Silence, bounds []bound, most func(bound) time.Duration) {
	t.Helper()
	const onTheWay = 200 * time.Millisecond // the last answer before a change may be older
	for _, s := range silences {
		longest := most(bounds[0]) // one that begins earlier belongs to the stop
		for _, b := range bounds {
			if s.At.After(b.from.Add(-onTheWay)) {
				longest = most(b)
			}
		}
		text := fmt.Sprintf("%s for %.0f ms, of which %.0f count, %v at most, from %v after the stop began", what, s.Ms, s.FairMs, longest,
			s.At.Sub(bounds[0].from).Round(time.Millisecond))
		if s.FairMs > float64(longest.Milliseconds()) {
			t.Error(text)
			continue
		}
		t.Log(text)
	}
}

// changingLine is pods of two sites, one of which has a line that changes.
type changingLine struct {
	*lab.Link
	from        *lab.Node
	here, there *lab.Pod
	bounds      []bound // of silences, in order
}

func newChangingLine(t *testing.T, nat lab.NAT, path string) *changingLine {
	t.Helper()
	l := newLab(t)
	relay(t, l, "relay")
	from, to := at(t, l, "edge-1", nat), at(t, l, "edge-2", nat)
	k, err := l.InsertLink(t.Context(), from.Site.Router, changedLine(asUsual), 1)
	ok(t, err)
	startAll(t, l)
	c := &changingLine{k, from, pod(t, from, "here"), pod(t, to, "there"), nil}
	curlPods(t, c.here, c.there, 10*time.Second)
	_, err = from.WaitPath(within(t, 15*time.Second), to, path)
	ok(t, err)
	return c
}

func changedLine(change func(*link.Direction)) link.Config {
	d := link.Direction{Rate: 100e6, Delay: 20 * time.Millisecond, QueueTime: 100 * time.Millisecond}
	change(&d)
	return link.Both(d)
}

func (c *changingLine) set(t *testing.T, change func(*link.Direction)) {
	t.Helper()
	ok(t, c.Set(t.Context(), changedLine(change)))
}

// transfer sends bytes at 10 Mbit/s; the function returned waits until all have arrived, and returns the times in which
// none was acknowledged.
func (c *changingLine) transfer(t *testing.T, bytes int64) func() []lab.Silence {
	t.Helper()
	clock := product(t).Start()
	t.Cleanup(clock.Stop)
	var sent lab.Bulk
	done, ctx := make(chan error, 1), within(t, 150*time.Second)
	go func() {
		done <- c.here.Tool(ctx, &sent, "bulk", "--bytes", fmt.Sprint(bytes), "--mbps", "10", c.there.IP4().String())
	}()
	return func() []lab.Silence {
		if err := <-done; err != nil || !sent.Match || sent.Bytes != bytes {
			t.Errorf("the transfer: %+v: %v", sent, err)
		}
		for i, s := range sent.Silences {
			sent.Silences[i].FairMs = fairMs(clock, s.At, s.Ms)
		}
		return sent.Silences
	}
}

// hold changes the line, and checks that new flows work on it.
func (c *changingLine) hold(t *testing.T, change lineChange) {
	t.Helper()
	c.bounds = append(c.bounds, bound{time.Now(), cmp.Or(change.old, longestSilence), longestSilence})
	c.set(t, change.line)
	elapsed := stopwatch(t)
	first := within(t, longestSilence)
	datagrams := flow(t, c.here, "udp", longestSilence+time.Second, c.there.IP4(), largeDatagrams...)
	ok(t, lab.Until(first, 10*time.Millisecond, func() error { return c.here.Ping(first, c.there.IP4().String(), time.Second) }))
	responds := elapsed()
	ok(t, lab.Until(first, 10*time.Millisecond, func() error {
		return c.here.Tool(first, nil, "udp", "--size", "1400", "--count", "1", c.there.IP4().String())
	}))
	large := elapsed()
	bytes := within(t, change.new)
	ok(t, lab.Until(bytes, 10*time.Millisecond, func() error { return carries(bytes, c.here, c.there) }))
	t.Logf("%s: continues after %d ms, large datagrams after %d ms, then 50 kB of a new flow take %d ms", change.name, responds.Milliseconds(),
		large.Milliseconds(), (elapsed() - large).Milliseconds())
	g, err := flow(t, c.here, "tcp", change.stay, c.there.IP4())()
	if err != nil || g.Lost > 0 || g.FairMs > float64(change.gap.Milliseconds()) {
		t.Errorf("%s: new messages: %+v: %v", change.name, g, err)
	}
	t.Logf("%s: new messages: longest gap %.0f ms, round trip p50 %.0f, p99 %.0f ms", change.name, g.GapMs, g.P50Ms, g.P99Ms)
	g, err = datagrams()
	if err != nil || g.FairMs > float64(longestSilence.Milliseconds()) {
		t.Errorf("%s: new large datagrams: %+v: %v", change.name, g, err)
	}
	t.Logf("%s: new large datagrams: %d of %d lost, longest gap %.0f ms", change.name, g.Lost, g.Sent, g.GapMs)
	c.waits(t, change.name)
}

// waits checks that there is a path, and that no packet waits for long.
func (c *changingLine) waits(t *testing.T, when string) {
	t.Helper()
	const longest = 6500 // ms: 3 s, 6 s for what is sent again, and a little
	st, err := c.from.Status(t.Context())
	ok(t, err)
	switch p := st.Peer("edge-2"); {
	case p.Path == "":
		t.Errorf("%s: no path", when)
	case p.QueueMs != nil && *p.QueueMs > longest:
		t.Errorf("%s: a packet has waited for %.0f ms", when, *p.QueueMs)
	case p.WayMs == nil:
		t.Errorf("%s: it is not known how long packets wait on the path", when)
	case *p.WayMs > longest:
		t.Errorf("%s: packets wait for %.0f ms on the path", when, *p.WayMs)
	default:
		t.Logf("%s: packets wait for %.0f ms on the path", when, *p.WayMs)
	}
}

// carries wants a new flow's bytes to arrive, in packets as large as they get.
func carries(ctx context.Context, from, to *lab.Pod) error {
	var b lab.Bulk
	err := from.Tool(ctx, &b, "bulk", "--bytes", "50000", to.IP4().String())
	if err == nil && !b.Match {
		err = fmt.Errorf("what came is not what was sent: %+v", b)
	}
	return err
}
