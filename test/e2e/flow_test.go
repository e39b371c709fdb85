package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// fullRounds is how often the full suite measures a gap.
const fullRounds = 5

// rounds is how often a gap is measured, and the median taken.
func rounds() int {
	if tier.IsLong() {
		return fullRounds
	}
	return 1
}

// remeasure says whether a gap is to be measured, once more: as often as rounds says, and where the median of that is above
// worst as often as in the full suite, whose median counts then. A machine that is busy for a moment stretches any single
// gap, hardly most of five.
func remeasure(gaps []float64, worst float64) bool {
	n := len(gaps)
	return n < rounds() || n < fullRounds && (n > rounds() || median(gaps) > worst)
}

// millis is d as gaps are measured.
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// median of values, which are at least one.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[len(s)/2]
}

// flow runs a flow between two pods in the background, and returns once it has its first answer; the function returned
// waits for its end.
func flow(t *testing.T, from *lab.Pod, proto string, d time.Duration, to netip.Addr, more ...string) func() (lab.Gaps, error) {
	t.Helper()
	linger := "8s" // TCP sends again what was lost
	if proto != "tcp" {
		linger = "2s"
	}
	p, result := begun(t, from.NS, proto, to, append([]string{"--duration", d.String(), "--linger", linger}, more...)...)
	return func() (lab.Gaps, error) {
		if p.Wait(within(t, d+15*time.Second)) != nil {
			p.Kill()
		}
		return result()
	}
}

// lasting is a flow that continues until the function returned is called; one of each protocol to an address.
func lasting(t *testing.T, from *lab.NS, proto string, to netip.Addr, more ...string) func() (lab.Gaps, error) {
	t.Helper()
	p, result := begun(t, from, proto, to, append([]string{"--duration", "10m", "--linger", "4s"}, more...)...)
	return func() (lab.Gaps, error) {
		err := p.Stop()
		g, broken := result()
		return g, errors.Join(err, broken)
	}
}

// begun starts a flow, and waits for its first answer, or its end. The function returned reads what it says at its end.
func begun(t *testing.T, from *lab.NS, proto string, to netip.Addr, more ...string) (*lab.Process, func() (lab.Gaps, error)) {
	t.Helper()
	clock := product(t).Start()
	t.Cleanup(clock.Stop)
	p, err := from.StartTool(fmt.Sprintf("flow-%s-%s-%d", proto, to, time.Now().UnixNano()),
		append(append([]string{"gaps", "--proto", proto}, more...), to.String())...)
	ok(t, err)
	product(t).Eventually(t, 10*time.Second, "the flow's first answer", fair.True(func() bool { return p.Tail(1) == "answered" || !p.Running() }))
	return p, func() (g lab.Gaps, err error) {
		text := strings.TrimPrefix(p.Tail(3), "answered\n")
		if err := json.NewDecoder(strings.NewReader(text)).Decode(&g); err != nil {
			return g, fmt.Errorf("%w: %s", err, text)
		}
		if g.Error != "" {
			err = errors.New(g.Error)
		}
		fairly(clock, &g)
		return g, err
	}
}

// fairly fills in how long each gap of a flow was by a clock that ran meanwhile.
func fairly(clock *fair.Clock, g *lab.Gaps) {
	g.FairMs = fairMs(clock, g.GapAt, g.GapMs)
	for i, s := range g.Silences {
		g.Silences[i].FairMs = fairMs(clock, s.At, s.Ms)
	}
}

// fairMs is how long ms since a moment were by a clock that ran then.
func fairMs(clock *fair.Clock, at time.Time, ms float64) float64 {
	end := at.Add(time.Duration(ms * float64(time.Millisecond)))
	return float64(clock.Between(at, end)) / float64(time.Millisecond)
}

// pings runs pings each 50 ms in the background; the function returned waits for
// their end and returns the longest gap in ms of fair time.
func pings(t *testing.T, from *lab.Pod, to netip.Addr, d time.Duration) func() float64 {
	t.Helper()
	wait := flow(t, from, "icmp", d, to, "--interval", "50ms")
	return func() float64 {
		g, err := wait()
		if err != nil {
			t.Error(err)
		}
		t.Logf("longest gap %.0f ms, of which %.0f count", g.GapMs, g.FairMs)
		return g.FairMs
	}
}

// heldAll fails when any of gaps is above worst.
func heldAll(t *testing.T, gaps []float64, worst float64) {
	t.Helper()
	t.Logf("gaps of pings: %.0f ms", gaps)
	for i, g := range gaps {
		if g > worst {
			t.Errorf("gap %d of %d was %.0f ms, want at most %.0f", i+1, len(gaps), g, worst)
		}
	}
}

// held fails when the median of gaps is above worst.
func held(t *testing.T, gaps []float64, worst float64) {
	t.Helper()
	t.Logf("gaps of pings: %.0f ms", gaps)
	if m := median(gaps); m > worst {
		t.Errorf("median gap %.0f ms, want at most %.0f", m, worst)
	}
}
