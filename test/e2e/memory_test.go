package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgemesh/test/lab"
	"edgemesh/test/tier"
)

const (
	// smallMemory is what the control group of the smallest edges' agent allows, in bytes.
	smallMemory = 64 << 20
	// smallMembers is how many members their cluster has.
	smallMembers = 100
	// smallShare is the least of the throughput without a bound that there must be, beside other load. The aim is 0.9
	// (docs/measurements/memory.md).
	smallShare = 0.5
	// flowsEach is how many TCP flows there are to each peer and from it.
	flowsEach = 4
	// datagramRate is what iperf3 sends to each peer and gets from it beside them.
	datagramRate = "20M"
)

// group is a control group for memory, of either version.
type group struct {
	dir      string
	kind     string // the file system's
	mount    string // where an agent sees the hierarchy
	limit    string // the file with the bound
	kills    string // the file with the number of kills, as "oom_kill N"
	full     string // the file with how often the bound was met
	from     string // the file whose key the latter is; a number alone if empty
	mostUsed string // the file with the highest charge
}

// newGroup makes a group that allows so many bytes. It is removed after all that the test does later.
func newGroup(t *testing.T, most int) group {
	t.Helper()
	g := group{kind: "cgroup -o memory", mount: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", kills: "memory.oom_control",
		full: "memory.failcnt", mostUsed: "memory.max_usage_in_bytes"}
	root := g.mount
	if _, err := os.Stat(filepath.Join(root, g.limit)); errors.Is(err, fs.ErrNotExist) {
		root = "/sys/fs/cgroup"
		g = group{kind: "cgroup2", mount: root, limit: "memory.max", kills: "memory.events", full: "memory.events", from: "max", mostUsed: "memory.peak"}
		if b, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); err != nil || !bytes.Contains(b, []byte("memory")) {
			t.Skipf("SKIPPED: no control groups for memory: %q, %v", b, err)
		}
	}
	g.dir = filepath.Join(root, fmt.Sprintf("edgemesh-e2e-%d", os.Getpid()))
	ok(t, os.Mkdir(g.dir, 0o755))
	t.Cleanup(func() { ok(t, os.Remove(g.dir)) })
	ok(t, os.WriteFile(filepath.Join(g.dir, g.limit), []byte(strconv.Itoa(most)), 0))
	return g
}

// onDisk is a directory for all users whose files are on a disk: those of a tmpfs stay in memory, where the group would not
// be charged for them.
func onDisk(t *testing.T) string {
	t.Helper()
	for _, parent := range []string{os.TempDir(), "/var/tmp"} {
		var system unix.Statfs_t
		ok(t, unix.Statfs(parent, &system))
		if system.Type == unix.TMPFS_MAGIC || system.Type == unix.RAMFS_MAGIC {
			t.Logf("%s is in memory", parent)
			continue
		}
		dir, err := os.MkdirTemp(parent, "small-memory")
		ok(t, err)
		t.Cleanup(func() { ok(t, os.RemoveAll(dir)) })
		ok(t, os.Chmod(dir, 0o755)) //nolint:gosec // programs for all users
		return dir
	}
	t.Skip("SKIPPED: no directory for temporary files is on a disk")
	return ""
}

// program writes an edgemesh-agent into dir that becomes the real one inside the group. It is a copy that is on the disk, if
// dir is, and dropped from memory, so that the group is charged for what the agent reads of it, as in a container. What `ip
// netns exec` shows of /sys has no groups.
func (g group) program(t *testing.T, dir, real string) {
	t.Helper()
	ok(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	for _, name := range []string{"edgemesh-agent", "edgemesh-cni"} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(real), name))
		ok(t, err)
		f, err := os.OpenFile(filepath.Join(dir, "real", name), os.O_CREATE|os.O_WRONLY, 0o755)
		ok(t, err)
		_, err = f.Write(b)
		ok(t, errors.Join(err, f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()))
	}
	script := fmt.Sprintf(`#!/bin/sh -e
[ "$1" = run ] || exec %[5]s "$@"
mount -t tmpfs none /sys/fs/cgroup
mkdir -p %[1]s
mount -t %[2]s none %[1]s
echo $$ > %[1]s/%[3]s/cgroup.procs
exec %[4]s/real/edgemesh-agent "$@"
`, g.mount, g.kind, filepath.Base(g.dir), dir, real)
	ok(t, os.WriteFile(filepath.Join(dir, "edgemesh-agent"), []byte(script), 0o755)) //nolint:gosec // a program
}

// value is a number in one of the group's files: the only one, or that after a key.
func (g group) value(t *testing.T, file, key string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(g.dir, file))
	if errors.Is(err, fs.ErrNotExist) { // memory.peak is of Linux 5.19
		return 0
	}
	ok(t, err)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 1 && key == "" || len(f) == 2 && f[0] == key {
			n, err := strconv.Atoi(f[len(f)-1])
			ok(t, err)
			return n
		}
	}
	t.Fatalf("no %q in %s: %s", key, file, b)
	return 0
}

// TestSmallMemory saturates an agent of a cluster with 100 members in both directions, by many flows and datagrams, with the memory
// that the smallest edges have for it, and without a bound. The kernel does not end it, and it is as fast.
func TestSmallMemory(t *testing.T) {
	tier.Long(t)
	g := newGroup(t, smallMemory)
	l := newLab(t)
	relay(t, l, "relay")
	small := at(t, l, "small", lab.EIM)
	var others []*lab.Node
	for i := range 3 {
		others = append(others, at(t, l, fmt.Sprintf("edge-%d", i+1), lab.EIM))
	}
	absent(t, &l.Cluster, smallMembers-1-len(others))
	confined := onDisk(t)
	g.program(t, confined, small.AgentPath())
	startAll(t, l)
	s := saturation{small: small, here: pod(t, small, "here"), others: others}
	for i, n := range others {
		s.there = append(s.there, pod(t, n, fmt.Sprintf("there-%d", i+1)))
	}
	got := map[string]*[2][]float64{"": {}, confined: {}} // Mbit/s, and MB by second of the agent's processor time
	order := []string{"", confined}
	for round := range 5 {
		slices.Reverse(order) // other load that rises or falls meanwhile hits both
		for _, programs := range order {
			ok(t, small.Agent.Stop())
			small.Programs = programs
			ok(t, small.Start())
			ready(t, small)
			rest(t, small.Agent)
			mbps, each := s.run(t, 10*time.Second)
			got[programs][0], got[programs][1] = append(got[programs][0], mbps), append(got[programs][1], each)
			said := fmt.Sprintf("round %d: %.0f Mbit/s, %.0f MB by second of processor time, RSS %.1f MB at most", round+1, mbps, each,
				float64(peak(t, small.Agent))*1024/1e6)
			if programs != "" {
				said += fmt.Sprintf("; in a group of %d MiB, %.1f MiB used at most, bound met %d times", smallMemory>>20,
					float64(g.value(t, g.mostUsed, ""))/(1<<20), g.value(t, g.full, g.from))
			}
			t.Log(said)
			if !small.Agent.Running() {
				t.Fatal("the agent ended")
			}
		}
	}
	if n := g.value(t, g.kills, "oom_kill"); n > 0 {
		t.Errorf("the kernel ended %d processes of the group", n)
	}
	for i, what := range []string{"throughput", "throughput by processor time"} {
		with, without := median(got[confined][i]), median(got[""][i])
		t.Logf("%s: %.0f of %.0f: %.2f", what, with, without, with/without)
		if with/without < smallShare {
			t.Errorf("in %d MiB there is %.2f of the %s, want %.2f", smallMemory>>20, with/without, what, smallShare)
		}
	}
	ok(t, small.Agent.Stop())
}

// saturation is what saturates an agent.
type saturation struct {
	small  *lab.Node
	here   *lab.Pod
	others []*lab.Node
	there  []*lab.Pod
}

// run saturates the agent for d and returns the sum of what all TCP flows carried, in Mbit/s by a fair clock, and how many
// MB that is for each second of the agent's processor time.
func (s saturation) run(t *testing.T, d time.Duration) (mbps, each float64) {
	t.Helper()
	for i, n := range s.others {
		curlPods(t, s.here, s.there[i], 10*time.Second)
		_, err := s.small.WaitPath(within(t, 30*time.Second), n, "punched")
		ok(t, err)
	}
	ctx := within(t, d+60*time.Second)
	clock := product(t).Start()
	defer clock.Stop()
	before := usedBy(t, s.small.Agent.PID()).cpu
	var bytes int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, far := range s.there {
		for _, ends := range [][2]*lab.Pod{{s.here, far}, {far, s.here}} {
			for range flowsEach {
				wg.Go(func() {
					var b lab.Bulk
					if err := ends[0].Tool(ctx, &b, "bulk", "--duration", d.String(), ends[1].IP4().String()); err != nil || !b.Match {
						t.Errorf("%s to %s: %+v: %v", ends[0].Name, ends[1].Name, b, err)
					}
					end := time.Now()
					fair := clock.Between(end.Add(-time.Duration(b.Seconds*float64(time.Second))), end)
					mu.Lock()
					defer mu.Unlock()
					bytes += b.Bytes
					mbps += float64(b.Bytes) * 8 / 1e6 / fair.Seconds()
				})
			}
		}
		server, err := far.Start(fmt.Sprintf("iperf3-%d", i), "iperf3", "-s", "-1")
		ok(t, err)
		ok(t, lab.Until(within(t, 10*time.Second), 20*time.Millisecond, func() error {
			out, err := far.Run(t.Context(), "ss", "-Hltn", "sport = :5201")
			if err == nil && out == "" {
				err = errors.New("iperf3 does not listen yet")
			}
			return err
		}))
		wg.Go(func() {
			var r struct {
				Error string `json:"error"`
			}
			out, err := s.here.Run(ctx, "iperf3", "-J", "-u", "--bidir", "-b", datagramRate, "-l", "1200", "-t", strconv.Itoa(int(d.Seconds())), "-c", far.IP4().String())
			if json.Unmarshal([]byte(out), &r) != nil || err != nil || r.Error != "" {
				t.Errorf("datagrams to %s: %v, %s", far.Name, err, r.Error)
			}
			_ = server.Stop()
		})
	}
	wg.Wait()
	return mbps, float64(bytes) / 1e6 / (usedBy(t, s.small.Agent.PID()).cpu - before).Seconds()
}
