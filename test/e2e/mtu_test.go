package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/lab/link"
	"edgemesh/test/tier"
)

// holed is two public nodes, a link with a path MTU between them and everybody
// else, and no ICMP about it.
func holed(t *testing.T, mtu int) (p *pair, k *lab.Link) {
	t.Helper()
	l := newLab(t)
	relay(t, l, "relay")
	p = &pair{lab: l}
	p.n1, p.n2 = cloud(t, l, "edge-1", lab.NodeOptions{}), cloud(t, l, "edge-2", lab.NodeOptions{})
	k, err := l.InsertLink(t.Context(), p.n1.NS, link.Both(link.Direction{Hole: mtu}), 1)
	ok(t, err)
	startAll(t, l)
	p.pod1, p.pod2 = pod(t, p.n1, "one"), pod(t, p.n2, "two")
	return p, k
}

// echoes sends datagrams that fill a packet of the underlay, and such that fill one of
// the pods, and wants all of them back.
func (p *pair) echoes(ctx context.Context) error {
	for _, size := range []string{"1280", "1380", "1472"} {
		var u lab.Echoed
		if err := p.pod1.Tool(ctx, &u, "udp", "--size", size, "--count", "10", "--timeout", "900ms",
			p.pod2.IP4().String()); err != nil {
			return fmt.Errorf("%s bytes: %+v: %w", size, u, err)
		}
	}
	return nil
}

// TestDatagramsThroughShrinkingMTU holds that large datagrams find their way when
// the underlay takes smaller packets than before, and says nothing.
func TestDatagramsThroughShrinkingMTU(t *testing.T) {
	tier.All(t)
	beside(t)
	p, k := holed(t, 0)
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	_, err := p.n1.WaitPath(within(t, 10*time.Second), p.n2, "direct")
	ok(t, err)
	ok(t, lab.Until(within(t, 10*time.Second), 10*time.Millisecond,
		func() error { return p.echoes(within(t, 10*time.Second)) }))
	for _, mtu := range []int{1400, 1320} {
		ok(t, k.Set(t.Context(), link.Both(link.Direction{Hole: mtu})))
		start := time.Now()
		ok(t, lab.Until(within(t, 30*time.Second), 10*time.Millisecond,
			func() error { return p.echoes(within(t, 10*time.Second)) }))
		t.Logf("MTU %d: large datagrams pass %d ms after it shrank", mtu, time.Since(start).Milliseconds())
	}
	st, err := p.n1.Status(t.Context())
	ok(t, err)
	t.Logf("path %+v", st.Peer("edge-2"))
}

// TestUnderlayMTU576 holds that everything works over a link that takes packets of
// 576 bytes, which QUIC cannot use at all, and TCP not by itself.
func TestUnderlayMTU576(t *testing.T) {
	beside(t)
	p, _ := holed(t, 576)
	start := time.Now()
	ok(t, lab.Until(within(t, 60*time.Second), 100*time.Millisecond, func() error {
		return p.pod1.Ping(t.Context(), p.pod2.IP4().String(), time.Second)
	}))
	t.Logf("first answer after %d ms", time.Since(start).Milliseconds())
	curlPods(t, p.pod1, p.pod2, 10*time.Second)
	ok(t, lab.Until(within(t, 30*time.Second), 100*time.Millisecond,
		func() error { return p.echoes(within(t, 20*time.Second)) }))
	for _, dir := range [][]string{{"--bytes", "5000000"}, {"--bytes", "5000000", "--pull"}} {
		var b lab.Bulk
		err := p.pod1.Tool(within(t, 60*time.Second), &b, append(append([]string{"bulk"}, dir...), p.pod2.IP4().String())...)
		if err != nil || !b.Match {
			t.Errorf("%v: %+v: %v", dir, b, err)
		}
		t.Logf("%v: %.0f Mbit/s, longest stall %.0f ms", dir, b.Mbps, b.StallMs)
	}
	if _, err := p.n1.WaitPath(within(t, 60*time.Second), p.n2, "direct"); err != nil {
		t.Error(err)
	}
	t.Logf("direct after %d ms", time.Since(start).Milliseconds())
	var b lab.Bulk
	if err := p.pod1.Tool(within(t, 60*time.Second), &b, "bulk", "--bytes", "5000000",
		p.pod2.IP4().String()); err != nil ||
		!b.Match {
		t.Errorf("direct: %+v: %v", b, err)
	}
}

// TestUnderlayMTUShrinks holds that a transfer survives and datagrams continue when the
// underlay's packets shrink under them, however long a round trip is.
func TestUnderlayMTUShrinks(t *testing.T) {
	tier.Long(t)
	for _, trip := range []time.Duration{0, 80 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) { shrinks(t, trip) })
	}
}

func shrinks(t *testing.T, trip time.Duration) {
	p, k := holed(t, 0)
	ok(t, k.Set(t.Context(), link.Both(link.Direction{Delay: trip / 2})))
	curlPods(t, p.pod1, p.pod2, 3*time.Second)
	_, err := p.n1.WaitPath(within(t, 10*time.Second), p.n2, "direct")
	ok(t, err)
	var b lab.Bulk
	done := make(chan error, 1)
	go func() { // 32 s
		done <- p.pod1.Tool(within(t, 120*time.Second), &b, "bulk", "--bytes", "40000000", "--mbps", "10", p.pod2.IP4().String())
	}()
	time.Sleep(2 * time.Second) // sleep: the transfer has begun
	for _, mtu := range []int{1280, 576} {
		ok(t, k.Set(t.Context(), link.Both(link.Direction{Delay: trip / 2, Hole: mtu})))
		start := time.Now()
		ok(t, lab.Until(within(t, 60*time.Second), 10*time.Millisecond,
			func() error { return p.echoes(within(t, 10*time.Second)) }))
		t.Logf("MTU %d: datagrams of all sizes pass %d ms after it shrank", mtu, time.Since(start).Milliseconds())
		time.Sleep(3 * time.Second) // sleep: of the transfer with that MTU
	}
	if err := <-done; err != nil || !b.Match || b.Bytes != 40000000 {
		t.Errorf("the transfer: %+v: %v", b, err)
	}
	t.Logf("the transfer: longest stall %.0f ms", b.StallMs)
}
