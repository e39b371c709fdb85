package nat64

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// finder is one in a network where a forged prefix and a good one were found.
func finder(t *testing.T, prefixes ...string) (*Finder, *network) {
	t.Helper()
	f := New(func(context.Context) ([]netip.Addr, error) { return nil, errors.New("no name server") }, slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
	n := &network{first: make(chan struct{}), looked: time.Now(), prefixes: []*candidate{{Prefix: WellKnown}}}
	for _, p := range prefixes {
		f.add(n, netip.MustParsePrefix(p), byDNS)
	}
	return f, n
}

// A prefix that leads nowhere gives way to the others, and one that works keeps its place while peers behind it fail.
func TestForgedPrefix(t *testing.T) {
	t.Parallel()
	const forged, good = "2a00:bad::/96", "2a00:64::/96"
	works := func(p string) func(*candidate) error {
		return func(c *candidate) error {
			if c.String() == p {
				return nil
			}
			return errors.New("no answer")
		}
	}
	for what, x := range map[string]struct {
		found []string
		works string
	}{
		"forged before good": {[]string{forged, good}, good},
		"good before forged": {[]string{good, forged}, good},
		"forged alone":       {[]string{forged}, WellKnown.String()},
		"nothing found":      {nil, WellKnown.String()},
	} {
		f, n := finder(t, x.found...)
		dials := 0
		for dial := works(x.works); ; dials++ {
			c := f.best(n)
			err := dial(c)
			if f.ended(t.Context(), c, err); err == nil {
				break
			}
		}
		if dials > wrong {
			t.Errorf("%s: %d dials failed, want at most %d", what, dials, wrong)
		}
		for range trust {
			c := f.best(n)
			if c.String() != x.works {
				t.Errorf("%s: %s is used after one that works", what, c)
			}
			f.ended(t.Context(), c, errors.New("this peer does not answer"))
		}
	}
}

// What routers and name servers name is bounded.
func TestManyPrefixes(t *testing.T) {
	t.Parallel()
	f, n := finder(t)
	for i := range 1000 {
		f.add(n, netip.MustParsePrefix(fmt.Sprintf("2a00:%x::/96", i+1)), byDNS)
	}
	if len(n.prefixes) != mostPrefixes+1 || n.prefixes[mostPrefixes].Prefix != WellKnown {
		t.Errorf("%d prefixes", len(n.prefixes))
	}
	for i := range 3 * mostNetworks {
		f.in(netip.AddrFrom16([16]byte{0x20, 1, 0, byte(i)}))
	}
	if len(f.networks) > mostNetworks {
		t.Errorf("%d networks", len(f.networks))
	}
}

// Private addresses, and those that a route leads to, are dialed themselves, and no query is sent.
func TestNothingToTranslate(t *testing.T) {
	t.Parallel()
	f, _ := finder(t)
	for _, a := range []string{"10.96.0.1", "127.0.0.1", "::1", "2001:db8::1", "169.254.169.254"} {
		if to, _ := f.Via(t.Context(), netip.MustParseAddr(a)); to != netip.MustParseAddr(a) {
			t.Errorf("%s is dialed at %s", a, to)
		}
	}
	if len(f.networks) != 0 {
		t.Error("a prefix was looked for")
	}
	a := netip.MustParseAddr("5.5.5.5")
	if to, ended := (*Finder)(nil).Via(t.Context(), a); to != a {
		t.Error(to)
	} else {
		ended(nil)
	}
}

var errDial = errors.New("no answer")

// What a caller gives up says nothing of a prefix, and where one has worked the well-known one, which nobody named, is not tried:
// not even while every peer is unreachable.
func TestWorkedPrefix(t *testing.T) {
	t.Parallel()
	f, n := finder(t, "2a00:64:1::/96")
	good := n.prefixes[0]
	f.ended(t.Context(), good, errDial)
	if c := f.best(n); c != good {
		t.Errorf("%v is tried after one failure of what was found", c.Prefix)
	}
	given, cancel := context.WithCancel(t.Context())
	cancel()
	for range 40 {
		f.ended(given, good, given.Err())
	}
	if good.failed != 1 {
		t.Errorf("%d failures, though the callers gave up", good.failed)
	}
	f.ended(t.Context(), good, nil)
	for range 40 {
		c := f.best(n)
		if f.ended(t.Context(), c, errDial); c != good {
			t.Fatalf("%v is tried, though another has worked", c.Prefix)
		}
	}
	f.add(n, netip.MustParsePrefix("2a00:64:2::/96"), byRA) // the provider has changed it
	if c := f.best(n); c == good {
		t.Error("a new prefix is not tried, though the old one leads nowhere")
	}
}

// Prefixes that lead nowhere make room for others, those of DNS for none of routers', and what a router withdraws is gone.
func TestForgedPrefixesMakeRoom(t *testing.T) {
	t.Parallel()
	f, n := finder(t, "2a00:bad:1::/96", "2a00:bad:2::/96", "2a00:bad:3::/96", "2a00:bad:4::/96")
	byRouter, byName := netip.MustParsePrefix("2a00:64:3::/96"), netip.MustParsePrefix("2a00:64:4::/96")
	if !f.add(n, byRouter, byRA) {
		t.Error("a router's prefix finds no room beside those of DNS")
	}
	if f.add(n, byName, byDNS) {
		t.Error("what was not tried is replaced")
	}
	f.ended(t.Context(), n.prefixes[2], errDial)
	if !f.add(n, byName, byDNS) || slices.ContainsFunc(n.prefixes, func(c *candidate) bool { return c.String() == "2a00:bad:3::/96" }) {
		t.Error("the prefix that failed is not replaced")
	}
	f.withdraw(n, byRouter)
	f.withdraw(n, byName) // not the router's
	if has := func(p netip.Prefix) bool {
		return slices.ContainsFunc(n.prefixes, func(c *candidate) bool { return c.Prefix == p })
	}; has(byRouter) || !has(byName) {
		t.Errorf("%d prefixes after one was withdrawn", len(n.prefixes))
	}
}

// A prefix that was named and has not worked leaves addresses what they are.
func TestForgedPrefixMeansNothing(t *testing.T) {
	t.Parallel()
	f, n := finder(t, "2a05:5:0:5::/96")
	relay := netip.MustParseAddr("2a05:5:0:5::5")
	if got := Inside(relay); got != relay {
		t.Errorf("%s is %s, though the prefix was not used", relay, got)
	}
	learn(n.prefixes[0].Prefix) // a dial through it
	f.ended(t.Context(), n.prefixes[0], errDial)
	if got := Inside(relay); got != relay {
		t.Errorf("%s is %s, though nothing answers behind the prefix", relay, got)
	}
}

// Peers are tried again when a prefix is found, and when one works.
func TestChanged(t *testing.T) {
	t.Parallel()
	f, n := finder(t)
	for what, change := range map[string]func(){
		"found":  func() { f.add(n, netip.MustParsePrefix("2a00:64:5::/96"), byRA) },
		"worked": func() { f.ended(t.Context(), n.prefixes[len(n.prefixes)-1], nil) },
	} {
		change()
		select {
		case <-f.Changed:
		default:
			t.Errorf("%s: no change", what)
		}
	}
}

// A dial through the well-known prefix, which was a guess, is given up and made again when the network's first prefix is found, once:
// what is named later, by whom it may, ends no dial.
func TestGuessGivesWay(t *testing.T) {
	t.Parallel()
	f, n := finder(t)
	guess := f.best(n)
	dial := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	time.AfterFunc(20*time.Millisecond, func() { f.add(n, netip.MustParsePrefix("2a00:64:6::/96"), byRA) })
	if found, err := f.until(t.Context(), n, guess, dial); !found || err == nil || guess.failed != 0 {
		t.Errorf("found %v, %v, %d failures", found, err, guess.failed)
	}
	time.AfterFunc(20*time.Millisecond, func() { f.add(n, netip.MustParsePrefix("2a00:64:7::/96"), byRA) })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if found, err := f.until(ctx, n, guess, dial); found || !errors.Is(err, context.DeadlineExceeded) || guess.failed != 1 {
		t.Errorf("found %v, %v, %d failures", found, err, guess.failed)
	}
}

// A prefix that holds a relay's own address is not used, whether it is found before the relay is known or after.
func TestPrefixOfRelay(t *testing.T) {
	t.Parallel()
	relay := netip.MustParseAddr("2a05:5:0:6::5")
	f, n := finder(t, "2a05:5:0:6::/96", "2a00:64:8::/96")
	f.networks[netip.MustParsePrefix("2a05:5:0:9::/64")] = n
	f.Keep([]netip.Addr{relay})
	if len(n.prefixes) != 2 || n.prefixes[0].String() != "2a00:64:8::/96" {
		t.Errorf("%v is kept", n.prefixes[0])
	}
	if f.found(n, n.prefixes[0].Prefix, byRA, nil) || f.found(n, netip.MustParsePrefix("2a05:5::/32"), byRA, nil) {
		t.Error("it is found again")
	}
	if !f.found(n, netip.MustParsePrefix("2a00:64:9::/96"), byRA, nil) {
		t.Error("a prefix that holds no relay is refused")
	}
}
