package daemon

import (
	"slices"
	"testing"
	"time"

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

// TestNextLook: the host's firewall is probed some seconds after others change it, not more often than they rest, and now and
// then without a sign.
func TestNextLook(t *testing.T) {
	last := time.Unix(1000, 0)
	n, changed := nextLook{last: last}, false
	reads := 0
	suspect := func() bool { reads++; return changed }
	at := func(after, want time.Duration) {
		t.Helper()
		if got := n.wait(last.Add(after), suspect); got != want {
			t.Errorf("%s after the last probe: wait %s, want %s", after, got, want)
		}
	}
	changed = true
	at(time.Second, probeRest-time.Second)
	if reads != 0 {
		t.Error("the firewall was read while it rests")
	}
	changed = false
	at(20*time.Second, probeEvery-20*time.Second)
	changed = true
	at(30*time.Second, probeDebounce)
	at(31*time.Second, probeDebounce-time.Second)
	if reads != 2 {
		t.Errorf("the firewall was read %d times, want 2: a change is noticed once", reads)
	}
	at(30*time.Second+probeDebounce, 0)
	n, changed = nextLook{last: last}, false
	at(probeEvery, 0)
}

// Five repairs may follow each other, and then one every 2 s.
func TestPace(t *testing.T) {
	now := time.Unix(1000, 0)
	var p pace
	for i, want := range []time.Duration{0, 0, 0, 0, 2 * time.Second, 2 * time.Second, 2 * time.Second} {
		p.repaired(now)
		if wait := max(p.next().Sub(now), 0); wait != want {
			t.Errorf("after repair %d the next one waits %s, want %s", i+1, wait, want)
		}
		now = now.Add(max(p.next().Sub(now), 0))
	}
	p.repaired(now.Add(time.Minute))
	if wait := p.next().Sub(now.Add(time.Minute)); wait > 0 {
		t.Errorf("after a minute's rest: %s", wait)
	}
}
