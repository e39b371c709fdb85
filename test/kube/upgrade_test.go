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

// maxGap is how long a flow may stand still while an agent gives way to another.
const maxGap = 3 * time.Second

// settle is how long flows go on after a change: a gap that comes late would show.
const settle = 4 * time.Second

// flows are steady TCP flows between sites and within one.
type flows struct {
	names []string
	list  []*cluster.Flow
}

// startFlows starts flows that cross NATs, one within a site, one from the cloud.
func startFlows(t *testing.T, c *cluster.Cluster) *flows {
	t.Helper()
	web := waitPods(t, "app=web", 4, time.Minute)
	f := &flows{}
	for _, pair := range [][2]string{{"edge-b1", "cloud"}, {"edge-a1", "edge-b2"}, {"edge-b2", "edge-b1"}, {"cloud", "edge-a1"}} {
		from, to := on(t, web, pair[0]), on(t, web, pair[1])
		ok(t, reach(t.Context(), c, from, to))
		flow, err := c.StartFlow(t.Context(), from.node, from.name, "tcp", to.ip)
		ok(t, err)
		f.names = append(f.names, from.node+" → "+to.node)
		f.list = append(f.list, flow)
	}
	return f
}

// stop ends the flows: each must have got everything back, in order. It returns the
// longest gap and says whose it was.
func (f *flows) stop(t *testing.T) (time.Duration, string) {
	t.Helper()
	var longest time.Duration
	var whose string
	for i, flow := range f.list {
		g, err := flow.Stop()
		if err != nil || g.Lost > 0 || g.Doubled > 0 || g.Reordered > 0 || g.Received == 0 {
			t.Errorf("flow %s: %+v, %v", f.names[i], g, err)
			continue
		}
		gap := time.Duration(g.GapMs * float64(time.Millisecond))
		t.Logf("flow %s: %d messages back, longest gap %v, round trip p50 %.1f ms", f.names[i], g.Received, gap.Round(time.Millisecond), g.P50Ms)
		if gap > longest {
			longest, whose = gap, f.names[i]
		}
	}
	return longest, whose
}

// Rolling update of the DaemonSet under TCP flows: they survive, gap ≤ 3 s.
func TestRollingUpdate(t *testing.T) {
	c, _ := installed(t)
	f := startFlows(t, c)
	start := time.Now()
	kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/edgemesh-agent")
	rollout(t, 3*time.Minute)
	took := time.Since(start)
	time.Sleep(settle)
	gap, whose := f.stop(t)
	figure(t, "rolling update of all 4 agents in %s: TCP flows survive, longest gap %d ms (%s; promised: 3000 ms)", seconds(took), gap.Milliseconds(), whose)
	if gap > maxGap {
		t.Errorf("gap of %v", gap)
	}
}

func rollout(t *testing.T, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err := bare(t).Kubectl(ctx, "-n", "kube-system", "rollout", "status", "daemonset/edgemesh-agent")
	ok(t, err)
}

// Two forms of the agent on one node: the second refuses by the lock, or stands by
// and takes over; flows go on as the node moves from one form to the other and back.
func TestForms(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-a1"
	rollout(t, time.Minute)

	// The second form, started by hand.
	_, err := c.On(t.Context(), node, "sh", "-c", "echo 'membership: {kubernetes: {kubeconfig: /etc/kubernetes/kubelet.conf}}' > /run/second.yaml")
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

	// For good: installed as a unit, it stands by until the DaemonSet's pod leaves.
	f := startFlows(t, c)
	t.Cleanup(func() { toDaemonSet(t, c, node) })
	installUnit(t, c, node)
	eventually(t, 20*time.Second, func(ctx context.Context) error { return unitSays(ctx, c, node, "standing by") })
	kubectl(t, "label", "node", node, "network.edgemesh.io/agent=systemd")
	eventually(t, time.Minute, func(ctx context.Context) error { return unitSays(ctx, c, node, "agent is running") })
	id := peerID(t, c, node)
	time.Sleep(settle)
	gap, whose := f.stop(t)
	figure(t, "DaemonSet's pod → unit on one node: TCP flows survive, longest gap %d ms (%s)", gap.Milliseconds(), whose)
	if gap > maxGap {
		t.Errorf("gap of %v", gap)
	}

	f = startFlows(t, c)
	toDaemonSet(t, c, node)
	eventually(t, time.Minute, func(ctx context.Context) error { return agentForm(ctx, c, node, "agent") })
	time.Sleep(settle)
	gap, whose = f.stop(t)
	figure(t, "unit → DaemonSet's pod: TCP flows survive, longest gap %d ms (%s)", gap.Milliseconds(), whose)
	if gap > maxGap {
		t.Errorf("gap of %v", gap)
	}
	if again := peerID(t, c, node); again != id {
		t.Errorf("peer ID was %s in one form, is %s in the other", id, again)
	}
}

// installUnit installs the agent as a host service, as the guide says.
func installUnit(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
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
	for ctx.Err() == nil && daemonPod(ctx, c, node) != nil {
		time.Sleep(100 * time.Millisecond)
	}
	if _, err := c.On(ctx, node, "test", "-e", "/etc/systemd/system/edgemesh-agent.service"); err == nil {
		try(c.Service(ctx, "stop", node, "edgemesh-agent")) // what systemd would do for uninstall
	}
	out, err := c.On(ctx, node, agentBinary(t), "uninstall", "--keep-network")
	try(err)
	t.Logf("%s: edgemesh-agent uninstall --keep-network:\n%s", node, out)
	try(c.Service(ctx, "start", node, "edgemesh-agent"))
}

// daemonPod wants a container of the DaemonSet's pod to run on the node.
func daemonPod(ctx context.Context, c *cluster.Cluster, node string) error {
	var list corev1.PodList
	if err := c.API().Get(ctx, agentPods, &list); err != nil {
		return err
	}
	for _, p := range list.Items {
		if p.Spec.NodeName == node && p.Labels["app.kubernetes.io/component"] == "agent" &&
			len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil {
			return nil
		}
	}
	return fmt.Errorf("the DaemonSet's pod does not run on %s", node)
}

// agentBinary is the agent as a node's operator has downloaded it, beside the plugin.
func agentBinary(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs(filepath.Join(root, "bin/edgemesh-agent"))
	ok(t, err)
	return bin
}

// agentRuns wants the agent of a node, whatever its form, to answer on its socket.
func agentRuns(ctx context.Context, c *cluster.Cluster, node string) error {
	_, err := c.On(ctx, node, "curl", "-sSfm2", "--unix-socket", "/run/edgemesh/agent.sock", "http://agent/v1/status")
	return err
}

func peerID(t *testing.T, c *cluster.Cluster, node string) string {
	t.Helper()
	var m struct{ Spec struct{ PeerID string } }
	ok(t, c.API().Get(t.Context(), meshAPI+"meshnodes/"+node, &m))
	return m.Spec.PeerID
}
