package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// openYurt returns a cluster whose edges run a real YurtHub, with our network installed by the guide's steps.
func openYurt(t *testing.T) *cluster.Cluster {
	return flavoured(t, "openyurt", func(t *testing.T, c *cluster.Cluster) *installation {
		return installChart(t, c, func() {})
	})
}

// The scene of the project's first sentence, on OpenYurt: every ordered pair of pods, on edges behind two NATs with one LAN
// prefix and on a cloud node. Edges' agents ask YurtHub.
func TestOpenYurtScene(t *testing.T) {
	c := openYurt(t)
	i := suite.installed
	all := workload(t)
	ok(t, allPairs(t.Context(), c, all))
	eventually(t, time.Minute, func(ctx context.Context) error { return nodesReady(ctx, c) })
	for _, n := range edges() {
		out, err := c.On(t.Context(), n, "curl", "-sSfm2", "http://127.0.0.1:10267/metrics")
		ok(t, err)
		if !strings.Contains(out, "edgemesh-agent") {
			t.Errorf("%s: YurtHub's metrics know no request of the agent", n)
		}
	}
	i.figure(t, all)
	i.calm(t)
}

// A site without uplink loses its power: YurtHub's cache brings back the same pods, the plugin gives them the same IPs, and
// they reach each other. The uplink comes back: so does the rest of the mesh.
func TestOpenYurtOfflineSite(t *testing.T) {
	c := openYurt(t)
	edgeServices(t, c)
	all := workload(t)
	agents := containers(t, c)
	site := []pod{on(t, all, "edge-b1"), on(t, all, "edge-b2")}
	ok(t, c.WAN(t.Context(), "b", false))
	t.Cleanup(func() { _ = c.WAN(context.WithoutCancel(t.Context()), "b", true) })
	for _, p := range site {
		ok(t, c.Cut(t.Context(), p.node))
	}
	start := time.Now()
	ok(t, parallel(2, func() error { return c.Start(t.Context(), site[0].node) }, func() error { return c.Start(t.Context(), site[1].node) }))
	eventually(t, 90*time.Second, func(ctx context.Context) error {
		return errors.Join(reach(ctx, c, site[0], site[1]), reach(ctx, c, site[1], site[0]))
	})
	figure(t, "OpenYurt: a site without uplink is power-cycled: the same pods with the same IPs reach each other after %s", seconds(time.Since(start)))
	eventually(t, time.Minute, func(ctx context.Context) error {
		return errors.Join(agentRuns(ctx, c, site[0].node), agentRuns(ctx, c, site[1].node))
	})
	figure(t, "OpenYurt: … the DaemonSet's agents run there after %s", seconds(time.Since(start)))

	serviceAnswers(t, c, site, start)

	ok(t, c.WAN(t.Context(), "b", true))
	start = time.Now()
	hub := hubBack(t.Context(), c, site[0].node, site[1].node)
	cloud := on(t, all, "cloud")
	eventually(t, time.Minute, func(ctx context.Context) error { return reach(ctx, c, cloud, site[0]) })
	figure(t, "OpenYurt: uplink back → reachable from the cloud after %s", seconds(time.Since(start)))
	eventually(t, time.Minute, func(ctx context.Context) error { return allPairs(ctx, c, all) })
	pairs := time.Now()
	back := <-hub
	ok(t, back.err)
	figure(t, "OpenYurt: uplink back → all %d ordered pairs after %s; YurtHub reconnected after %s", len(all)*(len(all)-1),
		seconds(pairs.Sub(start)), seconds(back.at.Sub(start)))
	if late := pairs.Sub(back.at); late > cachePromise {
		t.Errorf("all pairs %s after YurtHub reconnected, want %s", seconds(late), cachePromise)
	}
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return nodesReady(ctx, c) })
	figure(t, "OpenYurt: uplink back → nodes Ready after %s", seconds(time.Since(start)))
	sameIPs(t, "after the power cut", all, workload(t))
	startedOnce(t, agents, containers(t, c))
}

// A NetworkPolicy is in force over a power cut of a site without uplink.
func TestOpenYurtOfflinePolicy(t *testing.T) { policyOverPowerCut(t, openYurt(t)) }

// hubOnline says whether a node's YurtHub asks the API server: offline it refuses what it cannot cache, with 400.
func hubOnline(ctx context.Context, c *cluster.Cluster, node string) (bool, error) {
	code, err := c.On(ctx, node, "curl", "-sm2", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:10261/readyz")
	switch code {
	case "200":
		return true, nil
	case "400":
		return false, nil
	}
	return false, fmt.Errorf("YurtHub of %s answers %s: %w", node, code, err)
}

// hubBack says when the YurtHubs of all these nodes ask the API server again.
func hubBack(ctx context.Context, c *cluster.Cluster, nodes ...string) <-chan moment {
	return when(ctx, func() bool {
		for _, n := range nodes {
			if online, _ := hubOnline(ctx, c, n); !online {
				return false
			}
		}
		return true
	})
}

// offline cuts site b off until its YurtHubs know, and returns what plugs it in again.
func offline(t *testing.T, c *cluster.Cluster) (back func()) {
	t.Helper()
	ok(t, c.WAN(t.Context(), "b", false))
	up := sync.OnceFunc(func() { ok(t, c.WAN(context.WithoutCancel(t.Context()), "b", true)) })
	t.Cleanup(up)
	for _, n := range []string{"edge-b1", "edge-b2"} {
		eventually(t, 2*time.Minute, func(ctx context.Context) error {
			online, err := hubOnline(ctx, c, n)
			if online {
				err = fmt.Errorf("YurtHub of %s does not know yet that it is offline", n)
			}
			return err
		})
	}
	return up
}

// A node joins while a site is offline, and leaves while all are online: how soon the agents beside YurtHub know.
func TestOpenYurtMembers(t *testing.T) {
	c := openYurt(t)
	const node = "edge-a2"
	all := workload(t)
	online(t, c)
	back := offline(t, c)
	newcomer := joins(t, c, node)
	for _, away := range []string{"edge-b1", "edge-b2"} {
		ok(t, knows(t.Context(), c, away, node, false))
	}
	back()
	start := time.Now()
	hub := <-hubBack(t.Context(), c, "edge-b1", "edge-b2")
	ok(t, hub.err)
	eventually(t, cachePromise, func(ctx context.Context) error {
		return errors.Join(knows(ctx, c, "edge-b1", node, true), knows(ctx, c, "edge-b2", node, true))
	})
	known := time.Now()
	eventually(t, cachePromise, func(ctx context.Context) error {
		return errors.Join(reach(ctx, c, on(t, all, "edge-b1"), newcomer), reach(ctx, c, newcomer, on(t, all, "edge-b2")))
	})
	figure(t, "OpenYurt: a node joined while a site was offline: YurtHub reconnected %s after the uplink, the node known there %s after that, its pod reached %s after that",
		seconds(hub.at.Sub(start)), seconds(known.Sub(hub.at)), seconds(time.Since(known)))

	// Gone: the deletion of its Node alone, as an administrator would.
	ok(t, c.Cut(t.Context(), node))
	kubectl(t, "delete", "node", node)
	start = time.Now()
	var tasks []func(context.Context) error
	for _, n := range edges() {
		tasks = append(tasks, func(ctx context.Context) error { return knows(ctx, c, n, node, false) })
	}
	eventually(t, cachePromise, func(ctx context.Context) error {
		var errs []error
		for _, f := range tasks {
			errs = append(errs, f(ctx))
		}
		return errors.Join(errs...)
	})
	figure(t, "OpenYurt: a Node is deleted: forgotten by all agents beside YurtHub after %s", seconds(time.Since(start)))
}

// A Node is deleted while a site is offline: the site forgets it soon after its YurtHub is back.
func TestOpenYurtNodeDeletedMeanwhile(t *testing.T) {
	c := openYurt(t)
	const gone, away = "gone", "edge-b1"
	workload(t)
	paperNode(t, c, gone)
	eventually(t, cachePromise, func(ctx context.Context) error { return knows(ctx, c, away, gone, true) })
	back := offline(t, c)
	kubectl(t, "delete", "node,meshnode", gone, "--ignore-not-found")
	ok(t, knows(t.Context(), c, away, gone, true))
	back()
	hub := <-hubBack(t.Context(), c, away)
	ok(t, hub.err)
	eventually(t, cachePromise, func(ctx context.Context) error { return knows(ctx, c, away, gone, false) })
	figure(t, "OpenYurt: a Node was deleted while a site was offline: forgotten there %s after YurtHub reconnected", seconds(time.Since(hub.at)))
	ok(t, allPairs(t.Context(), c, workload(t)))
}

// YurtHub starts again and again.
func TestOpenYurtRestarts(t *testing.T) { restarts(t, openYurt(t), "yurthub") }

func TestOpenYurtSoak(t *testing.T) { soak(t, openYurt(t), "yurthub") }

func TestOpenYurtPolicyLabel(t *testing.T) { labelEnforced(t, openYurt(t), "OpenYurt") }

// The network leaves the nodes; it is the last test of the file.
func TestLeavesOpenYurt(t *testing.T) {
	c := openYurt(t)
	out, err := c.AdminCommand(t.Context(), filepath.Join(root, "manifests/cleanup-nodes.sh"), "--yes").CombinedOutput()
	if err != nil {
		t.Fatalf("cleanup-nodes.sh: %v\n%s", err, out)
	}
	for _, n := range edges() {
		links, err := c.On(t.Context(), n, "ip", "-br", "link")
		ok(t, err)
		if strings.Contains(links, "edgemesh-") {
			t.Errorf("%s: left:\n%s", n, links)
		}
	}
}
