package kube

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgemesh/test/kube/cluster"
)

// What an edge behind a cache costs on its site's uplink while nothing happens: IP bytes in both directions on the router of the site that has one
// edge alone, with the agent and without it in turns. EDGEMESH_QUIET has turns and the length of a window, such as
// 3x150s: what is less than 100 B/s takes long windows, since edgecore and kubelet send thousands. Requests are exact.
func TestKubeEdgeQuiet(t *testing.T) {
	c := kubeEdge(t)
	quiet(t, c, "10000", func(node string) float64 { return cloudcoreHeard(t, c, node) })
}

// cloudcoreHeard counts the requests through a node's MetaServer that reached cloudcore; edgecore itself makes none of these.
func cloudcoreHeard(t *testing.T, c *cluster.Cluster, node string) float64 {
	t.Helper()
	out, err := c.On(t.Context(), "cloud", "sh", "-c", "grep -c 'get a Application (NodeName="+node+";' "+filepath.Join(c.Dir, "nodes/cloud/log/cloudcore.log")+" || true")
	ok(t, err)
	n, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	ok(t, err)
	return n
}

func TestOpenYurtQuiet(t *testing.T) {
	quiet(t, openYurt(t), cluster.APIPort, func(string) float64 { return 0 })
}

// quiet measures with a cache whose connection to the cloud is one to this port; asked counts a node's requests.
func quiet(t *testing.T, c *cluster.Cluster, port string, asked func(node string) float64) {
	t.Helper()
	const node, site, label = "edge-a1", "a", "network.edgemesh.io/agent"
	turns, length := windows(t, 1, time.Minute)
	workload(t)
	counted := counter(t, c, site, port)
	switchAgent := func(ctx context.Context, on bool) {
		value := label + "=systemd" // of which there is none
		if on {
			value = label + "-"
		}
		_, err := c.Kubectl(ctx, "label", "node", node, value, "--overwrite")
		ok(t, err)
		product.Eventually(t, 2*time.Minute, "the agent is switched", func() error {
			_, err := peersOf(ctx, c, node)
			if (err == nil) != on {
				return fmt.Errorf("the agent of %s runs: %v, want %v", node, err == nil, on)
			}
			return nil
		})
	}
	t.Cleanup(func() { switchAgent(context.WithoutCancel(t.Context()), true) })
	var with, without, requests sample
	for range turns {
		for _, on := range []bool{true, false} {
			switchAgent(t.Context(), on)
			time.Sleep(time.Minute) // sleep: what a start costs
			began := time.Now()
			cache, all := counted()
			before := asked(node)
			time.Sleep(length) // sleep: what rest costs
			cache2, all2 := counted()
			took := time.Since(began).Seconds()
			t.Logf("agent %v: %.1f B/s on the router, %.1f of it the cache's; %.0f requests through it", on,
				(all2-all)/took, (cache2-cache)/took, asked(node)-before)
			if on {
				with, requests = append(with, (all2-all)/took), append(requests, (asked(node)-before)/took*3600)
			} else {
				without = append(without, (all2-all)/took)
			}
		}
	}
	m, e := with.mean()
	m0, e0 := without.mean()
	r, _ := requests.mean()
	figure(t, "%s: an edge at rest, from the second minute on, %d windows of %v each: %.0f ± %.0f B/s on its site's router with the agent, %.0f ± %.0f without: %.1f ± %.1f are ours; %.0f requests an hour",
		platform(), turns, length, m, e, m0, e0, m-m0, math.Hypot(e, e0), r)
	if r > 150 { // the own Node is read each minute at first
		t.Errorf("%.0f requests an hour through the cache at rest, want few", r)
	}
}

// What edgecore itself costs there, without an agent, by its settings: each row has those before it, too (docs/sim-card.md). One window each, of
// EDGEMESH_QUIET's length.
func TestKubeEdgeOwnTraffic(t *testing.T) {
	c := kubeEdge(t)
	const node, file = "edge-a1", "/etc/kubeedge/config/edgecore.yaml"
	_, length := windows(t, 1, 2*time.Minute)
	workload(t)
	counted := counter(t, c, "a", "10000")
	ctx := context.WithoutCancel(t.Context())
	restart := func() {
		product.Eventually(t, time.Minute, "edgecore ends", func() error { return c.Service(ctx, "restart", node, "edgecore") })
		product.Eventually(t, 2*time.Minute, node+" is Ready", func() error { return nodeReady(ctx, c, node) })
	}
	label := func(value string) {
		_, err := c.Kubectl(ctx, "label", "node", node, "network.edgemesh.io/agent"+value, "--overwrite")
		ok(t, err)
	}
	_, err := c.On(ctx, node, "cp", "-p", file, file+".before")
	ok(t, err)
	t.Cleanup(func() {
		_, err := c.On(ctx, node, "mv", file+".before", file)
		ok(t, err)
		restart()
		label("-")
	})
	label("=systemd") // of which there is none
	for _, x := range []struct{ name, edit string }{
		{"as the lab has it", ""},
		{"edgeStream off (no kubectl logs, no exec)", "s/edgeStream: {enable: true/edgeStream: {enable: false/"},
		{"deviceTwin off", "s/deviceTwin: {enable: true/deviceTwin: {enable: false/"},
		{"edged nodeStatusUpdateFrequency 1m", "s/^    tailoredKubeletConfig:/&\\n      nodeStatusUpdateFrequency: 1m/"},
		{"edged nodeLeaseDurationSeconds 120", "s/^    tailoredKubeletConfig:/&\\n      nodeLeaseDurationSeconds: 120/"},
		{"edgeHub heartbeat 25", "s/^  edgeHub:/&\\n    heartbeat: 25/"},
	} {
		if x.edit != "" {
			_, err := c.On(ctx, node, "sed", "-i", x.edit, file)
			ok(t, err)
			restart()
		}
		time.Sleep(time.Minute) // sleep: what a start costs
		began := time.Now()
		hub, all := counted()
		time.Sleep(length) // sleep: what rest costs
		hub2, all2 := counted()
		took := time.Since(began).Seconds()
		figure(t, "KubeEdge, edgecore alone, %s: %.0f B/s on its site's router in %v, %.0f of it cloudcore's main port", x.name, (all2-all)/took, length, (hub2-hub)/took)
	}
}

// What an agent's own connections to the API carry at rest, or to its YurtHub, which hands on each request and each event: IP bytes in both
// directions, by the kernel's count of the agent's sockets. EDGEMESH_QUIET has the windows, such as 2x5m. On a cluster that is kept it has
// been at rest before (EDGEMESH_KUBE_ATTACH), with a controller or without.
func TestQuietSockets(t *testing.T) {
	const node = "edge-a1"
	var c *cluster.Cluster
	port := cluster.APIPort
	switch flavour() {
	case "openyurt":
		c, port = openYurt(t), "10261"
	case "":
		c, _ = installed(t)
	default:
		t.Skip("MetaServer's requests are counted: TestKubeEdgeQuiet")
	}
	turns, length := windows(t, 1, time.Minute)
	var rates sample
	for range turns {
		before, began := sockets(t, c, node, port), time.Now()
		hub := hubTraffic(t, c, node)
		time.Sleep(length) // sleep: the window that is measured
		took, after, bytes, opened := time.Since(began).Seconds(), sockets(t, c, node, port), 0., 0
		for s, n := range after {
			if _, there := before[s]; !there {
				opened++
			}
			bytes += n - before[s]
			delete(before, s)
		}
		t.Logf("%.1f B/s in %v, on %d sockets, %d of them new; %d ended, with what they had carried", bytes/took, length, len(after), opened, len(before))
		for what, n := range hubTraffic(t, c, node) {
			if n != hub[what] {
				t.Logf("YurtHub answered the agent's %s with %.1f B/s", what, (n-hub[what])/took)
			}
		}
		rates = append(rates, bytes/took)
	}
	m, e := rates.mean()
	figure(t, "%s: an agent at rest, %d windows of %v: %.1f ± %.1f B/s on its own connections to port %s", cmp.Or(platform(), "Kubernetes"), turns, length, m, e, port)
}

// windows are EDGEMESH_QUIET's, such as 3x150s.
func windows(t *testing.T, turns int, length time.Duration) (int, time.Duration) {
	t.Helper()
	if v, set := os.LookupEnv("EDGEMESH_QUIET"); set {
		count, window, _ := strings.Cut(v, "x")
		var err error
		turns, err = strconv.Atoi(count)
		ok(t, err)
		length, err = time.ParseDuration(window)
		ok(t, err)
	}
	return turns, length
}

// sockets are the IP bytes that the agent's TCP sockets to a port have carried, by their addresses: data, and 52 bytes of headers a segment.
func sockets(t *testing.T, c *cluster.Cluster, node, port string) map[string]float64 {
	t.Helper()
	out, err := c.On(t.Context(), node, "ss", "-tinpOH", "state", "established", "dport = :"+port)
	ok(t, err)
	found := map[string]float64{}
	for line := range strings.Lines(out) {
		if !strings.Contains(line, `"edgemesh-agent"`) {
			continue
		}
		sum := 0.
		for _, m := range regexp.MustCompile(`(bytes_sent|bytes_received|segs_out|segs_in):(\d+)`).FindAllStringSubmatch(line, -1) {
			n, err := strconv.ParseFloat(m[2], 64)
			ok(t, err)
			if strings.HasPrefix(m[1], "segs") {
				n *= 52
			}
			sum += n
		}
		f := strings.Fields(line)
		found[f[2]+" "+f[3]] = sum
	}
	if len(found) == 0 {
		t.Fatalf("the agent of %s has no connection to port %s:\n%s", node, port, out)
	}
	return found
}

// hubTraffic are the bytes that a node's YurtHub has answered to the agent, by verb and kind; none where there is no YurtHub.
func hubTraffic(t *testing.T, c *cluster.Cluster, node string) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	if flavour() != "openyurt" {
		return found
	}
	out, err := c.On(t.Context(), node, "curl", "-sSfm2", "http://127.0.0.1:10267/metrics")
	ok(t, err)
	for line := range strings.Lines(out) {
		if labels, value, two := strings.Cut(line, "} "); two && strings.Contains(labels, "traffic") && strings.Contains(labels, "edgemesh-agent") {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			ok(t, err)
			found[labels[strings.Index(labels, "{")+1:]] = n
		}
	}
	return found
}

// counter counts the IP bytes that a site's router has forwarded, those of a TCP port and all.
func counter(t *testing.T, c *cluster.Cluster, site, port string) func() (those, all float64) {
	t.Helper()
	_, err := c.InRouter(t.Context(), site, "sh", "-c", "iptables -N QUIET 2>/dev/null; iptables -F QUIET; iptables -C FORWARD -j QUIET 2>/dev/null || iptables -I FORWARD -j QUIET; "+
		"iptables -A QUIET -p tcp --sport "+port+"; iptables -A QUIET -p tcp --dport "+port+"; iptables -A QUIET")
	ok(t, err)
	return func() (those, all float64) {
		out, err := c.InRouter(t.Context(), site, "iptables", "-L", "QUIET", "-nvx")
		ok(t, err)
		for i, line := range strings.Split(strings.TrimSpace(out), "\n")[2:] {
			n, err := strconv.ParseFloat(strings.Fields(line)[1], 64)
			ok(t, err)
			if all = n; i < 2 {
				those += n
			}
		}
		return those, all
	}
}

// Members come and go while an edge behind MetaServer has 200 more: what one costs on its uplink, and how soon the edge knows.
func TestKubeEdgeMany(t *testing.T) {
	c := kubeEdge(t)
	const node, times = "edge-a1", 20
	counted := counter(t, c, "a", "10000")
	t.Cleanup(func() {
		if err := removeFakes(context.WithoutCancel(t.Context()), c); err != nil {
			t.Error(err)
		}
	})
	addFakes(t, c)
	eventually(t, 5*time.Minute, func(ctx context.Context) error { return peersAre(ctx, c, node, 3+fakeNodes) })
	time.Sleep(time.Minute) // sleep: what the start costs
	rate := func(during func()) (bytes, seconds, requests float64) {
		before, began := cloudcoreHeard(t, c, node), time.Now()
		was, _ := counted()
		during()
		is, _ := counted()
		return is - was, time.Since(began).Seconds(), cloudcoreHeard(t, c, node) - before
	}
	var forgotten sample
	bytes, took, requests := rate(func() {
		for i := range times {
			name := fmt.Sprintf("fake-%03d", i)
			kubectl(t, "delete", "node", name)
			forgotten = append(forgotten, eventually(t, time.Minute, func(ctx context.Context) error { return knows(ctx, c, node, name, false) }).Seconds())
			time.Sleep(3 * time.Second) // sleep: the garbage collector
			ok(t, addFake(t.Context(), c, name))
			eventually(t, time.Minute, func(ctx context.Context) error { return knows(ctx, c, node, name, true) })
		}
		time.Sleep(15 * time.Second) // sleep: a look at the Lease follows
	})
	rest, length, still := rate(func() { time.Sleep(time.Minute) }) // sleep: what rest costs
	each := (bytes - rest/length*took) / times
	mean, _ := forgotten.mean()
	figure(t, "KubeEdge: with %d more nodes, one that goes and one that comes are %.1f kB on an edge's uplink together and %.1f requests: %.0f B/s if it is one each 10 minutes "+
		"(%.0f requests in a minute of rest); a removed one is forgotten after %.1f s, at most %.1f s", fakeNodes, each/1000, requests/times, each/1200, still, mean, slices.Max(forgotten))
}

// sample are measurements of the same.
type sample []float64

// mean is theirs, with the error of it.
func (s sample) mean() (mean, err float64) {
	for _, x := range s {
		mean += x / float64(len(s))
	}
	for _, x := range s {
		err += (x - mean) * (x - mean) / float64(len(s)*max(1, len(s)-1))
	}
	return mean, math.Sqrt(err)
}
