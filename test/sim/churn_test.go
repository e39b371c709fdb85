package sim

import (
	"maps"
	"slices"
	"testing"
	"time"

	"edgemesh/test/sim/churn"
)

// hottest is what the busiest relay may hold, of the mean.
const hottest = 1.3

// TestChurn plays faults on top of churn: a relay is lost, another restarts, two regions do not reach each other, one is
// off. What does not concern a node moves neither its paths nor its reservations, two minutes after each fault all data flows
// and every node has its reservations, and no relay is hot.
func TestChurn(t *testing.T) {
	c := churn.Config{Nodes: 600, Relays: 12, Regions: 6, Crowded: 1.5, Constant: 6, Pairs: 200, Seed: 1}
	const quiet = 2 * time.Minute // after a fault
	first, calm, lasts := 4*time.Minute, 3*time.Minute, 2*time.Minute
	if full() {
		c = churn.Config{Nodes: 10_000, Relays: 24, Regions: 6, Crowded: 1.5, Constant: 300, Pairs: 10_000, Seed: 1}
		first, calm, lasts = 12*time.Minute, 10*time.Minute, 5*time.Minute
	}
	w := churn.New(c)
	var edges []time.Duration // of faults
	at := first
	for _, f := range []func(at time.Duration) churn.Fault{
		func(at time.Duration) churn.Fault { return churn.RelayLost(0, at, lasts) },
		func(at time.Duration) churn.Fault { return churn.RelayRestarted(1, at, 10*time.Second) },
		func(at time.Duration) churn.Fault { return churn.Partition(2, 3, at, lasts) },
		func(at time.Duration) churn.Fault { return churn.Outage(4, at, lasts) },
	} {
		fault := f(at)
		w.Plan(fault)
		edges = append(edges, fault.At, fault.At+fault.For)
		at += fault.For + calm
	}
	end := at + calm
	w.Churn(c.Nodes/1000+1, first, end)
	events, hot := 0, 0.0
	for at := time.Minute; at <= end; at += time.Minute {
		events += w.Run(at)
		if at < first || slices.ContainsFunc(edges, func(e time.Duration) bool { return at >= e && at < e+quiet }) {
			continue
		}
		hot = max(hot, w.Hot())
		if broken, short := w.Broken(), w.Short(); w.Hot() > hottest || broken > 0 || short > 0 {
			t.Errorf("after %v: %d pairs get no data through, %d nodes are short of relays, the busiest relay has %.2f of the mean", at, broken, short, w.Hot())
		}
	}
	probes, punches := w.Sent()
	t.Logf("%d nodes and %d relays for %v: %d events, %d probes, %d attempts at direct paths", c.Nodes, c.Relays, end, events, probes, punches)
	t.Logf("the busiest relay has %.2f of the mean at most", hot)
	t.Logf("paths in use moved %d times, %d of them without a reason, %d at most for one pair", w.PathMoves, w.CalmPathMoves, w.WorstPath)
	t.Logf("reservations moved %d times, %d of them without a reason, %d at most for one node", w.RelayMoves, w.CalmRelayMoves, w.WorstRelay)
	if w.WorstPath > 2 || w.WorstRelay > 1 || w.CalmRelayMoves > c.Nodes/1000 || w.CalmPathMoves > c.Constant/10 {
		t.Error("paths or reservations oscillate")
	}
	times(t, "data flows again", w.Paths, 30*time.Second)
	times(t, "all reservations are there again", w.Reserved, time.Minute)
}

// times prints how long something took, by what had ended it. 99 of 100 have to take patience at most.
func times(t *testing.T, what string, of map[string][]time.Duration, patience time.Duration) {
	t.Helper()
	for _, why := range slices.Sorted(maps.Keys(of)) {
		all := churn.Sorted(of[why])
		s := func(part float64) float64 { return churn.Part(all, part).Seconds() }
		t.Logf("%s after %s, %d times: half in %.1f s, 90 %% in %.1f, 99 %% in %.1f, all in %.1f", what, why, len(all), s(.5), s(.9), s(.99), s(1))
		if s(.99) > patience.Seconds() {
			t.Errorf("%s %.1f s after %s, want %v", what, s(.99), why, patience)
		}
	}
}
