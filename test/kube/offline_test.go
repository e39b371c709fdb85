package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	_, err := c.On(t.Context(), nodes[1], agentBinary(t), "install", "--node-ip") // with the wait of kubelet's unit for the address
	ok(t, err)
	addresses := map[string]string{}
	for _, n := range nodes {
		addresses[n] = meshIP(t, c, n)
	}
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
	missed := map[string]int{}
	for _, n := range nodes {
		missed[n] = missing(t, c, n)
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

	// Back online: kubelets report again, the same addresses, and API pods are made again.
	ok(t, c.WAN(t.Context(), "b", true))
	start = time.Now()
	reported := eventually(t, 20*time.Second, func(ctx context.Context) error {
		for _, n := range nodes {
			if err := reportsSince(ctx, c, n, addresses[n], start); err != nil {
				return err
			}
		}
		return nil
	})
	if n := missing(t, c, nodes[1]) - missed[nodes[1]]; n != 0 {
		t.Errorf("%s: kubelet, whose unit waits for the agent's, looked %d times for an address that the host lacked", nodes[1], n)
	}
	for _, n := range nodes {
		figure(t, "%s: kubelet began %d times to report its status while the host lacked the address, and reported %s in the end",
			n, missing(t, c, n)-missed[n], addresses[n])
	}
	figure(t, "back online: both nodes Ready, with the same mesh addresses, after %s (promised: 20 s)", seconds(reported))
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

// lateWeb are static pods on the host's network: one needs nothing, the other's environment has the node's address.
const lateWeb = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default, labels: {app: NAME}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: e2e.test/podtool:1
    args: [serve, --name, "NAME SAYS", --port, "PORT"]
    env: [{name: HOST_IP, valueFrom: {fieldRef: {fieldPath: FIELD}}}]
`

// A node of a site without uplink gets power, and its agent comes 35 s later. kubelet waits for the address as long as its
// unit says, then runs without one: pods that do not ask for it start. A pod whose environment has status.hostIP starts when
// the agent has brought the address.
func TestAgentLate(t *testing.T) {
	c, _ := installed(t)
	const node, unitFile = "edge-b2", "/etc/systemd/system/edgemesh-agent.service"
	manifests := map[string]string{ // by name and port
		"late-plain 9386":  strings.NewReplacer("SAYS", "", "FIELD", "spec.nodeName").Replace(lateWeb),
		"late-asking 9396": strings.NewReplacer("SAYS", "$(HOST_IP)", "FIELD", "status.hostIP").Replace(lateWeb),
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = c.WAN(ctx, "b", true)
		_, _ = c.On(ctx, node, "mv", unitFile+".held", unitFile) // it is there, unless the test failed
		toDaemonSet(t, c, node)
		if _, err := c.On(ctx, node, "sh", "-c", "rm -f /etc/kubernetes/manifests/late-*.yaml"); err != nil {
			t.Error(err)
		}
	})
	installUnit(t, c, node)
	_, err := c.On(t.Context(), node, agentBinary(t), "install", "--node-ip") // with the wait of kubelet's unit
	ok(t, err)
	kubectl(t, "label", "node", node, "network.edgemesh.io/agent=systemd")
	eventually(t, time.Minute, func(ctx context.Context) error { return unitSays(ctx, c, node, "agent is running") })
	for key, text := range manifests {
		name, port, _ := strings.Cut(key, " ")
		_, err := c.On(t.Context(), node, "sh", "-c", "cat > /etc/kubernetes/manifests/"+name+".yaml <<'Y'\n"+strings.NewReplacer("NAME", name, "PORT", port).Replace(text)+"Y")
		ok(t, err)
	}
	mesh := meshIP(t, c, node)
	says := func(ctx context.Context, port, want string) error {
		a, err := curlNode(ctx, c, node, "http://127.0.0.1:"+port+"/")
		if err == nil && strings.TrimSpace(a.Name) != want {
			err = fmt.Errorf("%q answered, want %q", a.Name, want)
		}
		return err
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		return errors.Join(says(ctx, "9386", "late-plain"), says(ctx, "9396", "late-asking "+mesh))
	})

	ok(t, c.WAN(t.Context(), "b", false))
	missed := missing(t, c, node)
	_, err = c.On(t.Context(), node, "mv", unitFile, unitFile+".held")
	ok(t, err)
	ok(t, c.Cut(t.Context(), node))
	began := time.Now()
	ok(t, c.Start(t.Context(), node))
	eventually(t, time.Minute, func(ctx context.Context) error { return says(ctx, "9386", "late-plain") })
	plain := time.Since(began)
	time.Sleep(35*time.Second - time.Since(began)) // sleep: it is asked after 35 s
	if err := says(t.Context(), "9396", "late-asking "+mesh); err == nil {
		t.Error("a pod has the node's address in its environment, and the host has not")
	}
	if out, err := c.On(t.Context(), node, "ip", "-br", "addr", "show", "to", mesh); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("the host has its mesh address without the agent: this shows nothing: %s, %v", out, err)
	}
	without := missing(t, c, node) - missed
	_, err = c.On(t.Context(), node, "mv", unitFile+".held", unitFile)
	ok(t, err)
	came := time.Now()
	eventually(t, time.Minute, func(ctx context.Context) error { return says(ctx, "9396", "late-asking "+mesh) })
	figure(t, "%s: power %s before its agent: kubelet missed its address %d times and ran on; a static pod served after %s, one with status.hostIP %s after the agent began",
		node, seconds(came.Sub(began)), without, seconds(plain), seconds(time.Since(came)))
	ok(t, c.WAN(t.Context(), "b", true))
	eventually(t, time.Minute, func(ctx context.Context) error { return reportsSince(ctx, c, node, mesh, came) })
}

// missing counts how often a node's kubelet did not find its --node-ip on the host.
func missing(t *testing.T, c *cluster.Cluster, node string) int {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(c.Dir, "nodes", node, "log", "kubelet.log"))
	ok(t, err)
	return strings.Count(string(log), "not found in the host's network interfaces")
}

// reportsSince wants the Node to be Ready by a word of kubelet's after a time, with that address.
func reportsSince(ctx context.Context, c *cluster.Cluster, node, address string, since time.Time) error {
	var n corev1.Node
	if err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n); err != nil {
		return err
	}
	ip, err := internalIP(ctx, c, node)
	if err == nil && ip != address {
		err = fmt.Errorf("%s: InternalIP %q, want %s", node, ip, address)
	}
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
			return nil
		}
	}
	return fmt.Errorf("%s is not Ready again", node)
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

// agentPods are the agents that run in pods, and relays; the controller's pod may be on any node.
const agentPods = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3Dedgemesh%2Capp.kubernetes.io/component%21%3Dcontroller"

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
