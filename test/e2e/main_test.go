// Package e2e tests the binaries from outside, by their contracts, in network
// namespaces: every sentence of what the pod network must show is a test here.
// Bounds of time are those promises, by a clock that goes slower when others load the
// machine, and never slower than a quarter of the wall clock (package fair); everything
// else waits on conditions.
//
// EDGEMESH_TIER=long runs the slow tests too; EDGEMESH_NOBUILD=1 takes the
// binaries in bin/ as they are.
package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
)

func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		if gone, err := lab.Reap(""); err != nil || len(gone) > 0 {
			fmt.Println("labs of dead runs removed:", gone, err)
		}
		if os.Getenv("EDGEMESH_NOBUILD") == "" {
			if err := lab.Build(); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// beside has a test run beside others of its kind, after those that have the machine to
// themselves: it waits more than it computes, and measures no gap but one that is far below its bound.
func beside(t *testing.T) {
	t.Helper()
	products.Store(t.Name(), &fair.Product{})
	t.Parallel()
}

// together does the same with every pod, beside each other, and waits for all of them: most of it is waiting for nothing to come.
func together(t *testing.T, pods []*lab.Pod, do func(*testing.T, *lab.Pod)) {
	t.Helper()
	t.Run("pods", func(t *testing.T) {
		for _, p := range pods {
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				do(t, p)
			})
		}
	})
}

// newLab makes a lab that ends with the test, which shows all logs if it failed.
func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: ", lab.ErrNotRoot)
	}
	l, err := lab.New(lab.Options{Product: product(t)})
	ok(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of all processes:\n%s", l.Logs(60))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// products are the processes of our programs by the test they run for.
var products sync.Map

// product is what the test runs of our programs, its subtests' among them but those that run beside each other.
func product(t *testing.T) *fair.Product {
	t.Helper()
	name := t.Name()
	for {
		if p, ok := products.Load(name); ok {
			return p.(*fair.Product)
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			p, _ := products.LoadOrStore(name, &fair.Product{})
			return p.(*fair.Product)
		}
		name = name[:i]
	}
}

// ok ends the test when err is not nil.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within returns a context that ends after d of fair time.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := product(t).WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// stopwatch starts a clock; elapsed is the fair time since then.
func stopwatch(t *testing.T) (elapsed func() time.Duration) {
	t.Helper()
	c := product(t).Start()
	t.Cleanup(c.Stop)
	return c.Elapsed
}

func relay(t *testing.T, l *lab.Lab, name string) *lab.Relay {
	t.Helper()
	r, err := l.AddRelay(name)
	ok(t, err)
	return r
}

func site(t *testing.T, l *lab.Lab, name string, kind lab.NAT) *lab.Site {
	t.Helper()
	s, err := l.AddSite(name, kind)
	ok(t, err)
	return s
}

func node(t *testing.T, s *lab.Site, name string, o lab.NodeOptions) *lab.Node {
	t.Helper()
	n, err := s.AddNode(name, o)
	ok(t, err)
	return n
}

func cloud(t *testing.T, l *lab.Lab, name string, o lab.NodeOptions) *lab.Node {
	t.Helper()
	n, err := l.AddCloudNode(name, o)
	ok(t, err)
	return n
}

// pod makes a pod with a server in it.
func pod(t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.AddPod(t.Context(), name)
	ok(t, err)
	ok(t, p.Serve(within(t, 5*time.Second)))
	return p
}

// startRelays writes the membership and starts all relays; they are up when a
// TCP connection can be made.
func startRelays(t *testing.T, l *lab.Lab) {
	t.Helper()
	ok(t, l.WriteMembership())
	for _, r := range l.Relays {
		ok(t, r.Start())
	}
	for _, r := range l.Relays {
		ok(t, r.WaitUp(within(t, 5*time.Second)))
	}
}

// startAll starts relays and agents and waits until pods can be made and others
// can reach them.
func startAll(t *testing.T, l *lab.Lab) {
	t.Helper()
	startRelays(t, l)
	for _, n := range l.Nodes() {
		ok(t, n.Start())
	}
	ready(t, l.Nodes()...)
}

// ready waits until pods can be made on the nodes and others can reach them.
func ready(t *testing.T, nodes ...*lab.Node) {
	t.Helper()
	ctx := within(t, 10*time.Second)
	for _, n := range nodes {
		ok(t, n.WaitPods(ctx))
		ok(t, n.WaitReserved(ctx))
	}
}

// sniffed wants nothing for pods to leave the nodes in clear, but over native paths, until the test's end.
func sniffed(t *testing.T, l *lab.Lab) {
	t.Helper()
	strays, err := l.Sniff()
	ok(t, err)
	t.Cleanup(func() {
		all, err := strays()
		if err != nil || len(all) > 0 {
			t.Errorf("%d packets left in clear, such as %q; %v", len(all), all[:min(len(all), 5)], err)
		}
	})
}

// curl wants an answer of the pod within wait, which saw the client at source.
// The zero source accepts any.
func curl(t *testing.T, from *lab.NS, to *lab.Pod, addr, source netip.Addr, wait time.Duration) {
	t.Helper()
	ctx, cancel := product(t).WithTimeout(t.Context(), wait)
	defer cancel()
	if err := tryCurl(ctx, from, to, addr, source, fair.Slowest*wait); err != nil {
		t.Error(err)
	}
}

func tryCurl(ctx context.Context, from *lab.NS, to *lab.Pod, addr, source netip.Addr, wait time.Duration) error {
	r, err := from.Get(ctx, addr, wait)
	switch {
	case err != nil:
		return fmt.Errorf("%s → %s: %w", from.Name, to.Name, err)
	case r.Name != to.Name:
		return fmt.Errorf("%s → %s: %q answered", from.Name, to.Name, r.Name)
	case source.IsValid() && r.Client != source:
		return fmt.Errorf("%s → %s: the server saw %s, want %s", from.Name, to.Name, r.Client, source)
	}
	return nil
}

// ping sends one echo request and waits for its answer. The wait is a fair time.
func ping(t *testing.T, from *lab.Pod, to netip.Addr, wait time.Duration) error {
	t.Helper()
	ctx, cancel := product(t).WithTimeout(t.Context(), wait)
	defer cancel()
	return from.Ping(ctx, to.String(), fair.Slowest*wait)
}

// curlPods wants an answer in every family that both pods have, and the client's
// own address seen.
func curlPods(t *testing.T, from, to *lab.Pod, wait time.Duration) {
	t.Helper()
	for _, addrs := range pairs(from, to) {
		curl(t, from.NS, to, addrs[1], addrs[0], wait)
	}
}

// pairs returns {source, destination} for every family both pods have.
func pairs(from, to *lab.Pod) [][2]netip.Addr {
	var all [][2]netip.Addr
	if from.IP4().IsValid() && to.IP4().IsValid() {
		all = append(all, [2]netip.Addr{from.IP4(), to.IP4()})
	}
	if from.IP6().IsValid() && to.IP6().IsValid() {
		all = append(all, [2]netip.Addr{from.IP6(), to.IP6()})
	}
	return all
}

// noAnswer wants a curl to fail.
func noAnswer(t *testing.T, from *lab.NS, addr netip.Addr, what string) {
	t.Helper()
	if r, err := from.Get(t.Context(), addr, 700*time.Millisecond); err == nil {
		t.Errorf("%s: answered by %q, which saw %s", what, r.Name, r.Client)
	}
}

// seen returns how many datagrams from source the pod's server has seen.
func seen(t *testing.T, p *lab.Pod, source netip.Addr) int {
	t.Helper()
	counts := map[string]int{}
	ok(t, p.Tool(t.Context(), &counts, "get", fmt.Sprintf("http://127.0.0.1:%d/seen", lab.ServePort)))
	return counts[source.String()]
}

// contains wants every part in text.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in: %s", p, strings.TrimSpace(text))
		}
	}
}
