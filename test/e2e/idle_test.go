package e2e

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

const (
	// idleMembers is how many members the cluster of the idle agent has.
	idleMembers = 1000
	// idleShare is what an idle agent may take of a processor, and idleWakes how often a second it may wake, beside other
	// load. The aims are 0.15 % and 5 (docs/measurements/memory.md).
	idleShare = 0.003
	idleWakes = 8.0
)

// used is what a process has used: processor time, and how often each thread fell asleep.
type used struct {
	cpu   time.Duration
	waits map[string]uint64
}

// usedBy adds up the threads of a process (proc_pid_task(5)): run time in nanoseconds is the first field of schedstat.
func usedBy(t *testing.T, pid int) used {
	t.Helper()
	u := used{waits: make(map[string]uint64)}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	ok(t, err)
	for _, dir := range tasks {
		b, err := os.ReadFile(dir + "/schedstat")
		ok(t, err)
		run, _, _ := strings.Cut(string(b), " ")
		ns, err := strconv.ParseInt(run, 10, 64)
		ok(t, err)
		u.cpu += time.Duration(ns)
		b, err = os.ReadFile(dir + "/status")
		ok(t, err)
		_, rest, _ := strings.Cut(string(b), "\nvoluntary_ctxt_switches:")
		u.waits[dir], err = strconv.ParseUint(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]), 10, 64)
		ok(t, err)
	}
	return u
}

// watched is what a process uses in a time: the share of a processor, and how often a second it woke. Not counted is the
// thread that fell asleep most often, the Go runtime's monitor: while another thread is awake it takes naps of 20 µs.
func watched(t *testing.T, n *lab.Node, d time.Duration) (share, wakes float64) {
	t.Helper()
	before, start := usedBy(t, n.Agent.PID()), time.Now()
	time.Sleep(d) // sleep: what rest costs
	after, took := usedBy(t, n.Agent.PID()), time.Since(start)
	var all, monitor uint64
	for thread, now := range after.waits {
		waits := now - before.waits[thread]
		all, monitor = all+waits, max(monitor, waits)
	}
	share, wakes = float64(after.cpu-before.cpu)/float64(took), float64(all-monitor)/took.Seconds()
	t.Logf("%.0f s: %.3f %% of a processor, woke %.1f times a second (and the runtime's monitor %.1f times)",
		d.Seconds(), 100*share, wakes, float64(monitor)/took.Seconds())
	return share, wakes
}

// absent enters n members that are not there.
func absent(t *testing.T, c *lab.Cluster, n int) {
	t.Helper()
	for i := range n {
		_, public, err := crypto.GenerateEd25519Key(rand.Reader)
		ok(t, err)
		id, err := peer.IDFromPublicKey(public)
		ok(t, err)
		block := fmt.Sprintf("10.244.%d.%d/28", 128+i/16, i%16*16)
		c.Nodes = append(c.Nodes, lab.Member{Name: fmt.Sprintf("absent-%d", i), PeerID: id.String(), PodCIDRs: []string{block}})
	}
}

// TestIdleHour leaves a small mesh alone for an hour after every pair has talked: paths that nobody needs end, none is lost,
// nobody warns, and the first packet after it flows immediately.
func TestIdleHour(t *testing.T) {
	tier.Long(t)
	beside(t)
	l := newLab(t)
	relay(t, l, "relay")
	relay(t, l, "relay-2")
	for i, kind := range []lab.NAT{lab.EIM, lab.EIM, lab.Symmetric, public} {
		at(t, l, fmt.Sprintf("edge-%d", i+1), kind)
	}
	startAll(t, l)
	var pods []*lab.Pod
	for _, n := range l.Nodes() {
		pods = append(pods, pod(t, n, "pod-of-"+n.Name))
	}
	talk := func() {
		for _, from := range pods {
			for _, to := range pods {
				if from != to {
					curlPods(t, from, to, 5*time.Second)
				}
			}
		}
	}
	talk()
	time.Sleep(time.Hour) // sleep: nothing happens meanwhile
	for _, n := range l.Nodes() {
		metrics, err := n.Run(t.Context(), "curl", "-fsS", "-m", "2", "http://127.0.0.1:9469/metrics")
		ok(t, err)
		if lost := regexp.MustCompile(`(?m)^edgemesh_path_changes_total\{lost="true".* [1-9].*$`).FindAllString(metrics, -1); len(lost) > 0 {
			t.Errorf("%s has lost paths: %q", n.Name, lost)
		}
		st, err := n.Status(t.Context())
		ok(t, err)
		for _, p := range st.Peers {
			if p.Path != "idle" {
				t.Errorf("%s is still connected to %s: %s", n.Name, p.Node, p.Path)
			}
		}
	}
	talk()
	warnings, err := l.Warnings()
	ok(t, err)
	for _, w := range warnings {
		t.Error(w)
	}
}

// TestIdleAgentSleeps holds what an agent of a large cluster costs whose pods say nothing, with two peers connected behind
// NATs and two relays.
func TestIdleAgentSleeps(t *testing.T) {
	tier.Long(t)
	l := newLab(t)
	relay(t, l, "relay")
	relay(t, l, "relay-2")
	var nodes []*lab.Node
	for i := range 3 {
		nodes = append(nodes, at(t, l, fmt.Sprintf("edge-%d", i+1), lab.EIM))
	}
	absent(t, &l.Cluster, idleMembers-len(nodes))
	startAll(t, l)
	here := pod(t, nodes[0], "here")
	for i, n := range nodes[1:] {
		there := pod(t, n, fmt.Sprintf("there-%d", i+1))
		curl(t, here.NS, there, there.IP4(), here.IP4(), 3*time.Second)
		_, err := nodes[0].WaitPath(within(t, 10*time.Second), n, "punched")
		ok(t, err)
	}
	watched(t, nodes[0], 30*time.Second) // with the end of what the first packets began
	share, wakes := watched(t, nodes[0], 100*time.Second)
	for _, n := range nodes[1:] {
		_, err := nodes[0].WaitPath(within(t, time.Second), n, "punched")
		ok(t, err)
	}
	if share > idleShare {
		t.Errorf("an idle agent takes %.3f %% of a processor, want at most %.3f", 100*share, 100*idleShare)
	}
	if wakes >= idleWakes {
		t.Errorf("an idle agent wakes %.1f times a second, want less than %.0f", wakes, idleWakes)
	}
}
