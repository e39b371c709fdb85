package e2e

import (
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

// watchShare is what looking at an agent of a large cluster may take of a processor: a scrape every 15 s, status --watch and an
// open map together.
const watchShare = 0.01

// TestWatchingIsCheap measures what scrapes, status and a map cost the agent of a cluster of 1,000 members. A capture has no code in
// the agent: it reads packet sockets of its own (package capture), and only while it runs.
func TestWatchingIsCheap(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	n := at(t, l, "edge-1", lab.EIM)
	absent(t, &l.Cluster, idleMembers-1)
	startAll(t, l)
	each := func(what string, every time.Duration, times int, f func()) float64 {
		before := usedBy(t, n.Agent.PID())
		for range times {
			f()
		}
		one := (usedBy(t, n.Agent.PID()).cpu - before.cpu) / time.Duration(times)
		share := float64(one) / float64(every)
		t.Logf("%s: %.2f ms of the agent's processor time, every %v %.3f %% of a processor", what, one.Seconds()*1000, every, 100*share)
		return share
	}
	share := each("a scrape", 15*time.Second, 100, func() {
		_, err := n.Run(t.Context(), "curl", "-sf", "-o", "/dev/null", "http://"+n.Config.MetricsAddress+"/metrics")
		ok(t, err)
	})
	share += each("status --watch", 2*time.Second, 100, func() {
		_, _, err := n.AgentCommand(t.Context(), "status", "--runtime-dir", n.Config.RuntimeDir)
		ok(t, err)
	})
	each("status --json, with all members", 2*time.Second, 100, func() {
		_, err := n.Status(t.Context())
		ok(t, err)
	})
	const looked = 20 * time.Second
	during := func() float64 {
		before, since := usedBy(t, n.Agent.PID()), time.Now()
		time.Sleep(looked) // sleep: what is measured
		return float64(usedBy(t, n.Agent.PID()).cpu-before.cpu) / float64(time.Since(since))
	}
	idle := during()
	newLiveMap(t, n)
	open := during() - idle
	t.Logf("an open map: %.3f %% of a processor; together %.3f %%", 100*open, 100*(share+open))
	if share+open > watchShare {
		t.Errorf("watched, the agent takes %.3f %% of a processor more, want at most %.1f", 100*(share+open), 100*watchShare)
	}
}
