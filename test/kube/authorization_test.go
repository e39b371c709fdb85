package kube

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

// authorizationTest is how to run the test of this file.
const authorizationTest = "EDGEMESH_TIER=long EDGEMESH_KUBE=kubeedge REQUIRE_AUTH=true go test -v -run TestRequireAuthorization ./test/kube"

// requireAuthorization says that MetaServer asks for tokens, over https.
func requireAuthorization() bool { return os.Getenv("REQUIRE_AUTH") == "true" }

// KubeEdge with requireAuthorization: the cloud's DaemonSet runs on edges, too, with its token. What is lost: a site that
// loses power and uplink has no agent until the uplink is back.
func TestRequireAuthorization(t *testing.T) {
	if flavour() != "kubeedge" || !requireAuthorization() {
		t.Skip("on a cluster of its own: " + authorizationTest)
	}
	c := bare(t)
	i := installChart(t, c, func() {}, "--set", "kubeedge.enabled=false", "--set", "apiServer.host=")
	figure(t, "KubeEdge with requireAuthorization: apply → nodes Ready %s, pods ready %s, all pairs %s", seconds(i.nodes), seconds(i.workload), seconds(i.reachable))
	for _, n := range edges() {
		ok(t, podRuns(t.Context(), c, n, "agent"))
	}
	all := workload(t)
	site := []pod{on(t, all, "edge-b1"), on(t, all, "edge-b2")}
	ok(t, c.WAN(t.Context(), "b", false))
	t.Cleanup(func() { _ = c.WAN(context.WithoutCancel(t.Context()), "b", true) })
	for _, p := range site {
		ok(t, c.Cut(t.Context(), p.node))
	}
	ok(t, parallel(2, func() error { return c.Start(t.Context(), site[0].node) }, func() error { return c.Start(t.Context(), site[1].node) }))
	// The API would say that it runs: it has not heard from the edge.
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Second) { // sleep: it does not run meanwhile
		if out, err := c.On(t.Context(), site[0].node, "curl", "-sSfm2", "--unix-socket", "/run/edgemesh/agent.sock", "http://agent/v1/status"); err == nil {
			t.Fatalf("an agent runs without an uplink, docs/kubeedge.md says that none does:\n%s", out)
		}
	}
	ok(t, c.WAN(t.Context(), "b", true))
	start := time.Now()
	eventually(t, 3*time.Minute, func(ctx context.Context) error {
		return errors.Join(reach(ctx, c, site[0], site[1]), reach(ctx, c, on(t, all, "cloud"), site[0]))
	})
	figure(t, "KubeEdge with requireAuthorization: power and uplink lost; %s after the uplink the site talks again", seconds(time.Since(start)))
}
