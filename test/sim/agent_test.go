package sim

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/keyfile"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/membership/snapshot"
	"edgemesh/test/cpu"
	"edgemesh/test/fair"
	"edgemesh/test/tier"
)

// TestAgent starts the real agent from a snapshot, in a network namespace of its own without any link, and weighs it. It
// belongs to `make sim` alone; bin/ has to be there.
func TestAgent(t *testing.T) {
	tier.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	program, err := filepath.Abs("../../bin/edgemesh-agent")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{10, 1_000, 100_000} {
		dir := t.TempDir()
		key, err := keyfile.LoadOrCreate(dir)
		if err != nil {
			t.Fatal(err)
		}
		id, err := peer.IDFromPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		s := Cluster(n, 1)
		s.Nodes[0].PeerID = mesh.PeerID(id.String())
		if err := snapshot.Save(dir, s); err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(dir, "agent.yaml")
		text := fmt.Sprintf("nodeName: %s\nstateDir: %s\nruntimeDir: %s/run\ncniConfDir: %s/net.d\ncniBinDir: %s/bin\ncniDataDir: %s/data\nmembership: {file: %s/none.yaml}\n",
			s.Nodes[0].Name, dir, dir, dir, dir, dir, dir)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		c := exec.CommandContext(ctx, "sh", "-c", "ip link set lo up; exec "+program+" run --config "+config)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
		out, err := os.Create(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		c.Stdout, c.Stderr = out, out
		began := time.Now()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		fair.Eventually(t, time.Minute, "the agent runs", func() error {
			text, err := os.ReadFile(out.Name())
			if err == nil && !bytes.Contains(text, []byte("agent is running")) {
				err = fmt.Errorf("%s", text)
			}
			return err
		})
		took := time.Since(began)
		used := processor(t, c.Process.Pid)
		time.Sleep(30 * time.Second) // sleep: what rest costs
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%7d members: agent runs %.2f s after its start, %s of processor time; 30 s later %s", n, took.Seconds(), ms(used),
			strings.Join(regexp.MustCompile(`(VmHWM|VmRSS|RssAnon|RssFile):\s+\d+ kB`).FindAllString(string(status), -1), ", "))
		stop()
		_ = c.Wait()
	}
}

// processor is the processor time of another process.
func processor(t *testing.T, pid int) time.Duration {
	t.Helper()
	d, err := cpu.Process(pid)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
