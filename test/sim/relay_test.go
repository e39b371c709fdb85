package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sys/unix"

	"edgemesh/internal/keyfile"
	"edgemesh/internal/keytest"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/signed"
	"edgemesh/internal/membership/source"
	"edgemesh/test/fair"
	"edgemesh/test/sim/herd"
)

const (
	relayPort   = 4470
	metricsPort = 9470
	inNamespace = "EDGEMESH_SIM_NAMESPACE"
	// site is how many members are behind one address.
	site = 40
)

// TestRelay has one relay, the real program, serve many members, of a cluster.yaml or, with EDGEMESH_SIM_RELAY_PINNED=1, by statements. All of it is in a network namespace without any link but lo.
func TestRelay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: makes a network namespace; run as root")
	}
	if os.Getenv(inNamespace) == "" {
		c := exec.CommandContext(t.Context(), "sh", "-c", `ip link set lo up && exec "$0" "$@"`, os.Args[0],
			"-test.run=^TestRelay$", "-test.v", "-test.count=1", "-test.timeout=30m")
		c.Env = append(os.Environ(), inNamespace+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := c.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if _, said, ok := strings.Cut(line, ".go:"); ok {
				_, said, _ = strings.Cut(said, ": ")
				t.Log(strings.TrimSpace(said))
			}
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	sizes := []int{60}
	if full() {
		sizes = []int{1_000, 10_000}
	}
	if n, err := strconv.Atoi(os.Getenv("EDGEMESH_SIM_RELAY")); err == nil {
		sizes = []int{n}
	}
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	for _, n := range sizes {
		relayWith(t, n)
	}
}

// relayWith measures a relay with n members.
func relayWith(t *testing.T, n int) {
	h, err := herd.New(n, (n+site-1)/site)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r := startRelay(t, t.TempDir(), h)
	say := func(format string, args ...any) { t.Logf("%6d members: "+format, append([]any{n}, args...)...) }
	pause := time.Duration(0)
	if full() {
		time.Sleep(15 * time.Second) // sleep: what the start costs
		pause = time.Minute
	}
	empty := r.memory(t)
	say("relay without connections: %s", empty)

	const atATime = 16
	before, began := r.used(t), time.Now()
	h.Go(herd.Relay{ID: r.id, At: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), relayPort)}, atATime)
	here := func() error {
		// What failed over QUIC is tried again after longer and longer pauses, up to 15 minutes.
		if got, both := h.Reserved(), h.Complete(); got != n || both < n-n/500 && !h.TCPFirst {
			return fmt.Errorf("%d reserved, %d with both connections, of %d; for instance %v", got, both, n, h.Missing()) //nolint:errorlint // may be nil
		}
		return nil
	}
	reserved := func() error {
		if got := h.Reserved(); got != n {
			return fmt.Errorf("%d of %d reserved; for instance %v", got, n, h.Missing()) //nolint:errorlint // may be nil
		}
		return nil
	}
	fair.Eventually(t, 10*time.Minute, "all are reserved", reserved)
	fair.Eventually(t, 10*time.Minute, "all have their connections", here)
	used := r.used(t) - before
	say("all here after %.1f s, %d at a time, %d of them over QUIC too: %.2f ms of the relay's processor time each", time.Since(began).Seconds(), atATime, h.Complete(), ms1(used)/float64(n))
	idle := func() {
		if pause == 0 {
			return
		}
		time.Sleep(pause / 4) // sleep: what came before ends
		before, began = r.used(t), time.Now()
		time.Sleep(pause) // sleep: what rest costs
		say("idle: %.2f %% of a core", 100*(r.used(t)-before).Seconds()/time.Since(began).Seconds())
		now := r.memory(t)
		say("%s, %d kB a member; %s", now, (now["VmRSS"]-empty["VmRSS"])/n, r.metric(t, "go_goroutines", "go_memstats_heap_inuse_bytes", "go_memstats_stack_inuse_bytes", "process_open_fds"))
	}
	idle()
	if full() { // longer than a multiplexer's pings would bear: agents send none
		_ = r.c.Process.Signal(syscall.SIGSTOP)
		time.Sleep(50 * time.Second) // sleep: it stands still
		_ = r.c.Process.Signal(syscall.SIGCONT)
	}
	if err := reserved(); err != nil {
		t.Errorf("reservations lost while nothing happened, or while the relay stood still: %v", err)
	}
	circuits(t, h, r, say)

	for _, how := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		refused := h.Refused.Load()
		r.stop(t, how)
		fair.Eventually(t, time.Minute, "all know that the relay is gone", func() error {
			if got := h.Reserved(); got > 0 {
				return fmt.Errorf("%d still hold a reservation", got)
			}
			return nil
		})
		mine := processorTime()
		r.start(t)
		began = time.Now()
		attempts := h.Attempts.Load() // before that the kernel refused them
		fair.Eventually(t, 10*time.Minute, "all are back", reserved)
		back := h.Back(began)
		used, mine = r.used(t), processorTime()-mine
		tried, no := h.Attempts.Load()-attempts, h.Refused.Load()-refused
		fair.Eventually(t, 10*time.Minute, "all have their connections", here)
		say("back after %v: half in %.1f s, 99 %% in %.1f s, all in %.1f s; processor time: relay %.1f s, members %.1f s; %d attempts, %d reservations refused; %s",
			how, back[n/2].Seconds(), back[n*99/100].Seconds(), back[len(back)-1].Seconds(), used.Seconds(), mine.Seconds(),
			tried, no, r.metric(t, "edgemesh_relay_refused_total"))
		say("back: the site that is served last waits %s", lateSites(h, began))
		if !full() {
			return
		}
	}
	idle()
}

// lateSites compares sites by when half of their members were back.
func lateSites(h *herd.Herd, since time.Time) string {
	by := make(map[netip.Addr][]time.Duration)
	for _, m := range h.All {
		by[m.Site()] = append(by[m.Site()], m.ReservedAt().Sub(since))
	}
	var all []time.Duration
	var sum time.Duration
	for _, l := range by {
		slices.Sort(l)
		all = append(all, l[len(l)/2])
		sum += l[len(l)/2]
	}
	slices.Sort(all)
	mean := sum / time.Duration(len(all))
	return fmt.Sprintf("%.2f times the mean, %.1f s", all[len(all)-1].Seconds()/mean.Seconds(), mean.Seconds())
}

// circuits opens circuits among members of which each has one, as many at a time as a busy cluster may.
func circuits(t *testing.T, h *herd.Herd, r *relay, say func(string, ...any)) {
	n := min(len(h.All)/2, 4_000)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	done := make(chan struct{})
	var open, failed atomic.Int64
	var wg sync.WaitGroup
	places := make(chan struct{}, 64)
	before, began, rss := r.used(t), time.Now(), r.memory(t)["VmRSS"]
	var mu sync.Mutex
	var first error
	for i := range n {
		wg.Go(func() {
			places <- struct{}{}
			left := sync.OnceFunc(func() { <-places })
			defer left()
			err := h.All[i].Circuit(ctx, h.All[len(h.All)-1-i].ID, func() { open.Add(1); left() }, done)
			if err != nil {
				failed.Add(1)
				mu.Lock()
				first = err
				mu.Unlock()
			}
		})
	}
	fair.Eventually(t, 5*time.Minute, "all circuits are open", func() error {
		if got := open.Load() + failed.Load(); got != int64(n) {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
	took, used := time.Since(began), r.used(t)-before
	say("%d circuits beside each other: %.0f a second, %.2f ms of the relay's processor time each, %d kB each; %d failed: %v", n,
		float64(n)/took.Seconds(), ms1(used)/float64(n), (r.memory(t)["VmRSS"]-rss)/n, failed.Load(), first)
	close(done)
	wg.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d circuits failed: %v", failed.Load(), first)
	}
}

func ms1(d time.Duration) float64 { return d.Seconds() * 1e3 }

// relay is the program.
type relay struct {
	dir string
	id  peer.ID
	c   *exec.Cmd
}

// startRelay starts bin/edgemesh-relay for a herd.
func startRelay(t *testing.T, dir string, h *herd.Herd) *relay {
	key, err := keyfile.LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{dir: dir}
	if r.id, err = peer.IDFromPrivateKey(key); err != nil {
		t.Fatal(err)
	}
	s := mesh.State{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for i, m := range h.All {
		s.Nodes = append(s.Nodes, mesh.Node{Name: fmt.Sprintf("node-%06d", i), PeerID: mesh.PeerID(m.ID.String()), PodCIDRs: []netip.Prefix{Block(i)}})
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cluster.yaml", yaml(s))
	members := fmt.Sprintf("membership: {file: %s/cluster.yaml}", dir)
	if os.Getenv("EDGEMESH_SIM_RELAY_PINNED") != "" {
		signer, id := keytest.New(t)
		members = fmt.Sprintf("signers: [%s]", id)
		write(source.StatementsFile, string(signed.Lines(statements(t, s.Nodes, signer))))
	}
	write("relay.yaml", fmt.Sprintf("stateDir: %s\nlisten: [/ip4/127.0.0.1/tcp/%[2]d, /ip4/127.0.0.1/udp/%[2]d/quic-v1]\nannounce: [/ip4/5.5.5.5]\n%[3]s\n%[4]s",
		dir, relayPort, members, os.Getenv("EDGEMESH_SIM_RELAY_YAML")))
	r.start(t)
	t.Cleanup(func() {
		r.stop(t, syscall.SIGKILL)
		if text, err := os.ReadFile(filepath.Join(dir, "log")); t.Failed() {
			t.Logf("the relay's log ends: %v\n%s", err, text[max(0, len(text)-4<<10):])
		}
	})
	return r
}

// statements are what key has signed about nodes.
func statements(t *testing.T, nodes []mesh.Node, key crypto.PrivKey) (out []signed.Signed) {
	for _, n := range nodes {
		id, err := peer.Decode(string(n.PeerID))
		if err != nil {
			t.Fatal(err)
		}
		x, err := signed.Sign(signed.Statement{Kind: signed.Member, Name: n.Name, ID: id, Blocks: n.PodCIDRs, Epoch: signed.Now(0)}, key)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, x)
	}
	return out
}

func (r *relay) start(t *testing.T) {
	program, err := filepath.Abs("../../bin/edgemesh-relay")
	if err != nil {
		t.Fatal(err)
	}
	r.c = exec.CommandContext(context.Background(), program, "run", "--config", filepath.Join(r.dir, "relay.yaml"))
	r.c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r.c.Stderr = log
	if err := r.c.Start(); err != nil {
		t.Fatal(err)
	}
	fair.Eventually(t, time.Minute, "the relay is ready", func() error {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", metricsPort))
		if err == nil {
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = errors.New(resp.Status)
			}
		}
		if err != nil {
			text, _ := os.ReadFile(filepath.Join(r.dir, "log"))
			err = fmt.Errorf("%w\n%s", err, text)
		}
		return err
	})
}

func (r *relay) stop(t *testing.T, how os.Signal) {
	if r.c == nil {
		return
	}
	if err := r.c.Process.Signal(how); err != nil {
		t.Log(err)
	}
	_ = r.c.Wait()
	r.c = nil
}

func (r *relay) used(t *testing.T) time.Duration { return processor(t, r.c.Process.Pid) }

// kB is lines of /proc/PID/status.
type kB map[string]int

func (k kB) String() string {
	return fmt.Sprintf("RSS %.1f MB, of it anonymous %.1f, highest %.1f", float64(k["VmRSS"])/1e3, float64(k["RssAnon"])/1e3, float64(k["VmHWM"])/1e3)
}

func (r *relay) memory(t *testing.T) kB {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	out := make(kB)
	for line := range bytes.Lines(text) {
		var n int
		if key, value, ok := strings.Cut(string(line), ":"); ok {
			if _, err := fmt.Sscanf(value, "%d kB", &n); err == nil {
				out[key] = n
			}
		}
	}
	return out
}

// metric is the lines of the relay's metrics with these names.
func (r *relay) metric(t *testing.T, names ...string) string {
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(b.String()) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{") }) && !strings.HasSuffix(line, " 0\n") {
			out = append(out, strings.TrimPrefix(strings.TrimSpace(line), "edgemesh_relay_"))
		}
	}
	return strings.Join(out, ", ")
}
