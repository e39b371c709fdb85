package daemon

import (
	"slices"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

// A relay tells each change of its addresses once, and keeps its word while it has no uplink.
func TestRelayTeller(t *testing.T) {
	var told [][]string
	r := relayTeller{set: func(addrs []string) { told = append(told, addrs) }}
	addr := func(text string) []ma.Multiaddr { return []ma.Multiaddr{ma.StringCast(text)} }
	r.tell(true, nil) // boots without an address
	r.tell(true, addr("/ip4/5.5.1.1/tcp/4470"))
	r.tell(true, addr("/ip4/5.5.1.1/tcp/4470"))
	r.tell(true, nil)
	r.tell(true, addr("/ip4/5.5.1.2/tcp/4470"))
	want := [][]string{{"/ip4/5.5.1.1/tcp/4470"}, {"/ip4/5.5.1.2/tcp/4470"}}
	if !slices.EqualFunc(told, want, slices.Equal) {
		t.Errorf("told %q, want %q", told, want)
	}

	told, r = nil, relayTeller{set: r.set}
	r.tell(false, addr("/ip4/5.5.1.1/tcp/4470")) // takes back what it said before its restart
	r.tell(false, nil)
	if len(told) != 1 || len(told[0]) != 0 {
		t.Errorf("no relay: told %q", told)
	}
}
