package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// staticWeb is a static pod with pod networking.
const staticWeb = `
apiVersion: v1
kind: Pod
metadata: {name: static-web, namespace: default, labels: {app: static-web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: e2e.test/podtool:1
    args: [serve, --name, $(POD_NAME)]
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /, port: 9376}, periodSeconds: 1}
`

// A site without uplink, all its nodes power-cycled, with the agent as static pod on
// one and as unit on the other: static pods come back within 20 s with their IPs and
// reach each other. Back online, API pods of the same name get their IPs again.
func TestOfflineSite(t *testing.T) {
	c, _ := installed(t)
	nodes := []string{"edge-b1", "edge-b2"}
	t.Cleanup(func() {
		for _, n := range nodes {
			toDaemonSet(t, c, n)
			if _, err := c.On(context.WithoutCancel(t.Context()), n, "rm", "-f",
				"/etc/kubernetes/manifests/static-web.yaml"); err != nil {
				t.Error(err)
			}
		}
	})
	installStaticPod(t, c, nodes[0])
	installUnit(t, c, nodes[1])
	kubectl(t, "label", "node", nodes[0], "network.edgemesh.io/agent=static-pod")
	kubectl(t, "label", "node", nodes[1], "network.edgemesh.io/agent=systemd")
	for _, n := range nodes {
		_, err := c.On(t.Context(), n, "sh", "-c",
			"cat > /etc/kubernetes/manifests/static-web.yaml <<'Y'\n"+staticWeb+"Y")
		ok(t, err)
	}
	eventually(t, time.Minute,
		func(ctx context.Context) error { return unitSays(ctx, c, nodes[1], "agent is running") })
	eventually(t, time.Minute, func(ctx context.Context) error { return agentForm(ctx, c, nodes[0], "static-agent") })
	static := waitPods(t, "app=static-web", 2, time.Minute)
	shop := waitPods(t, "app=shop", 2, time.Minute)
	web := waitPods(t, "app=web", 4, time.Minute)
	ok(t, allPairs(t.Context(), c, append(static, on(t, web, "cloud"))))

	// The uplink goes, then the power of the whole site.
	ok(t, c.WAN(t.Context(), "b", false))
	t.Cleanup(func() { _ = c.WAN(context.WithoutCancel(t.Context()), "b", true) })
	for _, n := range nodes {
		ok(t, c.Cut(t.Context(), n))
	}
	start := time.Now()
	var tasks []func() error
	for _, n := range nodes {
		tasks = append(tasks, func() error { return c.Start(t.Context(), n) })
	}
	ok(t, parallel(2, tasks...))
	// Each node's pod serves again at its former address, then from one to the other.
	for _, p := range static {
		eventually(t, time.Minute, func(ctx context.Context) error {
			a, err := curlNode(ctx, c, p.node, podURL(p.ip))
			if err == nil && a.Name != "static-web-"+p.node && a.Name != "static-web" {
				err = fmt.Errorf("%s: %q answered", p.node, a.Name)
			}
			return err
		})
	}
	served := time.Since(start)
	local := func(ctx context.Context, from, to pod) error {
		_, err := decodeAnswer(c.Exec(ctx, from.node, "static-web-"+from.node, "get", podURL(to.ip)))
		return err
	}
	eventually(t, 90*time.Second, func(ctx context.Context) error {
		return errors.Join(local(ctx, static[0], static[1]), local(ctx, static[1], static[0]))
	})
	reached := time.Since(start)
	figure(t,
		"site without uplink power-cycled: static pods serve at their former IPs after %s, reach each other after %s (promised: 20 s)",
		seconds(served), seconds(reached))
	if reached > 20*time.Second {
		t.Errorf("static pods reach each other after %s, want 20 s", seconds(reached))
	}

	// Back online: API pods are made again.
	ok(t, c.WAN(t.Context(), "b", true))
	start = time.Now()
	again := waitRunning(t, c, "app=shop", 2, 3*time.Minute)
	back := time.Since(start)
	sameIPs(t, "after the reboot", shop, again)
	ok(t, allPairs(t.Context(), c, append(again, on(t, web, "cloud"))))
	for _, p := range shop { // one by one: the spread then leaves the scheduler the same node
		kubectl(t, "delete", "pod", p.name)
		again = waitRunning(t, c, "app=shop", 2, time.Minute)
	}
	sameIPs(t, "after their deletion", shop, again)
	ok(t, allPairs(t.Context(), c, append(again, on(t, web, "cloud"))))
	figure(t,
		"back online: API pods run again after %s with their former IPs, and again when re-created under the same names",
		seconds(back))
}

// waitRunning is waitPods, but believes only pods whose container runs on its node: a
// node that was off has an old status in the API.
func waitRunning(t *testing.T, c *cluster.Cluster, selector string, count int, within time.Duration) []pod {
	t.Helper()
	var found []pod
	eventually(t, within, func(ctx context.Context) (err error) {
		if found, err = pods(ctx, c, "default", selector); err != nil {
			return err
		}
		if len(found) != count {
			return fmt.Errorf("%d of %d pods %s are ready", len(found), count, selector)
		}
		for _, p := range found {
			if _, err := curl(ctx, c, p, podURL(p.ip)); err != nil {
				return err
			}
		}
		return nil
	})
	return found
}

func sameIPs(t *testing.T, when string, before, after []pod) {
	t.Helper()
	for i, p := range after {
		if p != before[i] {
			t.Errorf("%s: %+v, was %+v", when, p, before[i])
		}
	}
}

// installStaticPod installs the agent as a static pod, as the guide says.
func installStaticPod(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	out, err := c.On(t.Context(), node, agentBinary(t), "install", "--form", "static-pod")
	ok(t, err)
	t.Logf("%s: edgemesh-agent install --form static-pod:\n%s", node, out)
}

// agentPods are the agents that run in pods.
const agentPods = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3Dedgemesh"

// agentForm wants the only agent's pod on a node to be of a component: agent, or
// static-agent.
func agentForm(ctx context.Context, c *cluster.Cluster, node, component string) error {
	var list corev1.PodList
	if err := c.API().Get(ctx, agentPods, &list); err != nil {
		return err
	}
	var there []string
	for _, p := range list.Items {
		if p.Spec.NodeName == node {
			there = append(there, p.Labels["app.kubernetes.io/component"])
			if component == there[0] && !ready(p.Status.Conditions) {
				return fmt.Errorf("%s is not ready", p.Name)
			}
		}
	}
	if len(there) != 1 || there[0] != component {
		return fmt.Errorf("agents on %s: %s, want %s", node, strings.Join(there, " "), component)
	}
	return agentRuns(ctx, c, node)
}
