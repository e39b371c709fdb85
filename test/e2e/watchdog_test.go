package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/repo"
	"edgemesh/test/tier"
)

// supervised is a pair whose first agent runs under a supervisor that speaks sd_notify (test/cmd/watched).
type supervised struct {
	*pair
	near     *lab.Pod
	programs string
}

func newSupervised(t *testing.T) *supervised {
	t.Helper()
	p := &supervised{pair: newPair(t, lab.EIM, "")}
	p.near = pod(t, p.n1, "near")
	root, err := repo.Root()
	ok(t, err)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "edgemesh-agent"), "./test/cmd/watched")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build test/cmd/watched: %v\n%s", err, out)
	}
	for _, name := range []string{"edgemesh-cni"} { // beside the agent, which installs it
		ok(t, os.Symlink(filepath.Join(root, "bin", name), filepath.Join(dir, name)))
	}
	ok(t, p.n1.Agent.Stop())
	p.programs = dir
	p.start(t)
	ok(t, p.traffic(within(t, 15*time.Second)))
	p.saw(t, "heard READY=1 STATUS=running", 1)
	return p
}

// start starts the first agent under its supervisor; status is the usual one's.
func (p *supervised) start(t *testing.T) {
	t.Helper()
	p.n1.Programs = p.programs
	ok(t, p.n1.Start())
	p.n1.Programs = ""
}

// traffic waits until a pod reaches another node's.
func (p *supervised) traffic(ctx context.Context) error {
	return lab.Until(ctx, 50*time.Millisecond, func() error {
		return tryCurl(ctx, p.pod1.NS, p.pod2, p.pod2.IP4(), p.pod1.IP4(), 500*time.Millisecond)
	})
}

// log is what supervisor and agent have written.
func (p *supervised) log(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(p.n1.Agent.Log)
	ok(t, err)
	return string(b)
}

// saw checks how often something is in the log.
func (p *supervised) saw(t *testing.T, text string, times int) {
	t.Helper()
	if n := strings.Count(p.log(t), text); n != times {
		t.Errorf("%q is in the log %d times, want %d", text, n, times)
	}
}

// pid is the agent's process.
func (p *supervised) pid(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.n1.Dir, "pid"))
	ok(t, err)
	pid, err := strconv.Atoi(string(b))
	ok(t, err)
	return pid
}

// finding waits for a finding hung-loop about a loop.
func (p *supervised) finding(ctx context.Context, severity, loop string) error {
	return lab.Until(ctx, 200*time.Millisecond, func() error {
		s, err := p.n1.Status(ctx)
		if err != nil {
			return err
		}
		for _, f := range s.Findings {
			if f.Check == "hung-loop" && f.Severity == severity && strings.Contains(f.Detail, loop) {
				return nil
			}
		}
		return fmt.Errorf("no %s finding hung-loop about %s: %+v", severity, loop, s.Problems)
	})
}

// blocked is when the supervised agent said that a loop is blocked.
func (p *supervised) blocked(t *testing.T, loop string) time.Time {
	t.Helper()
	before, _, _ := strings.Cut(p.log(t), " watched: "+loop+" is blocked")
	now := time.Now()
	at, err := time.ParseInLocation("15:04:05.000", before[strings.LastIndexByte(before, '\n')+1:], time.Local)
	ok(t, err)
	return time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), time.Local)
}

const (
	named = 35 * time.Second // after a loop hangs
	back  = 45 * time.Second
)

// TestHungLoop: a loop that hangs is named in time, and the agent restarts itself; pods of the node reach each other meanwhile.
// No more than three a lab: the agent does not restart itself more often in an hour.
func TestHungLoop(t *testing.T) {
	tier.Long(t)
	beside(t)
	p := newSupervised(t)
	p.hangs(t, "TUN reader", p.talk)
	p.hangs(t, "kernel repair", p.talk) // works every 30 s
	p.hangs(t, "membership", func() {
		p.lab.Cluster.Nodes = append(p.lab.Cluster.Nodes, lab.Member{Name: "late", PeerID: freshID(t, p.n2), PodCIDRs: []string{"10.244.77.0/24"}})
		ok(t, p.lab.WriteMembership())
		time.Sleep(3 * time.Second) // sleep: the file is read
	})
}

// TestHungCall: so are a call to the control socket that hangs, while others come and go, and the writer of a lane.
func TestHungCall(t *testing.T) {
	tier.Long(t)
	beside(t)
	p := newSupervised(t)
	newLiveMap(t, p.n1) // fetches each second
	p.hangs(t, "control socket: doctor", func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, _ = p.n1.AgentCommand(ctx, "doctor", "--runtime-dir", p.n1.Config.RuntimeDir)
	})
	p.hangs(t, "writer of the stream lane", p.talk)
	p.hangs(t, "tunnel", func() { time.Sleep(time.Second) }) // sleep: a lock of it is not given back
}

// talk has pods send packets for a moment.
func (p *supervised) talk() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.traffic(ctx)
}

// hangs blocks the loop, and works until it is.
func (p *supervised) hangs(t *testing.T, loop string, work func()) {
	t.Run(loop, func(t *testing.T) {
		runs := strings.Count(p.log(t), ": pid ")
		ok(t, os.WriteFile(filepath.Join(p.n1.Dir, "hang"), []byte(loop), 0o600))
		for wait := within(t, 40*time.Second); !strings.Contains(p.log(t), loop+" is blocked"); {
			work()
			ok(t, wait.Err())
		}
		hangs := p.blocked(t, loop)
		ok(t, p.finding(within(t, named-time.Since(hangs)), "broken", loop))
		t.Logf("named after %.1f s", time.Since(hangs).Seconds())
		curlPods(t, p.pod1, p.near, time.Second)
		await(t, back-time.Since(hangs), "it starts again", func() bool { return strings.Count(p.log(t), ": pid ") > runs })
		if err := p.traffic(within(t, back-time.Since(hangs))); err != nil {
			t.Errorf("%v after it hung: %v", time.Since(hangs), err)
		}
		t.Logf("traffic back after %.1f s", time.Since(hangs).Seconds())
		ok(t, p.finding(within(t, 5*time.Second), "note", loop))
		p.saw(t, "created by edgemesh/internal/watchdog.(*Watchdog).act in goroutine", runs) // in the stacks
	})
}

// TestStoppedAgent: the service manager restarts an agent that is stopped altogether. A machine that is suspended, and comes
// back, restarts nothing.
func TestStoppedAgent(t *testing.T) {
	tier.Long(t)
	p := newSupervised(t)
	both := []int{p.n1.Agent.PID(), p.pid(t)}
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		for _, pid := range both {
			ok(t, syscall.Kill(pid, sig))
		}
		time.Sleep(time.Minute) // sleep: asleep, then awake
	}
	ok(t, p.traffic(within(t, 10*time.Second)))
	p.saw(t, ": pid ", 1)
	p.saw(t, "loops hang", 0)

	ok(t, syscall.Kill(p.pid(t), syscall.SIGSTOP))
	stops := time.Now()
	curlPods(t, p.pod1, p.near, time.Second)
	await(t, back, "it starts again", func() bool { return strings.Count(p.log(t), ": pid ") >= 2 })
	if err := p.traffic(within(t, back-time.Since(stops))); err != nil {
		t.Errorf("%v after it stopped: %v", time.Since(stops), err)
	}
	t.Logf("traffic back after %.1f s", time.Since(stops).Seconds())
}

// TestFrozenDisk: a disk that takes nothing for longer than a loop may hang restarts nothing, although the membership waits for
// it; packets do not.
func TestFrozenDisk(t *testing.T) {
	tier.Long(t)
	p := newSupervised(t)
	ok(t, p.n1.Agent.Stop())
	frozen := diskAt(t, p.n1.Config.StateDir)
	p.start(t)
	ok(t, p.traffic(within(t, 15*time.Second)))
	const changed = `msg="membership changed"`
	runs, before := strings.Count(p.log(t), ": pid "), strings.Count(p.log(t), changed)
	frozen(true)
	p.lab.Cluster.Nodes = append(p.lab.Cluster.Nodes, lab.Member{Name: "late", PeerID: freshID(t, p.n2), PodCIDRs: []string{"10.244.77.0/24"}})
	ok(t, p.lab.WriteMembership())
	time.Sleep(time.Minute) // sleep: it waits for the disk
	ok(t, p.traffic(within(t, 2*time.Second)))
	p.saw(t, changed, before) // it waits for the disk
	p.saw(t, ": pid ", runs)
	frozen(false)
	await(t, 10*time.Second, "the membership is read", func() bool { return strings.Count(p.log(t), changed) > before })
	p.saw(t, "loops hang", 0)
}

// freshID is a new peer ID.
func freshID(t *testing.T, n *lab.Node) string {
	t.Helper()
	out, _, err := n.AgentCommand(t.Context(), "id", "--state-dir", t.TempDir())
	ok(t, err)
	return strings.TrimSpace(out)
}

// diskAt puts a disk of its own under dir, with what is there, and returns what freezes and thaws it.
func diskAt(t *testing.T, dir string) (frozen func(bool)) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	script := func(text string) error {
		out, err := exec.Command("bash", "-euc", text, "bash", image, dir).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	if err := script(`truncate -s 16M "$1"; mkfs.ext4 -q "$1"; mkdir "$1.mnt"; mount -o loop "$1" "$1.mnt"; cp -a "$2/." "$1.mnt"; mount --move "$1.mnt" "$2" || { mount --bind "$1.mnt" "$2"; umount "$1.mnt"; }`); err != nil {
		t.Skipf("NOT RUN: this host mounts no disk: %v", err)
	}
	t.Cleanup(func() { ok(t, script(`fsfreeze -u "$2" 2> /dev/null || true; umount -l "$2"`)) })
	return func(now bool) {
		t.Helper()
		ok(t, script(map[bool]string{true: `fsfreeze -f "$2"`, false: `fsfreeze -u "$2"`}[now]))
	}
}
