package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// podBlocks are the claims of blocks by node.
func podBlocks(ctx context.Context, c *cluster.Cluster) (map[string][]string, error) {
	var list struct {
		Items []struct {
			Spec struct{ CIDR, NodeName string }
		}
	}
	err := c.API().Get(ctx, meshAPI+"podblocks", &list)
	blocks := map[string][]string{}
	for _, b := range list.Items {
		blocks[b.Spec.NodeName] = append(blocks[b.Spec.NodeName], b.Spec.CIDR)
	}
	return blocks, err
}

// ping wants echo replies, to a pod, of an address.
func ping(ctx context.Context, c *cluster.Cluster, from pod, addr string) error {
	out, err := c.Exec(ctx, from.node, from.name, "gaps", "--proto", "icmp", "--interval", "100ms", "--duration",
		"300ms", addr)
	var g cluster.Gaps
	if err == nil {
		err = json.Unmarshal([]byte(out), &g)
	}
	if err == nil && g.Received == 0 {
		err = fmt.Errorf("%s → %s: %d messages, no reply", from.name, addr, g.Sent)
	}
	return err
}

// A node joins a cluster that allocates no pod CIDRs: it claims a block of its own and
// is reachable from all nodes within 10 s of Ready. Deleted, it is cut off within 2 s,
// though it still runs, and its block is released.
func TestNodeJoinsAndLeaves(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-a2"
	web := waitPods(t, "app=web", 4, time.Minute)
	allocates := "--allocate-node-cidrs --cluster-cidr 10.244.0.0/16 --node-cidr-mask-size 24"
	ok(t, c.Setting("kcm-flags", "--allocate-node-cidrs=false"))
	ok(t, c.Service(t.Context(), "restart", "cloud", "kube-controller-manager"))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := errors.Join(c.Cut(ctx, node), c.Setting("kcm-flags", allocates),
			c.Service(ctx, "restart", "cloud", "kube-controller-manager"))
		// The pods' collector would take its time.
		_, podErr := c.Kubectl(ctx, "delete", "pods", "-A", "--field-selector", "spec.nodeName="+node, "--force")
		if err := errors.Join(err, podErr); err != nil {
			t.Error(err)
		}
	})

	start := time.Now()
	ok(t, c.Start(t.Context(), node))
	var ready time.Time
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		var n corev1.Node
		err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n)
		for _, cond := range n.Status.Conditions {
			if err == nil && cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				ready = time.Now()
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("%s is not Ready", node))
	})
	blocks, err := podBlocks(t.Context(), c)
	ok(t, err)
	if len(blocks[node]) != 1 {
		t.Fatalf("PodBlocks %v, want one of %s", blocks, node)
	}
	gateway := netip.MustParsePrefix(blocks[node][0]).Addr().Next().String()
	var tasks []func() error
	for _, from := range web {
		tasks = append(tasks, func() error { return ping(t.Context(), c, from, gateway) })
	}
	eventually(t, time.Minute, func(context.Context) error { return parallel(4, tasks...) })
	reached := time.Since(ready)
	// kubelet comes back to a pod that was there before the network only after 10 to 15 s.
	newcomer := on(t, waitPods(t, "app=web", 5, time.Minute), node)
	tasks = nil
	for _, from := range web {
		tasks = append(tasks, func() error { return reach(t.Context(), c, from, newcomer) },
			func() error { return reach(t.Context(), c, newcomer, from) },
			func() error { return reachFromNode(t.Context(), c, from.node, newcomer) })
	}
	ok(t, parallel(4, tasks...))
	figure(t,
		"node added: Ready %s after power-on with the claimed block %v, reachable from all %s after Ready (promised: 10 s), its first pod from and to all after %s",
		seconds(ready.Sub(start)), blocks[node], seconds(reached), seconds(time.Since(ready)))
	if reached > 10*time.Second {
		t.Errorf("reachable %s after Ready, want 10 s", seconds(reached))
	}

	// It is lost: kubelet no longer ends its pods.
	ok(t, c.Service(t.Context(), "stop", node, "kubelet"))
	cloud, neighbour := on(t, web, "cloud"), on(t, web, "edge-a1")
	for _, from := range []pod{cloud, neighbour} {
		ok(t, reach(t.Context(), c, from, newcomer))
	}
	type probe struct {
		from pod
		flow *cluster.Flow
	}
	var probes []probe
	for _, from := range []pod{cloud, neighbour} {
		flow, err := c.StartFlow(t.Context(), from.node, from.name, "icmp", newcomer.ip)
		ok(t, err)
		probes = append(probes, probe{from, flow})
	}
	time.Sleep(time.Second) // sleep: of flow before the cut
	deleted := time.Now()
	ok(t, c.API().Do(t.Context(), http.MethodDelete, "/api/v1/nodes/"+node, nil, nil))
	eventually(t, time.Minute, func(ctx context.Context) error {
		blocks, err := podBlocks(ctx, c)
		if err == nil && len(blocks[node]) > 0 {
			err = fmt.Errorf("%s still has %v", node, blocks[node])
		}
		return err
	})
	released := time.Since(deleted)
	time.Sleep(4*time.Second - min(released, 3*time.Second)) // sleep: what comes later than 2 s would show
	var last time.Duration
	for _, p := range probes {
		flowed := time.Since(deleted)
		g, err := p.flow.Stop()
		ok(t, err)
		// The longest gap is the silence since the cut, up to the last message sent.
		silent := time.Duration(g.GapMs * float64(time.Millisecond))
		cut := max(0, flowed-silent)
		t.Logf("%s: %d of %d answered, silence for %v: cut off %v after the deletion", p.from.node, g.Received,
			g.Sent, silent, cut)
		if g.Received == 0 {
			t.Errorf("%s: nothing was answered before the deletion", p.from.node)
		}
		last = max(last, cut)
	}
	figure(t, "node deleted: cut off after %d ms (promised: 2000 ms), its block released after %d ms",
		last.Milliseconds(), released.Milliseconds())
	if last > 2*time.Second {
		t.Errorf("cut off after %v, want 2 s", last)
	}
	for _, from := range []pod{cloud, neighbour} {
		if a, err := curl(t.Context(), c, from, podURL(newcomer.ip)); err == nil {
			t.Errorf("%s still reaches the deleted node: %+v", from.node, a)
		}
	}
	if a, err := curl(t.Context(), c, newcomer, podURL(cloud.ip)); err == nil {
		t.Errorf("the deleted node still reaches the cloud: %+v", a)
	}
}
