package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// reloadWeb has a hostPort, on a node that is NODE.
const reloadWeb = `
apiVersion: v1
kind: Pod
metadata: {name: reload-web, labels: {app: reload-web}}
spec:
  terminationGracePeriodSeconds: 1
  nodeName: NODE
  tolerations: [{operator: Exists}]
  containers:
  - name: web
    image: e2e.test/podtool:1
    args: [serve, --name, reload-web]
    ports: [{containerPort: 9376, hostPort: 8476}]
    readinessProbe: {httpGet: {path: /, port: 9376}, periodSeconds: 1}
`

// TestReloadedFirewall: where another program removes all rules from a node's firewall, or those of the nat table alone, hostPorts are
// back soon, with the agent as the DaemonSet's pod and as static pod.
func TestReloadedFirewall(t *testing.T) {
	c, _ := installed(t)
	const node, neighbour = "edge-b1", "edge-b2"
	rollout(t, time.Minute)
	manifest := strings.Replace(reloadWeb, "NODE", node, 1)
	kubectlIn(t, manifest, "apply", "-f", "-")
	t.Cleanup(func() {
		toDaemonSet(t, c, node)
		if _, err := c.KubectlIn(context.WithoutCancel(t.Context()), manifest, "delete", "--ignore-not-found", "--timeout=55s", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	waitPods(t, "app=reload-web", 1, time.Minute)
	target := "http://" + meshIP(t, c, node) + ":8476/"
	answers := func(ctx context.Context) error {
		a, err := curlNode(ctx, c, neighbour, target)
		if err == nil && a.Name != "reload-web" {
			err = fmt.Errorf("%q answered", a.Name)
		}
		return err
	}
	rules := func(ctx context.Context) string { // in which backends the pod's are
		out, err := c.On(ctx, node, "sh", "-c", "for b in nft legacy; do for v in iptables ip6tables; do $v-$b-save | grep -q -- '-A CNI-DN-' && echo $v-$b; done; done; true")
		ok(t, err)
		return strings.Join(strings.Fields(out), " ")
	}
	reload := func(form string) {
		t.Helper()
		eventually(t, 30*time.Second, answers)
		before := rules(t.Context())
		for _, flush := range []string{"nft flush ruleset", "iptables -w -t nat -F"} {
			_, err := c.On(t.Context(), node, "sh", "-ec", flush)
			ok(t, err)
			took := eventually(t, 30*time.Second, answers)
			figure(t, "%s, agent as %s: a hostPort answers again after %d ms", flush, form, took.Milliseconds())
			eventually(t, 15*time.Second, func(ctx context.Context) error {
				if is := rules(ctx); is != before {
					return fmt.Errorf("its rules are in %q, were in %q", is, before)
				}
				out, err := c.On(ctx, node, agentBinary(t), "status", "--json")
				if err == nil && strings.Contains(out, "host-ports") {
					err = errors.New(out)
				}
				return err
			})
		}
	}
	reload("DaemonSet")
	installStaticPod(t, c, node)
	kubectl(t, "label", "node", node, "network.edgemesh.io/agent=static-pod")
	eventually(t, time.Minute, func(ctx context.Context) error { return agentForm(ctx, c, node, "static-agent") })
	reload("static pod")
	toDaemonSet(t, c, node)
	kubectl(t, "delete", "pod", "reload-web", "--timeout=55s")
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		if is := rules(ctx); is != "" {
			return fmt.Errorf("rules of the deleted pod are left in %s", is)
		}
		return nil
	})
}

// TestDrain: `kubectl drain` takes a node's pods away and leaves its agent, its mesh address and its block; back in service, its pods of
// the same name have their addresses and are reached.
func TestDrain(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-b2"
	rollout(t, time.Minute)
	address := meshIP(t, c, node)
	blocks, err := podBlocks(t.Context(), c)
	ok(t, err)
	shop, web := waitPods(t, "app=shop", 2, time.Minute), waitPods(t, "app=web", 4, time.Minute)
	t.Cleanup(func() {
		if _, err := c.Kubectl(context.WithoutCancel(t.Context()), "uncordon", node); err != nil {
			t.Error(err)
		}
	})
	start := time.Now()
	kubectl(t, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=50s")
	figure(t, "kubectl drain: %s", seconds(time.Since(start)))
	var mine []pod
	eventually(t, time.Minute, func(ctx context.Context) error {
		left, err := pods(ctx, c, "default", "app=shop")
		for _, p := range left {
			if p.node == node {
				err = errors.Join(err, fmt.Errorf("%s is left", p.name))
			}
		}
		return err
	})
	for _, p := range shop {
		if p.node == node {
			mine = append(mine, p)
		}
	}
	// The node is one of the mesh as before: its DaemonSets' pods, which drain leaves, and its own address.
	ok(t, agentForm(t.Context(), c, node, "agent"))
	far := on(t, web, "cloud")
	eventually(t, 15*time.Second, func(ctx context.Context) error { return reach(ctx, c, far, on(t, web, node)) })
	eventually(t, 15*time.Second, func(ctx context.Context) error { return ping(ctx, c, far, address) })
	kubectl(t, "uncordon", node)
	back := time.Now()
	again := waitPods(t, "app=shop", 2, 2*time.Minute)
	for _, p := range again {
		for _, q := range mine {
			if p.name == q.name && p.node == node && p.ip != q.ip {
				t.Errorf("%s had %s, has %s", p.name, q.ip, p.ip)
			}
		}
	}
	eventually(t, 15*time.Second, func(ctx context.Context) error { return allPairs(ctx, c, append(again, far)) })
	figure(t, "back in service: pods run and reach each other after %s", seconds(time.Since(back)))
	if is, err := podBlocks(t.Context(), c); err != nil || fmt.Sprint(is) != fmt.Sprint(blocks) || meshIP(t, c, node) != address {
		t.Errorf("blocks %v, were %v; address %s, was %s; %v", is, blocks, meshIP(t, c, node), address, err)
	}
}
