package kubeapi_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// kubelets report for fake nodes as kubelets do: each renews its Lease every 10 s, and writes its Node's status, with its
// list of images, every so often.
func kubelets(t *testing.T, c *kubeapi.Cluster, names []string, every time.Duration) (stop func()) {
	t.Helper()
	var images []any
	for i := range 30 {
		name := fmt.Sprintf("registry.example.org/team-%d/application-%d", i%7, i)
		images = append(images, map[string]any{"sizeBytes": 50000000 + i, "names": []string{name + "@sha256:" + strings.Repeat("0123456789abcdef", 4), name + ":v1.2." + fmt.Sprint(i)}})
	}
	report := func(name string, at time.Time) error {
		var conditions []any
		for _, kind := range []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
			conditions = append(conditions, map[string]any{"type": kind, "status": "False", "reason": "KubeletHasSufficient", "message": "kubelet has sufficient resources available",
				"lastHeartbeatTime": at.UTC().Format(time.RFC3339), "lastTransitionTime": "2026-11-21T10:00:00Z"})
		}
		return c.Patch(nodesPath+"/"+name+"/status", map[string]any{"status": map[string]any{"conditions": conditions, "images": images,
			"addresses":   []any{map[string]string{"type": "InternalIP", "address": "192.168.1.7"}, map[string]string{"type": "Hostname", "address": name}},
			"capacity":    map[string]string{"cpu": "4", "memory": "8000000Ki", "pods": "110", "ephemeral-storage": "60000000Ki"},
			"allocatable": map[string]string{"cpu": "4", "memory": "7900000Ki", "pods": "110", "ephemeral-storage": "55000000Ki"}}})
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	lease := func(name string) map[string]any {
		return map[string]any{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")}}
	}
	for _, name := range names {
		err := c.Do(http.MethodPost, leases, lease(name), nil)
		if err != nil && !strings.Contains(err.Error(), "409") {
			must(t, err)
		}
		must(t, report(name, time.Now()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			const beat = 10 * time.Second
			said := time.Now().Add(-time.Duration(i) * every / time.Duration(len(names)))
			next := time.NewTimer(beat * time.Duration(i) / time.Duration(len(names)))
			defer next.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-next.C:
				}
				next.Reset(beat)
				if err := c.Patch(leases+"/"+name, lease(name)); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				if time.Since(said) >= every {
					said = time.Now()
					if err := report(name, said); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// In a quiet cluster of 200 nodes whose kubelets report, an agent hears and says less than 1 kB/s where a controller keeps
// NodeRecords. EDGEMESH_TRAFFIC says for how long it is measured, and has the kubelets report every 5 minutes, too.
func TestAPITraffic(t *testing.T) {
	window, reports := 30*time.Second, []time.Duration{10 * time.Second}
	if text := os.Getenv("EDGEMESH_TRAFFIC"); text != "" {
		var err error
		window, err = time.ParseDuration(text)
		must(t, err)
		reports = append(reports, 5*time.Minute)
	}
	const nodes, most = 200, 1000 // bytes a second

	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	g := newGate(t, c)
	names := []string{"edge"}
	must(t, c.CreateNode("edge", "10.244.255.0/24"))
	for i := range nodes - 1 {
		names = append(names, fmt.Sprintf("fake-%d", i))
		must(t, c.CreateMember(names[i+1], newPeerID(t), fmt.Sprintf("10.244.%d.0/24", i)))
	}
	edge := certAgent(t, c, "edge", g.URL)
	log := edge.listens()
	edge.start()
	measure := func(what string, every, window time.Duration) float64 {
		stop := kubelets(t, c, names, every)
		defer stop()
		time.Sleep(5 * time.Second) // sleep: what the first reports made
		in, out, began := g.Received(), g.Sent(), time.Now()
		time.Sleep(window) // sleep: what rest costs
		seconds := time.Since(began).Seconds()
		down, up := float64(g.Received()-in)/seconds, float64(g.Sent()-out)/seconds
		t.Logf("%s, kubelets write a status every %v: %.0f B/s from the API, %.0f B/s to it, in %v", what, every, down, up, window)
		return down + up
	}
	fair.Eventually(t, patience, "all are members", fair.True(func() bool { return strings.Count(edge.members(), "fake-") == nodes-1 }))
	var before []float64
	for _, every := range reports {
		before = append(before, measure("Nodes", every, window/3))
	}
	startControllers(t, c, "one")
	log.from(t, "noderecords")
	for i, every := range reports {
		after := measure("NodeRecords", every, window)
		if after > most {
			t.Errorf("%.0f B/s with NodeRecords, want at most %d", after, most)
		}
		if before[i] < 2*most && every < time.Minute {
			t.Errorf("%.0f B/s with Nodes: that less is said now proves nothing", before[i])
		}
	}
	if edge.seen() != 1 && edge.blip("fake-0") {
		t.Error("a member was gone for a moment")
	}
}
