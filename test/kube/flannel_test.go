package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/internal/membership/mesh"
	"edgemesh/test/kube/cluster"
)

const (
	// maxMoveGap is how long flows between other nodes may stand still while a node moves, and movedWithin how soon the pods of
	// the moved node are back, from its reboot on.
	maxMoveGap  = time.Second
	movedWithin = 30 * time.Second
)

// residents are pods that stay on their node, with a port of it, and a Service whose pods end in order: they wait until no client is
// led to them.
const residents = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: served}
spec:
  replicas: 2
  selector: {matchLabels: {app: served}}
  template:
    metadata: {labels: {app: served}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: served}}}
      containers:
      - name: web
        image: e2e.test/podtool:1
        args: [serve, --name, served]
        lifecycle: {preStop: {sleep: {seconds: 10}}}
        readinessProbe: {httpGet: {path: /, port: 9376}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: served}
spec:
  selector: {app: served}
  ports: [{port: 80, targetPort: 9376}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ported}
spec:
  selector: {matchLabels: {app: ported}}
  template:
    metadata: {labels: {app: ported}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - name: web
        image: e2e.test/podtool:1
        args: [serve, --name, ported]
        ports: [{containerPort: 9376, hostPort: 8476}]
`

// migration runs docs/migrate.md, section by section, on a cluster with Flannel.
type migration struct {
	c      *cluster.Cluster
	page   string
	relays string // as arguments
}

// TestMigrateFromFlannel moves a cluster from the real Flannel to EdgeMesh by the commands of docs/migrate.md: one node there, back, and
// there again; one that is interrupted after each step by a power cut; one with a smaller MTU; and the control plane.
func TestMigrateFromFlannel(t *testing.T) {
	if flavour() != "flannel" {
		t.Skip("on a cluster of its own: make e2e-flannel")
	}
	c := bare(t)
	page, err := os.ReadFile(filepath.Join(root, "docs/migrate.md"))
	ok(t, err)
	m := &migration{c: c, page: string(page)}
	_, err = c.On(t.Context(), "edge-b2", "ip", "link", "set", "eth0", "mtu", "1400")
	ok(t, err)
	kubectl(t, "apply", "-f", filepath.Join(c.Dir, "kube-flannel.yml"))
	applyWorkload(t, c)
	kubectlIn(t, residents, "apply", "-f", "-")
	eventually(t, 3*time.Minute, func(ctx context.Context) error { return nodesReady(ctx, c) })
	waitPods(t, "app=served", 2, 2*time.Minute)
	m.allReach(t)

	m.watched(t, "EdgeMesh beside Flannel", maxMoveGap, []string{"edge-b1", "cloud", "edge-b2"}, func() {
		for _, r := range relayIdentity(t, c) {
			m.relays += " --relay " + r
		}
		m.relays += " --no-wait" // for the relay, which the manifest lets read the members
		m.run(t, "Begin", "")
		startRelay(t, c)
		rollout(t, 2*time.Minute)
		kubectl(t, "-n", "kube-flannel", "rollout", "status", "daemonset", "--timeout=55s")
	})
	m.allReach(t)

	m.move(t, "edge-a1")
	m.back(t, "edge-a1")
	m.move(t, "edge-a1")
	m.interrupted(t, "edge-b1")
	m.move(t, "edge-b2")
	m.move(t, "cloud")
	// All agents are exchanged, as in any rolling update.
	m.watched(t, "the end", maxGap, []string{"edge-a1", "edge-b1", "edge-b2"}, func() { m.run(t, "The end", "") })
	m.allReach(t)
	m.calm(t)
}

var blocks = regexp.MustCompile("(?ms)^```$\n(.*?)^```$")

// run runs the blocks of a section: what follows "On the node, as root:" there, everything else as the cluster's administrator. only are
// numbers of blocks, from 0; none are all.
func (m *migration) run(t *testing.T, section, node string, only ...int) {
	t.Helper()
	_, text, found := strings.Cut(m.page, "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/migrate.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	all := blocks.FindAllStringSubmatchIndex(text, -1)
	for i, at := range all {
		if len(only) > 0 && !slices.Contains(only, i) {
			continue
		}
		script := strings.NewReplacer("NODE", node, " --relay ADDRESS", m.relays, "kube-flannel.yml", filepath.Join(m.c.Dir, "kube-flannel.yml")).
			Replace(text[at[2]:at[3]])
		if strings.HasSuffix(strings.TrimSpace(text[:at[0]]), "On the node, as root:") {
			m.onNode(t, node, script)
			continue
		}
		out, err := m.admin(t.Context(), script)
		t.Logf("%s", out)
		ok(t, err)
	}
}

func (m *migration) admin(ctx context.Context, script string) (string, error) {
	cmd := m.c.AdminCommand(ctx, "bash", "-exc", script)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return string(out), err
}

// onNode runs a script there, in which `reboot` is a power cut.
func (m *migration) onNode(t *testing.T, node, script string) {
	t.Helper()
	script, reboots := strings.CutSuffix(script, "reboot\n")
	out, err := m.c.On(t.Context(), node, "bash", "-exc", script)
	t.Logf("%s: %s\n%s", node, script, out)
	ok(t, err)
	if reboots {
		m.reboot(t, node)
	}
}

func (m *migration) reboot(t *testing.T, node string) {
	t.Helper()
	ok(t, m.c.Cut(t.Context(), node))
	ok(t, m.c.Start(t.Context(), node))
	if node == "edge-b2" {
		_, err := m.c.On(t.Context(), node, "ip", "link", "set", "eth0", "mtu", "1400")
		ok(t, err)
	}
}

// allReach wants all pods that stay on their nodes to reach each other with their own addresses, and each node's hostPort to answer.
func (m *migration) allReach(t *testing.T) {
	t.Helper()
	eventually(t, 90*time.Second, func(ctx context.Context) error {
		web, err := pods(ctx, m.c, "default", "app=web")
		if err == nil && len(web) != len(cluster.FirstNodes()) {
			err = fmt.Errorf("%d pods", len(web))
		}
		if err != nil {
			return err
		}
		for _, p := range web {
			ip, err := internalIP(ctx, m.c, p.node)
			if err != nil {
				return err
			}
			if a, err := curl(ctx, m.c, on(t, web, others(p.node)[0]), "http://"+ip+":8476/"); err != nil || a.Name != "ported" {
				return fmt.Errorf("hostPort of %s: %q, %v", p.node, a.Name, err)
			}
		}
		return allPairs(ctx, m.c, web)
	})
}

// watched does something while TCP flows run in a ring of three nodes, and a pod asks the DNS for a Service, and the Service. No flow
// may stand still for longer than that.
func (m *migration) watched(t *testing.T, what string, longest time.Duration, ring []string, do func()) {
	t.Helper()
	web := waitPods(t, "app=web", len(cluster.FirstNodes()), time.Minute)
	var pairs [][2]string
	for i, n := range ring {
		pairs = append(pairs, [2]string{n, ring[(i+1)%len(ring)]})
	}
	f := startFlowsOf(t, m.c, pairs...)
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var asked, failed int
	var last string
	from := on(t, web, ring[0])
	asking.Go(func() {
		for ctx.Err() == nil {
			_, err := curl(ctx, m.c, from, "http://served.default.svc.cluster.local/")
			if asked++; err != nil && ctx.Err() == nil {
				failed++
				last = err.Error()
			}
			time.Sleep(200 * time.Millisecond) // sleep: between two looks
		}
	})
	do()
	time.Sleep(afterChange) // sleep: what comes late is seen
	stop()
	asking.Wait()
	gap, whose := f.stop(t)
	figure(t, "%s: flows between %s: longest gap %d ms (%s; promised: %d ms); a Service by its name answered %d of %d times %s",
		what, strings.Join(ring, ", "), gap.Milliseconds(), whose, longest.Milliseconds(), asked-failed, asked, last)
	if gap > longest {
		t.Errorf("%s: gap of %v", what, gap)
	}
	if failed > 0 {
		t.Errorf("%s: a Service did not answer %d times: %s", what, failed, last)
	}
}

// others are three nodes of which none is this one.
func others(node string) (out []string) {
	for _, n := range cluster.FirstNodes() {
		if n != node {
			out = append(out, n)
		}
	}
	return out
}

// there reboots a node by a block of the page, and waits until its pods answer another node's, and ask them.
func (m *migration) there(t *testing.T, node, what, section string) {
	t.Helper()
	begun, clock := time.Now(), product.Start()
	defer clock.Stop()
	m.run(t, section, node, 1)
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		web, err := pods(ctx, m.c, "default", "app=web")
		if err != nil {
			return err
		}
		for _, p := range web {
			for _, q := range web {
				if p.node == node && q.node == others(node)[0] {
					return errors.Join(reach(ctx, m.c, p, q), reach(ctx, m.c, q, p))
				}
			}
		}
		return fmt.Errorf("no ready pods in %v", web)
	})
	took := clock.Elapsed()
	figure(t, "%s of %s: its pods are back %s after the reboot began (%s by the wall clock; promised: %s)", what, node, seconds(took), seconds(time.Since(begun)), seconds(movedWithin))
	if took > movedWithin {
		t.Errorf("%s of %s took %v", what, node, took)
	}
}

// move moves a node.
func (m *migration) move(t *testing.T, node string) {
	t.Helper()
	before := on(t, waitPods(t, "app=web", len(cluster.FirstNodes()), time.Minute), node)
	m.watched(t, "move of "+node, maxMoveGap, others(node), func() {
		m.run(t, "Each node", node, 0)
		m.there(t, node, "move", "Each node")
		m.run(t, "Each node", node, 2)
	})
	m.own(t, node)
	m.allReach(t)
	if after := on(t, waitPods(t, "app=web", len(cluster.FirstNodes()), time.Minute), node); after != before {
		t.Errorf("its pod was %v, and is %v", before, after)
	}
}

// own wants a node to be with us.
func (m *migration) own(t *testing.T, node string) {
	t.Helper()
	out, err := m.c.On(t.Context(), node, "sh", "-c", "ls /etc/cni/net.d; ip -br link; iptables-save | grep FLANNEL; true")
	ok(t, err)
	if !strings.Contains(out, "10-edgemesh.conflist") || strings.Contains(strings.ToLower(out), "flannel") || strings.Contains(out, "cni0") {
		t.Errorf("%s has\n%s", node, out)
	}
}

// back moves a node back.
func (m *migration) back(t *testing.T, node string) {
	t.Helper()
	m.watched(t, "back of "+node, maxMoveGap, others(node), func() {
		m.run(t, "Back to Flannel", node, 0)
		m.there(t, node, "move back", "Back to Flannel")
		m.run(t, "Back to Flannel", node, 2)
	})
	out, err := m.c.On(t.Context(), node, "sh", "-c", "ls /etc/cni/net.d; ip -br link")
	ok(t, err)
	if !strings.Contains(out, "10-flannel.conflist") || !strings.Contains(out, "flannel.1") || strings.Contains(out, "10-edgemesh.conflist") || strings.Contains(out, "edgemesh-br") {
		t.Errorf("%s has\n%s", node, out)
	}
	m.allReach(t)
}

// interrupted cuts the power of a node after each step of its move: it says where it stands, and continues or goes back.
func (m *migration) interrupted(t *testing.T, node string) {
	t.Helper()
	const conf = "/etc/cni/net.d/10-flannel.conflist"
	label := func(sign string) {
		kubectl(t, "label", "node", node, mesh.MovedLabel+sign)
	}
	says := func(words string) {
		t.Helper()
		eventually(t, time.Minute, func(ctx context.Context) error {
			out, _ := m.c.On(ctx, node, agentBinary(t), "doctor")
			if !strings.Contains(out, words) {
				return fmt.Errorf("doctor does not say %q:\n%s", words, out)
			}
			return nil
		})
	}
	// The label alone: nothing happens to the pods. After a power cut they wait; back.
	label("=")
	says("the move to this network has begun")
	m.allReach(t)
	m.reboot(t, node)
	says("the move to this network has begun")
	label("-")
	m.allReach(t)
	// Without Flannel's configuration, before ours is chosen; on.
	m.run(t, "Each node", node, 0)
	m.onNode(t, node, "mv "+conf+" /etc/cni/\nreboot\n")
	says("the move to this network has begun")
	// Ours is chosen, but Flannel's configuration is there; on, without another reboot.
	m.onNode(t, node, "mv /etc/cni/10-flannel.conflist "+conf+"\necho 'cniMode: own' >/var/lib/edgemesh/node.yaml\nreboot\n")
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		var list corev1.PodList
		err := m.c.API().Get(ctx, agentPods, &list)
		for _, p := range list.Items {
			for _, s := range p.Status.ContainerStatuses {
				if p.Spec.NodeName == node {
					for _, x := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
						if x != nil && x.ExitCode == 2 && strings.Contains(x.Message, "flannel has the pods of this node") {
							return nil
						}
					}
				}
			}
		}
		return errors.Join(err, errors.New("the agent does not refuse Flannel's configuration"))
	})
	m.onNode(t, node, "rm "+conf)
	m.run(t, "Each node", node, 2)
	m.allReach(t)
	m.own(t, node)
}

// calm wants no node to find anything wrong in the end.
func (m *migration) calm(t *testing.T) {
	t.Helper()
	for _, n := range cluster.FirstNodes() {
		eventually(t, time.Minute, func(ctx context.Context) error {
			out, err := m.c.On(ctx, n, agentBinary(t), "doctor")
			if err != nil || strings.Contains(strings.ToLower(out), "flannel") {
				return fmt.Errorf("%s: %v\n%s", n, err, out)
			}
			return nil
		})
	}
}
