package kube

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/kube/cluster"
)

// fakeNodes is how many nodes are only objects: with the real ones they fit a /16 of /24s.
const fakeNodes = 200

// 200 nodes that are only objects come and go twice: the agents follow, their memory
// and goroutines stay flat, and what they hear costs little.
func TestManyNodes(t *testing.T) {
	c, _ := installed(t)
	const node = "edge-a1"
	before := usage(t, c, node)
	time.Sleep(quietTime) // sleep: what rest costs
	start := usage(t, c, node)
	t.Cleanup(func() {
		if err := removeFakes(context.WithoutCancel(t.Context()), c); err != nil {
			t.Error(err)
		}
	})
	var rounds []load
	var spent []time.Duration // CPU, by round
	for range 2 {
		before := usage(t, c, node)
		began := time.Now()
		addFakes(t, c)
		eventually(t, 2*time.Minute, func(ctx context.Context) error { return peersAre(ctx, c, node, 3+fakeNodes) })
		all := usage(t, c, node)
		t.Logf("%d nodes came within %v: agent's CPU %v, resident memory %d → %d MiB, %d KiB from the API",
			fakeNodes, time.Since(began).Round(time.Millisecond), all.cpu-before.cpu, before.resident>>20,
			all.resident>>20, (all.heard-before.heard)>>10)
		began = time.Now()
		ok(t, removeFakes(t.Context(), c))
		eventually(t, time.Minute, func(ctx context.Context) error { return peersAre(ctx, c, node, 3) })
		gone := time.Since(began)
		eventually(t, 2*time.Minute, func(ctx context.Context) error { return collected(ctx, c) })
		after := usage(t, c, node)
		t.Logf("and went within %v: CPU %v, %d KiB from the API", gone.Round(time.Millisecond), after.cpu-all.cpu,
			(after.heard-all.heard)>>10)
		rounds, spent = append(rounds, after), append(spent, after.cpu-before.cpu)
	}
	quiet := usage(t, c, node)
	time.Sleep(quietTime) // sleep: what rest costs
	idle := usage(t, c, node)
	last := rounds[1]
	figure(t,
		"%d nodes came and went twice: agent's CPU %.1f s, then %.1f s, idle %.1f → %.1f %%; resident memory %d → %d → %d MiB, goroutines %d → %d, %d KiB from the API",
		fakeNodes, spent[0].Seconds(), spent[1].Seconds(), percent(start.cpu-before.cpu),
		percent(idle.cpu-quiet.cpu), start.resident>>20, rounds[0].resident>>20, last.resident>>20,
		start.goroutines, last.goroutines, (last.heard-start.heard)>>10)
	// CPU time is the process's own, whatever else this machine does.
	if spent[0] > 20*time.Second || spent[1] > spent[0]*3/2+500*time.Millisecond {
		t.Errorf("CPU per round %v, want little, and no more the second time", spent)
	}
	if was, is := percent(start.cpu-before.cpu), percent(idle.cpu-quiet.cpu); is > was+2 {
		t.Errorf("an idle agent takes %.1f %% of a CPU, took %.1f %% before", is, was)
	}
	// What is resident goes up and down with the collector's rounds; test/kubeapi's
	// TestCrowd counts what is left of the heap.
	if last.resident > max(start.resident, rounds[0].resident)*3/2 {
		t.Errorf("resident memory grew from %d and %d to %d MiB", start.resident>>20, rounds[0].resident>>20,
			last.resident>>20)
	}
	eventually(t, time.Minute, func(context.Context) error { // dials that were begun end by themselves
		if now := usage(t, c, node).goroutines; now > start.goroutines+20 {
			return fmt.Errorf("%d goroutines, were %d", now, start.goroutines)
		}
		return nil
	})
	ok(t, allPairs(t.Context(), c, waitPods(t, "app=web", 4, time.Minute)))
}

// quietTime is how long an agent is watched while nothing happens.
const quietTime = 10 * time.Second

// percent of one CPU, in quietTime.
func percent(cpu time.Duration) float64 { return 100 * cpu.Seconds() / quietTime.Seconds() }

// addFakes makes Nodes, to which the cluster gives blocks, and their MeshNodes.
func addFakes(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	var tasks []func() error
	for i := range fakeNodes {
		tasks = append(tasks, func() error { return addFake(t.Context(), c, fmt.Sprintf("fake-%03d", i)) })
	}
	ok(t, parallel(8, tasks...))
}

func addFake(ctx context.Context, c *cluster.Cluster, name string) error {
	_, public, err := crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return err
	}
	id, err := peer.IDFromPublicKey(public)
	if err != nil {
		return err
	}
	var made struct{ Metadata struct{ UID string } }
	err = c.API().Do(ctx, http.MethodPost, "/api/v1/nodes", map[string]any{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata":   map[string]any{"name": name, "labels": map[string]string{"e2e.test/fake": "yes"}},
	}, &made)
	if err != nil {
		return err
	}
	return c.API().Do(ctx, http.MethodPost, meshAPI+"meshnodes", map[string]any{
		"apiVersion": "network.edgemesh.io/v1alpha1", "kind": "MeshNode",
		"metadata": map[string]any{"name": name, "ownerReferences": []any{map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": name, "uid": made.Metadata.UID}}},
		"spec": map[string]any{"peerID": id.String()}}, nil)
}

// removeFakes deletes the Nodes; the cluster deletes what they own.
func removeFakes(ctx context.Context, c *cluster.Cluster) error {
	return c.API().Do(ctx, http.MethodDelete, "/api/v1/nodes?labelSelector=e2e.test%2Ffake", nil, nil)
}

// collected wants the garbage collector to have deleted what the Nodes owned.
func collected(ctx context.Context, c *cluster.Cluster) error {
	var list struct{ Items []json.RawMessage }
	err := c.API().Get(ctx, meshAPI+"meshnodes", &list)
	if real := len(cluster.FirstNodes()); err == nil && len(list.Items) != real {
		err = fmt.Errorf("%d MeshNodes, want %d", len(list.Items), real)
	}
	return err
}

// peersAre wants an agent to know that many other members.
func peersAre(ctx context.Context, c *cluster.Cluster, node string, want int) error {
	out, err := c.On(ctx, node, "curl", "-sSfm2", "--unix-socket", "/run/edgemesh/agent.sock", "http://agent/v1/status")
	var status struct{ Peers []json.RawMessage }
	if err == nil {
		err = json.Unmarshal([]byte(out), &status)
	}
	if err == nil && len(status.Peers) != want {
		err = fmt.Errorf("the agent on %s knows %d peers, want %d", node, len(status.Peers), want)
	}
	return err
}

// load is what an agent has used, and has now.
type load struct {
	cpu        time.Duration
	resident   int // bytes
	goroutines int
	heard      int // bytes, on its connections to the API server
}

// usage reads an agent's metrics and the kernel's counters of its connections.
func usage(t *testing.T, c *cluster.Cluster, node string) load {
	t.Helper()
	out, err := c.On(t.Context(), node, "curl", "-sSfm5", "http://127.0.0.1:9469/metrics")
	ok(t, err)
	metric := func(name string) float64 {
		t.Helper()
		for line := range strings.Lines(out) {
			if value, found := strings.CutPrefix(line, name+" "); found {
				v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				ok(t, err)
				return v
			}
		}
		t.Fatalf("no metric %s", name)
		return 0
	}
	l := load{
		cpu:        time.Duration(metric("process_cpu_seconds_total") * float64(time.Second)),
		resident:   int(metric("process_resident_memory_bytes")),
		goroutines: int(metric("go_goroutines")),
	}
	sockets, err := c.On(t.Context(), node, "ss", "-tnipH", "dst", cluster.APIServer)
	ok(t, err)
	agents := false // the line of a socket is followed by one of its counters
	for line := range strings.Lines(sockets) {
		if strings.Contains(line, "users:") {
			agents = strings.Contains(line, `"edgemesh-agent"`)
		}
		_, rest, found := strings.Cut(line, "bytes_received:")
		if !found || !agents {
			continue
		}
		n, err := strconv.Atoi(strings.Fields(rest)[0])
		ok(t, err)
		l.heard += n
	}
	return l
}
