package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// edges are the nodes that run edgecore.
func edges() []string { return []string{"edge-a1", "edge-b1", "edge-b2"} }

// unitEdge has the agent as a unit; the others have the DaemonSet's pod.
const unitEdge = "edge-b2"

// kubeEdge returns a cluster with a real KubeEdge, with our network installed by the guide's steps.
func kubeEdge(t *testing.T) *cluster.Cluster {
	t.Helper()
	if requireAuthorization() {
		t.Skip("MetaServer asks for tokens: " + authorizationTest)
	}
	return flavoured(t, "kubeedge", installKubeEdge)
}

// flavoured returns the cluster if its edges are of that flavour, with our network installed by the first test that asks.
func flavoured(t *testing.T, name string, install func(*testing.T, *cluster.Cluster) *installation) *cluster.Cluster {
	t.Helper()
	if flavour() != name {
		t.Skip("on a cluster of its own: make e2e-" + name)
	}
	c := bare(t)
	if suite.installed == nil {
		if attached(t, c) {
			suite.installed = &installation{}
		} else {
			suite.installed = install(t, c)
		}
	}
	return c
}

// installKubeEdge does what the guide says: the chart with its DaemonSet for edges, and a unit on one of them.
func installKubeEdge(t *testing.T, c *cluster.Cluster) *installation {
	t.Helper()
	// Another's device has the name that EdgeMesh of KubeEdge gives its own; dummies cannot be made on every kernel.
	_, err := c.On(t.Context(), "edge-a1", "sh", "-c",
		"ip link add edgemesh0 type bridge && ip addr add 169.254.96.16/32 dev edgemesh0 && ip link set edgemesh0 up")
	ok(t, err)
	kubectl(t, "label", "node", unitEdge, "network.edgemesh.io/agent=systemd")
	return installChart(t, c, func() { installUnit(t, c, unitEdge) }, "--set", "kubeedge.enabled=true")
}

// installChart installs the chart with these arguments, a relay, and what comes then.
func installChart(t *testing.T, c *cluster.Cluster, then func(), args ...string) *installation {
	t.Helper()
	i := &installation{}
	kubectl(t, "apply", "-f", "manifests/")
	helm, err := exec.Command(filepath.Join(root, "build/tool.sh"), "helm").Output()
	ok(t, err)
	addrs := relayIdentity(t, c)
	i.apply = time.Now()
	install := withHelm(strings.TrimSpace(string(helm)))(t.Context(), c, addrs...)
	install.Args = append(install.Args, args...)
	out, err := install.CombinedOutput()
	if err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	startRelay(t, c)
	then()
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return edgesReady(ctx, c) })
	i.nodes = time.Since(i.apply)
	all := workload(t)
	i.workload = time.Since(i.apply)
	eventually(t, 30*time.Second, func(ctx context.Context) error { return allPairs(ctx, c, all) })
	i.reachable = time.Since(i.apply)
	i.warned = warnings(t, c)
	return i
}

// workload waits for all pods.
func workload(t *testing.T) []pod {
	t.Helper()
	all := append(waitPods(t, "app=web", 4, 2*time.Minute), waitPods(t, "app=hostname", 2, time.Minute)...)
	return append(all, waitPods(t, "app=shop", 2, time.Minute)...)
}

// edgesReady wants every node Ready. cloudcore and edgecore know no NetworkUnavailable.
func edgesReady(ctx context.Context, c *cluster.Cluster) error {
	var errs []error
	for _, n := range cluster.FirstNodes() {
		errs = append(errs, nodeReady(ctx, c, n))
	}
	return errors.Join(errs...)
}

// The scene of the project's first sentence, on KubeEdge: every ordered pair of pods, on two edges behind two NATs with one
// LAN prefix and on a cloud node.
func TestKubeEdgeScene(t *testing.T) {
	c := kubeEdge(t)
	i := suite.installed
	all := workload(t)
	ok(t, allPairs(t.Context(), c, all))
	for _, n := range edges() {
		err := podRuns(t.Context(), c, n, "edge-agent")
		if (err == nil) != (n != unitEdge) {
			t.Errorf("%s: the DaemonSet's pod: %v", n, err)
		}
		if err := podRuns(t.Context(), c, n, "agent"); err == nil {
			t.Errorf("%s: an agent of the cloud's DaemonSet runs there", n)
		}
	}
	i.figure(t, all)
	i.calm(t)
	// What an edge writes, the controller wrote for it: through MetaServer it can only read.
	for _, n := range edges() {
		const meshNode = `{"apiVersion": "network.edgemesh.io/v1alpha1", "kind": "MeshNode", "metadata": {"name": "stolen"},
			"spec": {"peerID": "12D3KooWGRUaYYqUqDcDuWPSRJUJ2ZxpjBnWwvDBXyjGX5CWyNL8"}}`
		out, err := c.On(t.Context(), n, "curl", "-sSm20", "-H", "Content-Type: application/json", "-d", meshNode,
			"http://127.0.0.1:10550/apis/network.edgemesh.io/v1alpha1/meshnodes")
		if err != nil || !strings.Contains(strings.ReplaceAll(out, " ", ""), `"code":403`) {
			t.Errorf("%s writes a MeshNode through MetaServer: %v\n%s", n, err, out)
		}
	}
	// Beside another's edgemesh0: it is as it was.
	out, err := c.On(t.Context(), "edge-a1", "ip", "-d", "addr", "show", "edgemesh0")
	if err != nil || !strings.Contains(out, "bridge") || !strings.Contains(out, "169.254.96.16/32") {
		t.Errorf("another's edgemesh0 is now: %v\n%s", err, out)
	}
}

// edgecore reports a node's mesh address once `install --node-ip` has set it in its configuration; =off gives the file back
// as it was, byte by byte.
func TestKubeEdgeNodeIP(t *testing.T) {
	c := kubeEdge(t)
	const node, file = "edge-a1", "/etc/kubeedge/config/edgecore.yaml"
	before, err := c.On(t.Context(), node, "cat", file)
	ok(t, err)
	lan, err := internalIP(t.Context(), c, node)
	ok(t, err)
	mesh := meshIP(t, c, node)
	start := time.Now()
	edgecoreReports(t, c, node, "on", mesh)
	figure(t, "KubeEdge: %s reports %s instead of %s %s after `install --node-ip`", node, mesh, lan, seconds(time.Since(start)))
	for _, from := range []string{"cloud", "edge-b1"} {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			_, err := c.On(ctx, from, "ping", "-c1", "-W2", mesh)
			return err
		})
	}
	edgecoreReports(t, c, node, "off", lan)
	after, err := c.On(t.Context(), node, "cat", file)
	ok(t, err)
	if after != before {
		t.Errorf("%s was\n%s\nand is\n%s", file, before, after)
	}
	ok(t, allPairs(t.Context(), c, workload(t)))
}

// edgecoreReports has `install --node-ip` set in edgecore's configuration which address it reports, and waits until it does.
func edgecoreReports(t *testing.T, c *cluster.Cluster, node, value, want string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also when a test has ended
	form := "daemonset"
	if node == unitEdge {
		form = "systemd"
	}
	out, err := c.On(ctx, node, agentBinary(t), "install", "--form", form, "--node-ip="+value)
	ok(t, err)
	t.Logf("%s: edgemesh-agent install --form %s --node-ip=%s:\n%s", node, form, value, out)
	product.Eventually(t, time.Minute, "edgecore ends", func() error { return c.Service(ctx, "restart", node, "edgecore") })
	product.Eventually(t, 2*time.Minute, node+" reports its address", func() error {
		ip, err := internalIP(ctx, c, node)
		if err == nil && ip != want {
			err = fmt.Errorf("%s: InternalIP is %q, want %s", node, ip, want)
		}
		return errors.Join(err, nodeReady(ctx, c, node))
	})
}

// kubectl reaches pods of edges behind NATs through KubeEdge's cloudStream, which knows them by their nodes' names. It knows kubelets'
// metrics by nodes' addresses alone: two edges with one LAN address have those of one, until each reports its mesh address. (`kubectl cp`
// of 8 MB ends edgecore 1.20: "send on closed channel", in its own EdgedExecConnection.CacheTunnelMessage.)
func TestKubeEdgeStreams(t *testing.T) {
	c := kubeEdge(t)
	pods := talkers(t)
	scrape := func(ctx context.Context, p pod) error {
		out, err := c.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+p.node+"/proxy/metrics/resource")
		if err == nil && !strings.Contains(out, `pod="`+p.name+`"`) {
			err = fmt.Errorf("%s: the metrics do not name %s", p.node, p.name)
		}
		return err
	}
	works := func(t *testing.T) {
		for _, node := range natted {
			p := on(t, pods, node)
			eventually(t, time.Minute, func(ctx context.Context) error { // edgecore may have just started, and its stream comes later
				_, err := c.Kubectl(ctx, "exec", p.name, "--", "tar", "--version")
				return err
			})
			follows(t, c.AdminCommand, p)
			s := startSession(t, c.AdminCommand, p.name)
			s.says(t, "hello", 5*time.Second)
			s.end(t)
			terminal(t, c.AdminCommand, p.name)
		}
	}
	t.Run("LAN addresses", func(t *testing.T) {
		works(t)
		for _, node := range natted {
			t.Logf("metrics of %s: %v", node, scrape(t.Context(), on(t, pods, node)))
		}
	})
	t.Run("mesh addresses", func(t *testing.T) {
		for _, node := range natted {
			lan, err := internalIP(t.Context(), c, node)
			ok(t, err)
			t.Cleanup(func() { edgecoreReports(t, c, node, "off", lan) })
			edgecoreReports(t, c, node, "on", meshIP(t, c, node))
		}
		works(t)
		for _, node := range natted {
			eventually(t, time.Minute, func(ctx context.Context) error { return scrape(ctx, on(t, pods, node)) })
		}
	})
}

// A site without uplink loses its power: edgecore starts the same pods, the plugin gives them the same IPs, and they reach
// each other. The uplink comes back: so does the rest of the mesh.
func TestKubeEdgeOfflineSite(t *testing.T) {
	c := kubeEdge(t)
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
	eventually(t, time.Minute, func(ctx context.Context) error {
		return errors.Join(reach(ctx, c, site[0], site[1]), reach(ctx, c, site[1], site[0]))
	})
	figure(t, "KubeEdge: a site without uplink is power-cycled: the same pods with the same IPs reach each other after %s", seconds(time.Since(start)))
	serviceAnswers(t, c, site, start)

	back := connected(t.Context(), t, c, site[0].node, site[1].node)
	ok(t, c.WAN(t.Context(), "b", true))
	start = time.Now()
	cloud := on(t, all, "cloud")
	eventually(t, time.Minute, func(ctx context.Context) error { return reach(ctx, c, cloud, site[0]) })
	figure(t, "KubeEdge: uplink back → reachable from the cloud after %s", seconds(time.Since(start)))
	eventually(t, time.Minute, func(ctx context.Context) error { return allPairs(ctx, c, all) })
	pairs := time.Now()
	edgecore := <-back
	ok(t, edgecore.err)
	figure(t, "KubeEdge: uplink back → all %d ordered pairs after %s; edgecore connected again after %s (its own pause)", len(all)*(len(all)-1),
		seconds(pairs.Sub(start)), seconds(edgecore.at.Sub(start)))
	if late := pairs.Sub(edgecore.at); late > cachePromise {
		t.Errorf("all pairs %s after edgecore connected, want %s", seconds(late), cachePromise)
	}
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return edgesReady(ctx, c) })
	figure(t, "KubeEdge: uplink back → nodes Ready after %s", seconds(time.Since(start)))
	sameIPs(t, "after the power cut", all, workload(t))
	startedOnce(t, agents, containers(t, c))
	ok(t, allPairs(t.Context(), c, all))
}

// A NetworkPolicy is in force over a power cut of a site without uplink.
func TestKubeEdgeOfflinePolicy(t *testing.T) { policyOverPowerCut(t, kubeEdge(t)) }

// Members come and go while the edges are online, and while a site is offline, where a Node of an edge joins and another one
// is deleted: how soon the agents beside MetaServer know, from edgecore's reconnection on. The edge stays connected itself.
func TestKubeEdgeMembers(t *testing.T) {
	c := kubeEdge(t)
	const gone, node, away = "gone", "edge-a2", "edge-b1"
	all := workload(t)
	online(t, c)
	paperNode(t, c, gone)
	eventually(t, cachePromise, func(ctx context.Context) error { return knows(ctx, c, away, gone, true) })
	ok(t, c.WAN(t.Context(), "b", false))
	t.Cleanup(func() { _ = c.WAN(context.WithoutCancel(t.Context()), "b", true) })
	eventually(t, 3*time.Minute, func(ctx context.Context) error {
		if nodeReady(ctx, c, away) == nil {
			return fmt.Errorf("%s is still Ready", away)
		}
		return nil
	})
	kubectl(t, "delete", "node,meshnode", gone, "--ignore-not-found")
	newcomer := joins(t, c, node)
	ok(t, errors.Join(knows(t.Context(), c, away, gone, true), knows(t.Context(), c, away, node, false)))
	back := connected(t.Context(), t, c, away)
	ok(t, c.WAN(t.Context(), "b", true))
	start := time.Now()
	edgecore := <-back
	ok(t, edgecore.err)
	took := eventually(t, cachePromise, func(ctx context.Context) error {
		return errors.Join(knows(ctx, c, away, gone, false), knows(ctx, c, away, node, true))
	})
	figure(t, "KubeEdge: a Node was deleted, another one joined while an edge was offline: edgecore connects again %s after the uplink (its own pause), "+
		"and the edge knows both %s after that (promised: 10 s)", seconds(edgecore.at.Sub(start)), seconds(took))
	took = eventually(t, cachePromise, func(ctx context.Context) error {
		return errors.Join(reach(ctx, c, on(t, all, away), newcomer), reach(ctx, c, newcomer, on(t, all, away)))
	})
	figure(t, "KubeEdge: … its pod and the new node's reach each other %s after that", seconds(took))
	eventually(t, time.Minute, func(ctx context.Context) error { return nodeReady(ctx, c, away) })
	figure(t, "KubeEdge: … the edge is Ready %s after edgecore connected", seconds(time.Since(edgecore.at)))
	// Its session lasts: the log of cloudcore and the node agree for a while.
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Second) { // sleep: the session lasts meanwhile
		ok(t, nodeReady(t.Context(), c, away))
	}
	out, err := c.On(t.Context(), "cloud", "sh", "-c", "grep -c 'message for node will be cleaned up' "+filepath.Join(c.Dir, "nodes/cloud/log/cloudcore.log")+" || true")
	ok(t, err)
	if strings.TrimSpace(out) != "0" {
		t.Errorf("cloudcore took the deletion for the edge's own %s times", strings.TrimSpace(out))
	}
}

// edgecore, with MetaServer, starts again and again.
func TestKubeEdgeRestarts(t *testing.T) { restarts(t, kubeEdge(t), "edgecore") }

func TestKubeEdgeSoak(t *testing.T) { soak(t, kubeEdge(t), "edgecore") }

// A second edgecore of the same node, as by a unit that was started twice, takes the first one's session, which takes it back: the agent
// sees one new connection after another, and still asks at most once a minute who the members are.
func TestKubeEdgeTwoEdgecores(t *testing.T) {
	c := kubeEdge(t)
	const node, length = "edge-a1", 2 * time.Minute
	all, agents := workload(t), containers(t, c)
	want, err := peersOf(t.Context(), c, node)
	ok(t, err)
	end := watchPeers(t, c, node, func(got []string) error {
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s has the peers %v, had %v", node, got, want)
		}
		return nil
	})
	before, began, starts := cloudcoreHeard(t, c, node), time.Now(), 0
	for ; time.Since(began) < length; starts++ {
		ctx, cancel := context.WithDeadline(t.Context(), began.Add(length))
		out, err := c.On(ctx, node, "timeout", "30", "edgecore", "--config", "/etc/kubeedge/config/edgecore.yaml")
		cancel()
		t.Logf("the second edgecore ended: %v\n%s", err, out[max(0, len(out)-2000):])
		time.Sleep(time.Second) // sleep: between two looks
	}
	took := time.Since(began)
	n := end()
	asked := cloudcoreHeard(t, c, node) - before
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return errors.Join(nodeReady(ctx, c, node), allPairs(ctx, c, all)) })
	if after := containers(t, c); !maps.Equal(after, agents) {
		t.Errorf("agents were started %v times, %v before", after, agents)
	}
	online(t, c)
	if most := 15 * (took.Minutes() + 1); asked > most { // a proof and a list of all kinds
		t.Errorf("%.0f requests through MetaServer within %s, want %.0f at most", asked, seconds(took), most)
	}
	figure(t, "KubeEdge: a second edgecore beside the first, started %d times within %s: all %d peers there in each of %d looks, %.0f requests through MetaServer",
		starts, seconds(took), len(want), n, asked)
}

// connected says when the edgecores of these nodes have connected to cloudcore again, all of them.
func connected(ctx context.Context, t *testing.T, c *cluster.Cluster, nodes ...string) <-chan moment {
	t.Helper()
	count := func(node string) (int, error) {
		text, err := c.On(ctx, node, "cat", filepath.Join(c.Dir, "nodes", node, "log/edgecore.log"))
		return strings.Count(text, "connect to cloud access successful"), err
	}
	before := map[string]int{}
	for _, n := range nodes {
		var err error
		before[n], err = count(n)
		ok(t, err)
	}
	return when(ctx, func() bool {
		for _, n := range nodes {
			if now, err := count(n); err != nil || now == before[n] {
				return false
			}
		}
		return true
	})
}

func TestKubeEdgePolicyLabel(t *testing.T) { labelEnforced(t, kubeEdge(t), "KubeEdge") }

// The network leaves the edges of both forms; it is the last test.
func TestLeavesKubeEdge(t *testing.T) {
	c := kubeEdge(t)
	out, err := c.AdminCommand(t.Context(), filepath.Join(root, "manifests/cleanup-nodes.sh"), "--yes").CombinedOutput()
	if err != nil {
		t.Fatalf("cleanup-nodes.sh: %v\n%s", err, out)
	}
	_, err = c.On(t.Context(), unitEdge, "sh", "-c", "kill $(cat /run/svc/edgemesh-agent.pid); touch /run/svc/edgemesh-agent.down")
	ok(t, err)
	_, err = c.On(t.Context(), unitEdge, agentBinary(t), "uninstall")
	ok(t, err)
	for _, n := range edges() {
		links, err := c.On(t.Context(), n, "ip", "-br", "link")
		ok(t, err)
		if strings.Contains(links, "edgemesh-") {
			t.Errorf("%s: left:\n%s", n, links)
		}
	}
	if out, err := c.On(t.Context(), "edge-a1", "ip", "-br", "addr", "show", "edgemesh0"); err != nil || !strings.Contains(out, "169.254.96.16/32") {
		t.Errorf("another's edgemesh0: %v\n%s", err, out)
	}
}
