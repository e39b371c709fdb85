package kube

import (
	"context"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

const (
	// outage is how long the API server is down.
	outage = 3 * time.Minute
	// crashGap is how long a flow may stand still while kubelet notices that an agent was
	// killed, and starts it again.
	crashGap = 5 * time.Second
)

// kube-apiserver down for 3 minutes while all agents restart: traffic continues, and
// nothing changes when it is back.
func TestAPIServerDown(t *testing.T) {
	c, _ := installed(t)
	rollout(t, time.Minute)
	web := waitPods(t, "app=web", 4, time.Minute)
	before := kubectl(t, "get", "meshnodes", "-o",
		"jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.spec.peerID} {.status.podCIDRs}{\"\\n\"}{end}")
	f := startFlows(t, c)

	down := time.Now()
	ok(t, c.Service(t.Context(), "stop", "cloud", "kube-apiserver"))
	t.Cleanup(func() { _ = c.Service(context.WithoutCancel(t.Context()), "start", "cloud", "kube-apiserver") })
	var slowest time.Duration
	for _, n := range cluster.FirstNodes() {
		ok(t, c.KillAgent(t.Context(), n))
		took := eventually(t, time.Minute, func(ctx context.Context) error { return agentRuns(ctx, c, n) })
		slowest = max(slowest, took)
		ok(t, allPairs(t.Context(), c, web))
	}
	t.Logf("all agents restarted by kubelet, the slowest in %v", slowest)
	// What is to be seen is that nothing happens for the whole time.
	for time.Since(down) < outage {
		time.Sleep(min(20*time.Second, outage-time.Since(down))) // sleep: nothing happens meanwhile
		ok(t, allPairs(t.Context(), c, web))
	}
	ok(t, c.Service(t.Context(), "start", "cloud", "kube-apiserver"))
	eventually(t, time.Minute, func(ctx context.Context) error { return nodesReady(ctx, c) })
	rollout(t, time.Minute)
	ok(t, allPairs(t.Context(), c, web))
	gap, whose := f.stop(t)
	figure(t,
		"API server down for %s, all agents killed meanwhile: TCP flows survive, longest gap that counts %d ms (%s; an agent killed is back after %s)",
		seconds(outage), gap.Milliseconds(), whose, seconds(slowest))
	if gap > crashGap {
		t.Errorf("gap of %v", gap)
	}
	if after := kubectl(t, "get", "meshnodes", "-o",
		"jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.spec.peerID} {.status.podCIDRs}{\"\\n\"}{end}"); after != before {
		t.Errorf("MeshNodes were\n%sand are\n%s", before, after)
	}
	resumed(t, c)
}

// resumed starts again what follows the API server: after such an outage it would be
// back only a minute later, and the next test is not about that.
func resumed(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ok(t, c.Service(t.Context(), "restart", "cloud", "kube-controller-manager"))
	ok(t, c.Service(t.Context(), "restart", "cloud", "kube-scheduler"))
	for _, n := range cluster.FirstNodes() {
		ok(t, c.Service(t.Context(), "restart", n, "kubelet"))
	}
	kubectl(t, "rollout", "restart", "daemonset/web")
	kubectl(t, "rollout", "status", "daemonset/web", "--timeout=55s")
}
