package kube

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// Two forms of the agent on one node: the second refuses by the lock, or stands by
// and takes over; flows continue as the node moves from one form to the other and back.
func TestForms(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-a1"
	rollout(t, time.Minute)

	// The second form, started by hand.
	_, err := c.On(t.Context(), node, "sh", "-c",
		"echo 'membership: {kubernetes: {kubeconfig: /etc/kubernetes/kubelet.conf}}' > /run/second.yaml")
	ok(t, err)
	start := time.Now()
	_, err = c.On(t.Context(), node, agentBinary(t), "run", "--config", "/run/second.yaml")
	refused := time.Since(start)
	if err == nil || !strings.Contains(err.Error(), "another agent runs on this state directory") {
		t.Fatalf("the second agent on %s: %v", node, err)
	}
	if refused > 2*time.Second {
		t.Errorf("the second agent refused after %v", refused)
	}
	figure(t, "second agent on a node refuses after %d ms", refused.Milliseconds())

	// For good: it stands by until the DaemonSet's pod leaves, and back.
	t.Run("unit", func(t *testing.T) {
		throughForm(t, c, node, form{
			label: "systemd", install: installUnit,
			standsBy: func(ctx context.Context) error { return unitSays(ctx, c, node, "standing by") },
			runs:     func(ctx context.Context) error { return unitSays(ctx, c, node, "agent is running") },
		})
	})
	t.Run("static-pod", func(t *testing.T) {
		const node = "edge-b1"
		throughForm(t, c, node, form{
			label: "static-pod", install: installStaticPod,
			standsBy: func(ctx context.Context) error { return podRuns(ctx, c, node, "static-agent") },
			runs:     func(ctx context.Context) error { return agentForm(ctx, c, node, "static-agent") },
		})
	})
}

// form is a form of the agent besides the DaemonSet's pod.
type form struct {
	label          string
	install        func(*testing.T, *cluster.Cluster, string)
	standsBy, runs func(context.Context) error
}

// throughForm moves a node from the DaemonSet to another form and back, under flows.
func throughForm(t *testing.T, c *cluster.Cluster, node string, x form) {
	moved := func(f *flows, way string) {
		t.Helper()
		time.Sleep(afterChange) // sleep: a late gap would show
		gap, whose := f.stop(t)
		figure(t, "%s on one node: TCP flows survive, longest gap that counts %d ms (%s; promised: 3000 ms)", way,
			gap.Milliseconds(), whose)
		if gap > maxGap {
			t.Errorf("gap of %v", gap)
		}
	}
	f := startFlows(t, c)
	t.Cleanup(func() { toDaemonSet(t, c, node) })
	x.install(t, c, node)
	eventually(t, 40*time.Second, x.standsBy) // kubelet looks for static pods every 20 s
	kubectl(t, "label", "node", node, "network.edgemesh.io/agent="+x.label)
	eventually(t, time.Minute, x.runs)
	id := peerID(t, c, node)
	moved(f, "DaemonSet's pod → "+x.label)

	f = startFlows(t, c)
	toDaemonSet(t, c, node)
	eventually(t, time.Minute, func(ctx context.Context) error { return agentForm(ctx, c, node, "agent") })
	moved(f, x.label+" → DaemonSet's pod")
	if again := peerID(t, c, node); again != id {
		t.Errorf("peer ID was %s in one form, is %s in the other", id, again)
	}
}

// installUnit installs the agent as a host service, as the guide says.
func installUnit(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	log := filepath.Join(c.Dir, "nodes", node, "log", "edgemesh-agent.log")
	// What an earlier unit said is not this one's word.
	_, err := c.On(t.Context(), node, "sh", "-c", "cat "+log+" >> "+log+".before && : > "+log)
	ok(t, err)
	out, err := c.On(t.Context(), node, agentBinary(t), "install")
	ok(t, err)
	t.Logf("%s: edgemesh-agent install:\n%s", node, out)
}

// unitSays wants a line in the log of the node's unit.
func unitSays(ctx context.Context, c *cluster.Cluster, node, text string) error {
	out, err := c.On(ctx, node, "cat", filepath.Join(c.Dir, "nodes", node, "log", "edgemesh-agent.log"))
	if err == nil && !strings.Contains(out, text) {
		err = fmt.Errorf("the unit's log has no %q: %s", text, out)
	}
	return err
}

// toDaemonSet moves a node back to the DaemonSet's form, as the guide says: the pod
// comes and stands by, then the unit or static pod goes. Where the agent is no unit
// nor static pod there is nothing to do.
func toDaemonSet(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	_, err := c.Kubectl(ctx, "label", "node", node, "network.edgemesh.io/agent-")
	try(err)
	if _, err := c.On(ctx, node, "test", "-e", "/var/lib/edgemesh/install.json"); err != nil {
		return
	}
	// Its container, in a pod that is not ready before the other form has gone.
	for ctx.Err() == nil && podRuns(ctx, c, node, "agent") != nil {
		time.Sleep(100 * time.Millisecond) // sleep: between looks, until the limit
	}
	if _, err := c.On(ctx, node, "test", "-e", "/etc/systemd/system/edgemesh-agent.service"); err == nil {
		try(c.Service(ctx, "stop", node, "edgemesh-agent")) // what systemd would do for uninstall
	}
	out, err := c.On(ctx, node, agentBinary(t), "uninstall", "--keep-network")
	try(err)
	t.Logf("%s: edgemesh-agent uninstall --keep-network:\n%s", node, out)
	try(c.Service(ctx, "start", node, "edgemesh-agent"))
}

// podRuns wants a container of the agent's pod of that component, agent or
// static-agent, to run on the node.
func podRuns(ctx context.Context, c *cluster.Cluster, node, component string) error {
	var list corev1.PodList
	if err := c.API().Get(ctx, agentPods, &list); err != nil {
		return err
	}
	for _, p := range list.Items {
		if p.Spec.NodeName == node && p.Labels["app.kubernetes.io/component"] == component &&
			len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil {
			return nil
		}
	}
	return fmt.Errorf("no pod of component %s runs on %s", component, node)
}
