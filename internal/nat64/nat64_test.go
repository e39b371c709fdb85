package nat64

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
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
		f.add(n, netip.MustParsePrefix(p))
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
			if f.ended(n, c, err); err == nil {
				break
			}
		}
		if dials > 1 {
			t.Errorf("%s: %d dials failed, want at most 1", what, dials)
		}
		for range trust {
			c := f.best(n)
			if c.String() != x.works {
				t.Errorf("%s: %s is used after one that works", what, c)
			}
			f.ended(n, c, errors.New("this peer does not answer"))
		}
	}
}

// What routers and name servers name is bounded.
func TestManyPrefixes(t *testing.T) {
	t.Parallel()
	f, n := finder(t)
	for i := range 1000 {
		f.add(n, netip.MustParsePrefix(fmt.Sprintf("2a00:%x::/96", i+1)))
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
