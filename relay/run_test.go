package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
	"go.uber.org/goleak"

	"edgemesh/internal/cli"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/test/fair"
)

// logBuffer collects standard error.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a relay under its command line.
type running struct {
	t       *testing.T
	dir     string
	metrics string // host:port
	info    peer.AddrInfo
	log     *logBuffer
	stop    func() int // SIGTERM; returns the exit code
}

// runRelay starts `run` with dir/cluster.yaml, which must exist unless there is
// a snapshot, and waits for the printed address.
func runRelay(t *testing.T, dir string) *running {
	t.Helper()
	return runRelayWith(t, dir, fmt.Sprintf("membership: {file: %s/cluster.yaml}\n", dir))
}

// runRelayWith is runRelay with these lines in the configuration.
func runRelayWith(t *testing.T, dir, lines string) *running {
	t.Helper()
	r := &running{t: t, dir: dir, log: &logBuffer{}}
	writeFile(t, filepath.Join(dir, "relay.yaml"), fmt.Sprintf(
		"stateDir: %s/state\nlisten: [/ip4/127.0.0.1/tcp/0]\nmetricsAddress: 127.0.0.1:0\n%s", dir, lines))
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- cli.Execute(ctx, newRoot(), []string{"run", "--config", filepath.Join(dir, "relay.yaml")}, in, r.log)
		in.Close()
	}()
	r.stop = sync.OnceValue(func() int {
		cancel()
		soon, stop := fair.WithTimeout(context.Background(), deadline)
		defer stop()
		select {
		case c := <-code:
			return c
		case <-soon.Done():
			t.Errorf("does not stop; log:\n%s", r.log)
			return -1
		}
	})
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("no address printed: %v; log:\n%s", err, r.log)
	}
	go io.Copy(io.Discard, out)
	m, err := ma.NewMultiaddr(strings.TrimSuffix(line, "\n"))
	if err != nil {
		t.Fatalf("%q is not a multiaddr: %v", line, err)
	}
	info, err := peer.AddrInfoFromP2pAddr(m)
	if err != nil {
		t.Fatal(err)
	}
	r.info = *info
	r.logs("serving metrics")
	r.metrics = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(r.log.String()[strings.Index(r.log.String(), "serving metrics"):])
	return r
}

func clusterYAML(nodes ...node) string {
	var b strings.Builder
	b.WriteString("podCIDRs: [10.244.0.0/16]\nnodes:\n")
	for i, n := range nodes {
		fmt.Fprintf(&b, "- {name: n%d, peerID: %s, podCIDRs: [10.244.%d.0/24]}\n", i, n.ID(), i)
	}
	return b.String()
}

func (r *running) write(content string) {
	writeFile(r.t, filepath.Join(r.dir, "cluster.yaml"), content)
}

func (r *running) reserve(n node) error {
	n.Network().(*swarm.Swarm).Backoff().Clear(r.info.ID)
	if err := n.Connect(n.ctx(), r.info); err != nil {
		return err
	}
	_, err := client.Reserve(n.ctx(), n.Host, r.info)
	return err
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.metrics + path)
	for i := 0; err != nil && i < 5; i++ { // a crowded machine may take longer to send the request than a server waits for it
		resp, err = http.Get("http://" + r.metrics + path)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func (r *running) logs(want string) {
	r.t.Helper()
	fair.Eventually(r.t, deadline, "log line "+want, fair.True(func() bool { return strings.Contains(r.log.String(), want) }))
}

func TestRunFollowsTheMembership(t *testing.T) {
	a, b := newNode(t), newNode(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "cluster.yaml"), clusterYAML(a))
	r := runRelay(t, dir)
	if err := r.reserve(a); err != nil {
		t.Fatal(err)
	}
	if err := r.reserve(b); err == nil {
		t.Fatal("a stranger got a reservation")
	}
	r.logs("does not list this relay")

	r.write(clusterYAML(a, b))
	fair.Eventually(t, deadline, "b is admitted", fair.True(func() bool { return r.reserve(b) == nil }))

	r.write("podCIDRs: [10.244.0.0")
	r.logs("the last good one stays in force")
	if a.Network().Connectedness(r.info.ID) != network.Connected {
		t.Error("a broken file cut a member off")
	}

	before := time.Now()
	r.write(clusterYAML(b))
	fair.Eventually(t, deadline, "a is cut off", fair.True(func() bool { return a.Network().Connectedness(r.info.ID) != network.Connected }))
	t.Logf("cut off %v after the file was written", time.Since(before).Round(time.Millisecond))
	if err := r.reserve(a); err == nil {
		t.Error("the removed member got a reservation")
	}

	if code, _ := r.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if code, _ := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
	}
	var text string
	fair.Eventually(t, deadline, "a's connection is taken down", fair.True(func() bool {
		_, text = r.get("/metrics")
		return strings.Contains(text, "edgemesh_relay_connected_peers 1\n") && strings.Contains(text, "edgemesh_relay_reservations 1\n")
	}))
	for _, want := range []string{
		"edgemesh_relay_members 1", "edgemesh_relay_connected_peers 1", "edgemesh_relay_reservations 1", "edgemesh_relay_circuits 0",
		`edgemesh_relay_membership_reads_total{result="bad"} 1`, `edgemesh_relay_refused_total{reason="stranger"}`,
		`edgemesh_relay_requests_total{status="OK",type="reserve"}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestRunWithoutItsFile(t *testing.T) {
	a := newNode(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster.yaml")
	writeFile(t, path, clusterYAML(a))
	first := runRelay(t, dir)
	fair.Eventually(t, deadline, "the snapshot", fair.True(func() bool {
		_, err := snapshot.Load(filepath.Join(dir, "state"))
		return err == nil
	}))
	first.stop()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second := runRelay(t, dir)
	if second.info.ID != first.info.ID {
		t.Error("another identity after a restart")
	}
	if err := second.reserve(a); err != nil {
		t.Errorf("membership from the snapshot: %v", err)
	}
	second.logs("starting from the snapshot")
	second.logs(path)
}

func TestRunLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "cluster.yaml"), clusterYAML())
	r := runRelay(t, dir)
	if code := r.stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	goleak.VerifyNone(t, before)
}

// Two relays want the same metrics port: the second one must say so and end.
func TestRunMetricsPortInUse(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "cluster.yaml"), clusterYAML())
	first := runRelay(t, dir)
	conf := filepath.Join(dir, "second.yaml")
	writeFile(t, conf, fmt.Sprintf("stateDir: %s/second\nmembership: {file: %s/cluster.yaml}\nlisten: [/ip4/127.0.0.1/tcp/0]\nmetricsAddress: %s\n",
		dir, dir, first.metrics))
	log := &logBuffer{}
	code := cli.Execute(t.Context(), newRoot(), []string{"run", "--config", conf}, io.Discard, log)
	if code != cli.ExitFailed || !strings.Contains(log.String(), conf+": metricsAddress: cannot listen") || !strings.Contains(log.String(), "stop the program") {
		t.Errorf("exit code %d, log %s", code, log)
	}
}
