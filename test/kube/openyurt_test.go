package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// openYurt returns a cluster whose edges run a real YurtHub, with our network installed by the guide's steps.
func openYurt(t *testing.T) *cluster.Cluster {
	return flavoured(t, "openyurt", func(t *testing.T, c *cluster.Cluster) *installation {
		return installChart(t, c, func() {})
	})
}

// hubPromise is how soon after its YurtHub's reconnection an agent is up to date.
const hubPromise = 10 * time.Second

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
	figure(t, "OpenYurt: apply → nodes Ready %s, pods ready %s, all %d ordered pairs reachable with the source kept %s",
		seconds(i.nodes), seconds(i.workload), len(all)*(len(all)-1), seconds(i.reachable))
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
	if late := pairs.Sub(back.at); late > hubPromise {
		t.Errorf("all pairs %s after YurtHub reconnected, want %s", seconds(late), hubPromise)
	}
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return nodesReady(ctx, c) })
	figure(t, "OpenYurt: uplink back → nodes Ready after %s", seconds(time.Since(start)))
	sameIPs(t, "after the power cut", all, workload(t))
	for name, n := range containers(t, c) {
		if had, was := agents[name]; !was {
			t.Errorf("%s is a new pod of the agent", name)
		} else if n > had+1 {
			t.Errorf("%s was started %d times, was %d before the power cut", name, n, had)
		}
	}
}

// moment is when something was so.
type moment struct {
	at  time.Time
	err error
}

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
	out := make(chan moment, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		for ; ; time.Sleep(200 * time.Millisecond) {
			all := true
			for _, n := range nodes {
				online, _ := hubOnline(ctx, c, n)
				all = all && online
			}
			if all || ctx.Err() != nil {
				out <- moment{time.Now(), ctx.Err()}
				return
			}
		}
	}()
	return out
}

// containers counts how often the agent of each of its pods was started again.
func containers(t *testing.T, c *cluster.Cluster) map[string]int32 {
	t.Helper()
	var list corev1.PodList
	ok(t, c.API().Get(t.Context(), agentPods, &list))
	starts := map[string]int32{}
	for _, p := range list.Items {
		for _, s := range p.Status.ContainerStatuses {
			starts[p.Name] += s.RestartCount
		}
	}
	return starts
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
	back := offline(t, c)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = c.Cut(ctx, node)
		ok(t, os.RemoveAll(filepath.Join(c.Dir, "nodes", node))) // it is new to the next run
		_, err := c.Kubectl(ctx, "delete", "node", node, "--ignore-not-found")
		_, podErr := c.Kubectl(ctx, "delete", "pods", "-A", "--field-selector", "spec.nodeName="+node, "--force")
		if err := errors.Join(err, podErr); err != nil {
			t.Error(err)
		}
	})
	ok(t, c.Start(t.Context(), node))
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		return errors.Join(nodeReady(ctx, c, node), knows(ctx, c, "cloud", node, true))
	})
	var newcomer pod
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		web, err := pods(ctx, c, "default", "app=web")
		for _, p := range web {
			if p.node == node {
				newcomer = p
			}
		}
		if newcomer.name == "" {
			return errors.Join(err, fmt.Errorf("no pod on %s", node))
		}
		return nil
	})
	for _, away := range []string{"edge-b1", "edge-b2"} {
		ok(t, knows(t.Context(), c, away, node, false))
	}
	back()
	start := time.Now()
	hub := <-hubBack(t.Context(), c, "edge-b1", "edge-b2")
	ok(t, hub.err)
	eventually(t, hubPromise, func(ctx context.Context) error {
		return errors.Join(knows(ctx, c, "edge-b1", node, true), knows(ctx, c, "edge-b2", node, true))
	})
	known := time.Now()
	eventually(t, hubPromise, func(ctx context.Context) error {
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
	eventually(t, hubPromise, func(ctx context.Context) error {
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
	eventually(t, hubPromise, func(ctx context.Context) error { return knows(ctx, c, away, gone, true) })
	back := offline(t, c)
	kubectl(t, "delete", "node,meshnode", gone)
	ok(t, knows(t.Context(), c, away, gone, true))
	back()
	hub := <-hubBack(t.Context(), c, away)
	ok(t, hub.err)
	eventually(t, hubPromise, func(ctx context.Context) error { return knows(ctx, c, away, gone, false) })
	figure(t, "OpenYurt: a Node was deleted while a site was offline: forgotten there %s after YurtHub reconnected", seconds(time.Since(hub.at)))
	ok(t, allPairs(t.Context(), c, workload(t)))
}

// The network leaves the nodes; it is the last test of the file.
func TestLeavesOpenYurt(t *testing.T) {
	c := openYurt(t)
	out, err := c.AdminCommand(t.Context(), filepath.Join(root, "manifests/cleanup-nodes.sh")).CombinedOutput()
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
