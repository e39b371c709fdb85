package kubeapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
	"edgemesh/test/tier"
)

// fleet is many agents in one process: what follows the API is theirs, nothing else is there.
type fleet struct {
	t       *testing.T
	c       *kubeapi.Cluster
	agents  []*fleetAgent
	control int // process of the controller
}

type fleetAgent struct {
	cfg     kube.Config
	cancel  context.CancelFunc
	done    chan struct{}
	members atomic.Int64
	told    atomic.Int64 // when the last membership came, in ns
}

func (a *fleetAgent) onState(s mesh.State) {
	a.members.Store(int64(len(s.Admitted().Nodes)))
	a.told.Store(time.Now().UnixNano())
}

func (a *fleetAgent) start(ctx context.Context) error {
	source, err := kube.New(a.cfg)
	if err != nil {
		return err
	}
	s, _, err := source.Start(ctx)
	if err != nil {
		return err
	}
	a.onState(s)
	watch, cancel := context.WithCancel(context.Background())
	a.cancel, a.done = cancel, make(chan struct{})
	go func() {
		defer close(a.done)
		source.Watch(watch, a.onState, func(error) {})
	}()
	source.SetServing(nil)
	return nil
}

func (a *fleetAgent) stop() {
	if a.cancel != nil {
		a.cancel()
		<-a.done
		a.cancel = nil
	}
}

// fleetPatience bounds the waits, on a busy machine.
const fleetPatience = 20 * time.Minute

// grow has n nodes and as many agents.
func (f *fleet) grow(n int) {
	f.t.Helper()
	first := len(f.agents)
	for i := first; i < n; i++ {
		f.agents = append(f.agents, &fleetAgent{})
	}
	f.each(f.agents[first:], 16, func(i int, a *fleetAgent) error {
		i += first
		name := fmt.Sprintf("fleet-%d", i)
		cert, err := f.c.NodeCertificate(name, time.Now().Add(-time.Hour))
		if err != nil {
			return err
		}
		if err := f.c.CreateNode(name, fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256)); err != nil {
			return err
		}
		a.cfg = kube.Config{Access: client.Access{Kubeconfig: filepath.Join(f.c.Dir, name+".conf")}, NodeName: name, PeerID: mesh.PeerID(newPeerID(f.t)),
			AgentVersion: "v0.0.0-test", StateDir: f.t.TempDir(), Log: slog.New(slog.DiscardHandler)}
		return f.c.Kubeconfig(name+".conf", cert, f.c.URL)
	})
}

// each does something with all of them, so many at a time.
func (f *fleet) each(agents []*fleetAgent, width int, do func(i int, a *fleetAgent) error) {
	f.t.Helper()
	turns := make(chan struct{}, width)
	var all sync.WaitGroup
	for i, a := range agents {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			if err := do(i, a); err != nil {
				f.t.Errorf("%s: %v", a.cfg.NodeName, err)
			}
		})
	}
	all.Wait()
	if f.t.Failed() {
		f.t.FailNow()
	}
}

// start starts agents, all within the time that a rollout or a power cut would leave them.
func (f *fleet) start(agents []*fleetAgent, within time.Duration) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), fleetPatience)
	defer cancel()
	f.each(agents, len(agents), func(_ int, a *fleetAgent) error {
		time.Sleep(rand.N(within + 1)) // sleep: they start one after the other
		return a.start(ctx)
	})
}

// know waits until every agent knows so many members, and returns when the half of them and the last did.
func (f *fleet) know(members int) (half, last time.Time) {
	f.t.Helper()
	var at []int64
	fair.Eventually(f.t, fleetPatience, "all agents know the members", func() error {
		at = make([]int64, 0, len(f.agents))
		for _, a := range f.agents {
			if int(a.members.Load()) == members {
				at = append(at, a.told.Load())
			}
		}
		if len(at) < len(f.agents) {
			return fmt.Errorf("%d of %d agents know %d", len(at), len(f.agents), members)
		}
		return nil
	})
	slices.Sort(at)
	return time.Unix(0, at[len(at)/2]), time.Unix(0, at[len(at)-1])
}

// spent is what the cluster has used so far.
type spent struct {
	at             time.Time
	api, etcd, own float64 // processor seconds of kube-apiserver, etcd and the controller
	requests       float64
	lists          float64 // bytes of answers to lists
	events         float64 // sent to watchers
	eventBytes     float64
	fromEtcd       float64 // lists that etcd answered
}

func (f *fleet) spent() (s spent) {
	f.t.Helper()
	text, err := f.c.Metrics()
	must(f.t, err)
	api, etcd := f.c.PIDs()
	s = spent{at: time.Now(), api: processorSeconds(f.t, api), etcd: processorSeconds(f.t, etcd), own: processorSeconds(f.t, f.control)}
	s.requests = sumOf(text, "apiserver_request_total", "")
	s.lists = sumOf(text, "apiserver_response_sizes_sum", `verb="LIST"`)
	s.events = sumOf(text, "apiserver_watch_events_total", "")
	s.eventBytes = sumOf(text, "apiserver_watch_events_sizes_sum", "")
	s.fromEtcd = sumOf(text, "etcd_requests_total", `operation="list"`)
	return s
}

// since logs what something has cost.
func (f *fleet) since(what string, of float64, was spent) {
	f.t.Helper()
	s := f.spent()
	f.t.Logf("%4d agents, %-32s %6.1f s; processor ms each of %4.0f: API %7.2f, etcd %6.2f, controller %6.2f; requests %6.1f, list kB %8.1f, events %8.1f, event kB %8.1f, lists from etcd %5.2f",
		len(f.agents), what, s.at.Sub(was.at).Seconds(), of, 1000*(s.api-was.api)/of, 1000*(s.etcd-was.etcd)/of, 1000*(s.own-was.own)/of,
		(s.requests-was.requests)/of, (s.lists-was.lists)/1e3/of, (s.events-was.events)/of, (s.eventBytes-was.eventBytes)/1e3/of, (s.fromEtcd-was.fromEtcd)/of)
}

// sumOf adds up the samples of one metric that have a label.
func sumOf(text, name, label string) (sum float64) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, "{") && !strings.HasPrefix(rest, " ") || !strings.Contains(rest, label) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(strings.TrimSpace(rest), " "):]), 64)
		if err == nil {
			sum += v
		}
	}
	return sum
}

// processorSeconds is what a process has used.
func processorSeconds(t *testing.T, pid int) float64 {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks float64
	for _, i := range []int{11, 12} { // utime and stime, by proc(5)
		v, err := strconv.ParseFloat(fields[i], 64)
		must(t, err)
		ticks += v
	}
	return ticks / 100
}

// TestFleet measures what many agents cost the API: their first start, rest, a change that all of them hear, a rolling
// restart, and all of them back after an outage. make sim runs it; EDGEMESH_SIM_AGENTS are the numbers of agents.
func TestFleet(t *testing.T) {
	tier.Long(t)
	sizes := "250 500 1000 2000"
	if text := os.Getenv("EDGEMESH_SIM_AGENTS"); text != "" {
		sizes = text
	}
	c := emptyCluster(t)
	network(t, c, map[string]any{"podCIDRs": []string{"10.128.0.0/9"}})
	f := &fleet{t: t, c: c, control: startControllers(t, c, "one").all["one"].Process.Pid}
	t.Cleanup(func() { f.each(f.agents, 64, func(_ int, a *fleetAgent) error { a.stop(); return nil }) })
	for _, text := range strings.Fields(sizes) {
		n, err := strconv.Atoi(text)
		must(t, err)
		f.measure(n)
	}
}

func (f *fleet) measure(n int) {
	t, had := f.t, len(f.agents)
	t.Helper()
	f.grow(n)
	was := f.spent()
	f.start(f.agents[had:], time.Duration(n-had)*20*time.Millisecond)
	f.know(n)
	f.since("first start of the new ones", float64(n-had), was)
	time.Sleep(time.Minute) // sleep: until all follow NodeRecords

	was = f.spent()
	time.Sleep(time.Minute) // sleep: what rest costs
	f.since("a minute of rest", float64(n), was)

	const changes = 5
	var half, last time.Duration
	was = f.spent()
	for i := range changes {
		began := time.Now()
		must(t, f.c.CreateMember("guest", newPeerID(t), "10.255.255.0/24"))
		h, l := f.know(n + 1)
		half, last = half+h.Sub(began)/changes, max(last, l.Sub(began))
		must(t, f.c.Delete("/api/v1/nodes/guest"), f.c.Delete(kubeapi.Group+"meshnodes/guest"))
		f.know(n)
		t.Logf("%d agents, change %d: half know after %v, all after %v", n, i+1, h.Sub(began).Round(time.Millisecond), l.Sub(began).Round(time.Millisecond))
	}
	f.since("a member that comes and goes", changes, was)
	t.Logf("%d agents: half know a new member after %v on average, all after %v at most", n, half.Round(time.Millisecond), last.Round(time.Millisecond))

	was = f.spent()
	const part = 10 // of the fleet at a time
	for i := 0; i < n; i += n / part {
		some := f.agents[i:min(i+n/part, n)]
		f.each(some, len(some), func(_ int, a *fleetAgent) error { a.stop(); return nil })
		f.start(some, time.Duration(len(some))*20*time.Millisecond)
	}
	f.know(n)
	f.since("rolling restart, each", float64(n), was)

	f.each(f.agents, len(f.agents), func(_ int, a *fleetAgent) error { a.stop(); return nil })
	was = f.spent()
	f.start(f.agents, 0)
	f.know(n)
	f.since("all at the same time, each", float64(n), was)
}
