package daemon

import (
	"slices"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

// A relay tells each change of its addresses once, and keeps its word while it has no uplink.
func TestRelayTeller(t *testing.T) {
	var told [][]string
	r := relayReporter{reporter{set: func(addrs []string) { told = append(told, addrs) }}}
	addr := func(text string) []ma.Multiaddr { return []ma.Multiaddr{ma.StringCast(text)} }
	r.report(true, nil) // boots without an address
	r.report(true, addr("/ip4/5.5.1.1/tcp/4470"))
	r.report(true, addr("/ip4/5.5.1.1/tcp/4470"))
	r.report(true, nil)
	r.report(true, addr("/ip4/5.5.1.2/tcp/4470"))
	want := [][]string{{"/ip4/5.5.1.1/tcp/4470"}, {"/ip4/5.5.1.2/tcp/4470"}}
	if !slices.EqualFunc(told, want, slices.Equal) {
		t.Errorf("told %q, want %q", told, want)
	}

	told, r = nil, relayReporter{reporter{set: r.set}}
	r.report(false, addr("/ip4/5.5.1.1/tcp/4470")) // takes back what it said before its restart
	r.report(false, nil)
	if len(told) != 1 || len(told[0]) != 0 {
		t.Errorf("no relay: told %q", told)
	}
}
