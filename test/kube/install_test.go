package kube

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// installation is how the network came to the cluster.
type installation struct {
	apply     time.Time     // of the first command
	nodes     time.Duration // from it until all nodes are Ready
	workload  time.Duration // until all pods are
	reachable time.Duration // until all ordered pairs of pods reached each other
	// before is what the nodes were like, by name.
	before map[string][]string
	// warned is what agents, relay and controller had logged by then that is worse than an information.
	warned string
}

// Commands of the installation guide run from the repository's root.
const root = "../.."

// installed returns the cluster with our network and the workload, installed by the
// first test that asks.
func installed(t *testing.T) (*cluster.Cluster, *installation) {
	t.Helper()
	c := bare(t)
	if suite.installed == nil {
		if os.Getenv("EDGEMESH_KUBE_ATTACH") != "" && attached(t, c) {
			suite.installed = &installation{}
		} else {
			suite.installed = install(t, c, firstSteps)
		}
	}
	return c, suite.installed
}

// attached says that the cluster has been installed by an earlier run.
func attached(t *testing.T, c *cluster.Cluster) bool {
	return c.API().Get(t.Context(), "/apis/apps/v1/namespaces/kube-system/daemonsets/edgemesh-agent", nil) == nil
}

// firstSteps installs with the guide's script and the plain manifests.
func firstSteps(ctx context.Context, c *cluster.Cluster, relays ...string) *exec.Cmd {
	args := []string{
		"--no-wait", "--api-server", cluster.APIServer + ":" + cluster.APIPort,
	}
	for _, r := range c.PodCIDRs() {
		args = append(args, "--pod-cidr", r)
	}
	for _, r := range relays {
		args = append(args, "--relay", r)
	}
	return c.AdminCommand(ctx, filepath.Join(root, "manifests/first-steps.sh"), append(args, trust(ctx, c)...)...)
}

// trust is the value that chart and script want where nothing guards the objects.
func trust(ctx context.Context, c *cluster.Cluster) []string {
	if n, err := c.Minor(ctx); err != nil || n >= 30 {
		return nil
	}
	return []string{"--set", "podNetwork.trustedNodes=true"}
}

// withHelm installs the chart, with the helm that is at this path.
func withHelm(helm string) func(context.Context, *cluster.Cluster, ...string) *exec.Cmd {
	return func(ctx context.Context, c *cluster.Cluster, relays ...string) *exec.Cmd {
		return c.AdminCommand(ctx, helm, append([]string{"install", "edgemesh", filepath.Join(root, "manifests/edgemesh"), "-n",
			"kube-system", "--set", "podNetwork.podCIDRs={10.244.0.0/16}", "--set",
			"apiServer.host=" + cluster.APIServer, "--set", "apiServer.port=" + cluster.APIPort, "--set",
			"podNetwork.relays={" + strings.Join(relays, ",") + "}"}, trust(ctx, c)...)...)
	}
}

// relayIdentity makes the relay's key and returns its addresses.
func relayIdentity(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	dir := filepath.Join(c.Dir, "relay")
	ok(t, os.MkdirAll(dir, 0o700)) // `id` makes no more than the state directory itself
	state := filepath.Join(dir, "state")
	id, err := exec.Command(filepath.Join(root, "bin/edgemesh-relay"), "id", "--state-dir", state).Output()
	ok(t, err)
	peer, address := strings.TrimSpace(string(id)), "/ip4/"+cluster.RelayIP
	return []string{address + "/tcp/4470/p2p/" + peer, address + "/udp/4470/quic-v1/p2p/" + peer}
}

// install does what the guide says, in its order, on a cluster whose nodes are
// NotReady and whose pods wait.
func install(t *testing.T, c *cluster.Cluster, how func(context.Context, *cluster.Cluster, ...string) *exec.Cmd) *installation {
	t.Helper()
	i := &installation{before: map[string][]string{}}
	for _, n := range cluster.FirstNodes() {
		i.before[n] = dump(t, c, n)
	}
	// As a cloud's controller makes a Node, until its network is there.
	ok(t, setUnavailable(t.Context(), c, "edge-b2"))
	eventually(t, time.Minute, func(ctx context.Context) error { return tainted(ctx, c, "edge-b2", true) })
	applyWorkload(t, c)
	// A relay on a public server: first its identity, then the manifest, and the relay's address in the PodNetwork.
	addrs := relayIdentity(t, c)
	i.apply = time.Now()
	out, err := how(t.Context(), c, addrs...).CombinedOutput()
	if err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	startRelay(t, c)

	eventually(t, 2*time.Minute, func(ctx context.Context) error { return nodesReady(ctx, c) })
	i.nodes = time.Since(i.apply)
	web := waitPods(t, "app=web", 4, 2*time.Minute)
	all := append(web, waitPods(t, "app=hostname", 2, time.Minute)...)
	all = append(all, waitPods(t, "app=shop", 2, time.Minute)...)
	i.workload = time.Since(i.apply)
	ok(t, allPairs(t.Context(), c, all))
	i.reachable = time.Since(i.apply)
	i.warned = warnings(t, c)
	for _, n := range cluster.FirstNodes() {
		if n != "cloud" || c.DualStack() {
			setNodeIP(t, c, n, "on")
		}
	}
	return i
}

// applyWorkload applies what is in manifests. In a cluster of two families CoreDNS has an address of each.
func applyWorkload(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	kubectl(t, "apply", "-f", "manifests/workload.yaml")
	coredns, err := os.ReadFile("manifests/coredns.yaml")
	ok(t, err)
	const one = "clusterIP: 10.96.0.10"
	if !bytes.Contains(coredns, []byte(one)) {
		t.Fatalf("manifests/coredns.yaml has no %s", one)
	}
	if c.DualStack() {
		ips := c.OfFamilies("10.96.0.10", "fd00:96::a")
		both := fmt.Sprintf("ipFamilyPolicy: RequireDualStack\n  clusterIP: \"%s\"\n  clusterIPs: [\"%s\"]", ips[0], strings.Join(ips, `", "`))
		coredns = bytes.Replace(coredns, []byte(one), []byte(both), 1)
	}
	kubectlIn(t, string(coredns), "apply", "-f", "-")
}

// setNodeIP has a node's kubelet report its mesh address (on), or its address on the LAN again (off), as the guide says
// for the DaemonSet's form.
func setNodeIP(t *testing.T, c *cluster.Cluster, node, value string) {
	t.Helper()
	if flavour() == "" {
		kubeletReports(t, c, node, value)
	}
}

// kubeletReports is setNodeIP wherever a kubelet runs.
func kubeletReports(t *testing.T, c *cluster.Cluster, node, value string) {
	t.Helper()
	out, err := c.On(t.Context(), node, agentBinary(t), "install", "--form", "daemonset", "--node-ip="+value)
	ok(t, err)
	t.Logf("%s: edgemesh-agent install --form daemonset --node-ip=%s:\n%s", node, value, out)
	ok(t, c.Service(t.Context(), "restart", node, "kubelet"))
	eventually(t, time.Minute, func(ctx context.Context) error {
		ip, err := internalIP(ctx, c, node)
		if err == nil && c.IsPodAddress(ip) != (value == "on") {
			err = fmt.Errorf("%s: InternalIP %q with --node-ip=%s", node, ip, value)
		}
		return err
	})
}

// internalIP is the address of a node in the API, "" for none.
func internalIP(ctx context.Context, c *cluster.Cluster, node string) (string, error) {
	var n corev1.Node
	if err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n); err != nil {
		return "", err
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address, nil
		}
	}
	return "", nil
}

// startRelay starts the relay outside of the cluster, which learns the members with a
// kubeconfig that can only read.
func startRelay(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	startRelayBy(t, c, filepath.Join(root, "manifests"))
}

// startRelayBy is startRelay with the scripts in another directory than the tree's.
func startRelayBy(t *testing.T, c *cluster.Cluster, scripts string) {
	t.Helper()
	dir := filepath.Join(c.Dir, "relay")
	kubeconfig, err := c.AdminCommand(t.Context(), filepath.Join(scripts, "relay-kubeconfig.sh"),
		"https://"+cluster.APIServer+":"+cluster.APIPort).Output()
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(dir, "kubeconfig"), kubeconfig, 0o600))
	config := fmt.Sprintf("stateDir: %s\nmembership: {kubernetes: {kubeconfig: %s}}\n", filepath.Join(dir, "state"),
		filepath.Join(dir, "kubeconfig"))
	ok(t, os.WriteFile(filepath.Join(dir, "relay.yaml"), []byte(config), 0o644))
	bin, err := filepath.Abs(filepath.Join(root, "bin/edgemesh-relay"))
	ok(t, err)
	log, err := os.OpenFile(filepath.Join(c.Dir, "relay.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	ok(t, err)
	defer log.Close()
	cmd := c.InRelay(context.Background(), bin, "run", "--config", filepath.Join(dir, "relay.yaml"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives a run that is kept
	ok(t, cmd.Start())
	go func() { _ = cmd.Wait() }() // the watcher, or the end of the cluster, ends it
	ok(t, os.WriteFile(filepath.Join(c.Dir, "relay.pid"), fmt.Appendln(nil, cmd.Process.Pid), 0o644))
}

// stopRelay kills that relay.
func stopRelay(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.Dir, "relay.pid"))
	ok(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	ok(t, err)
	if command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil ||
		!bytes.Contains(command, []byte(c.Dir)) {
		t.Fatalf("process %d is not the relay: %q, %v", pid, command, err)
	}
	ok(t, syscall.Kill(pid, syscall.SIGKILL))
	ok(t, os.Remove(filepath.Join(c.Dir, "relay.pid")))
}

// nodesReady wants every node Ready and its network available.
func nodesReady(ctx context.Context, c *cluster.Cluster) error {
	var list corev1.NodeList
	if err := c.API().Get(ctx, "/api/v1/nodes", &list); err != nil {
		return err
	}
	for _, n := range list.Items {
		state := map[corev1.NodeConditionType]corev1.ConditionStatus{}
		for _, c := range n.Status.Conditions {
			state[c.Type] = c.Status
		}
		if state[corev1.NodeReady] != corev1.ConditionTrue ||
			state[corev1.NodeNetworkUnavailable] != corev1.ConditionFalse {
			return fmt.Errorf("node %s: Ready %q, NetworkUnavailable %q", n.Name, state[corev1.NodeReady],
				state[corev1.NodeNetworkUnavailable])
		}
		if hasTaint(n) {
			return fmt.Errorf("node %s has the taint %s", n.Name, corev1.TaintNodeNetworkUnavailable)
		}
	}
	return nil
}

// warnings returns what the programs on all nodes, and the relay, have logged that is worse than an information.
func warnings(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	const worse = `grep -rhsE 'level=(WARN|ERROR) |panic: ' "$@"; test $? -le 2`
	var all strings.Builder
	for _, n := range cluster.FirstNodes() {
		unit := filepath.Join(c.Dir, "nodes", n, "log", "edgemesh-agent.log")
		out, err := c.On(t.Context(), n, "sh", "-c", "set -- /var/log/pods/*edgemesh* "+unit+"; "+worse)
		ok(t, err)
		for line := range strings.Lines(out) {
			all.WriteString(n + ": " + line)
		}
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", worse, "sh", filepath.Join(c.Dir, "relay.log")).Output()
	ok(t, err)
	for line := range strings.Lines(string(out)) {
		all.WriteString("relay: " + line)
	}
	return all.String()
}

// calm holds that a healthy installation warns of nothing.
func (i *installation) calm(t *testing.T) {
	t.Helper()
	if i.warned != "" {
		t.Errorf("warnings of a healthy installation:\n%s", i.warned)
	}
}

// From `kubectl apply` on a cluster with NotReady nodes to all pods reachable: 60 s.
func TestInstall(t *testing.T) {
	c, i := installed(t)
	if i.apply.IsZero() {
		t.Skip("this cluster was installed by an earlier run")
	}
	figure(t,
		"apply → all nodes Ready %s, all pods ready %s, all ordered pairs of 8 pods reachable %s (promised: 60 s)",
		seconds(i.nodes), seconds(i.workload), seconds(i.reachable))
	if i.reachable > time.Minute {
		t.Errorf("all pods reachable after %s, want 60 s", seconds(i.reachable))
	}
	i.calm(t)
	table := kubectl(t, "get", "meshnodes", "-o", "wide")
	t.Logf("kubectl get meshnodes -o wide:\n%s", table)
	for _, n := range cluster.FirstNodes() {
		var mesh struct {
			Spec   struct{ PeerID string }
			Status struct {
				PodCIDRs, Addresses []string
				AgentVersion        string
			}
		}
		ok(t, c.API().Get(t.Context(), "/apis/network.edgemesh.io/v1alpha1/meshnodes/"+n, &mesh))
		if strings.ContainsAny(table, `["`) {
			t.Error("the table has JSON in it")
		}
		var addresses []string
		for _, block := range mesh.Status.PodCIDRs {
			addresses = append(addresses, netip.MustParsePrefix(block).Addr().Next().String())
		}
		if !slices.Equal(mesh.Status.Addresses, addresses) || len(addresses) != len(c.PodCIDRs()) {
			t.Errorf("%s: addresses %v, blocks %v", n, mesh.Status.Addresses, mesh.Status.PodCIDRs)
		}
		for _, want := range append(slices.Concat(mesh.Status.PodCIDRs, mesh.Status.Addresses), n, mesh.Spec.PeerID, mesh.Status.AgentVersion) {
			if want == "" || !strings.Contains(table, want) {
				t.Errorf("%s: %q is not in the table", n, want)
			}
		}
	}
}

// The seed's scene: two replicas on 9376, one on an edge node and one on the cloud
// node; every pod of every node reaches them, and each other, and so do the nodes.
func TestScene(t *testing.T) {
	c, _ := installed(t)
	hostname := waitPods(t, "app=hostname", 2, time.Minute)
	web := waitPods(t, "app=web", 4, time.Minute)
	if hostname[0].node == hostname[1].node {
		t.Fatalf("both replicas are on %s", hostname[0].node)
	}
	all := append(hostname, web...)
	ok(t, allPairs(t.Context(), c, all))
	var tasks []func() error
	for _, n := range cluster.FirstNodes() {
		for _, to := range all {
			tasks = append(tasks, func() error { return reachFromNode(t.Context(), c, n, to) })
		}
	}
	ok(t, parallel(4, tasks...))
	figure(t, "scene: %d ordered pairs of pods with the source address kept, %d from nodes", len(all)*(len(all)-1),
		len(tasks))

	// As a user would, through the API server.
	out := kubectl(t, "exec", on(t, web, "edge-b1").name, "--", "/podtool", "get", podURL(hostname[0].ip))
	if !bytes.Contains([]byte(out), []byte(hostname[0].name)) {
		t.Errorf("kubectl exec: %s", out)
	}
}
