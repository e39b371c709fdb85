package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNotRunning means that a pod has no running container of the test image.
var ErrNotRunning = errors.New("no running container")

// Start switches a node on.
func (c *Cluster) Start(ctx context.Context, node string) error {
	return c.quiet(ctx, "node.sh", "start", node)
}

// Cut takes a node's power away: what is not on its disk is gone.
func (c *Cluster) Cut(ctx context.Context, node string) error {
	return c.quiet(ctx, "node.sh", "cut", node)
}

// WAN plugs a site's uplink in or pulls it out.
func (c *Cluster) WAN(ctx context.Context, site string, up bool) error {
	op := "wan-down"
	if up {
		op = "wan-up"
	}
	return c.quiet(ctx, "net.sh", op, site)
}

// Service stops, starts or restarts a service of a node: op is stop, start or restart.
func (c *Cluster) Service(ctx context.Context, op, node, service string) error {
	return c.quiet(ctx, "node.sh", op+"-service", node, service)
}

// Setting changes a file that services read when they start: proxy-mode, kcm-flags.
func (c *Cluster) Setting(name, value string) error {
	return os.WriteFile(filepath.Join(c.Dir, name), []byte(value+"\n"), 0o644)
}

// On runs a command on a node, in all its namespaces, and returns its output.
func (c *Cluster) On(ctx context.Context, node string, args ...string) (string, error) {
	cmd, err := c.command(ctx, node, args...)
	if err != nil {
		return "", err
	}
	return output(ctx, cmd)
}

func (c *Cluster) command(ctx context.Context, node string, args ...string) (*exec.Cmd, error) {
	pid, err := os.ReadFile(filepath.Join(c.Dir, "nodes", node, "init.pid"))
	if err != nil {
		return nil, fmt.Errorf("%s is not running: %w", node, err)
	}
	into := []string{"-t", strings.TrimSpace(string(pid)), "-m", "-u", "-i", "-n", "-p", "-C", "--",
		"env", "PATH=" + c.bin + ":/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return exec.CommandContext(ctx, "nsenter", append(into, args...)...), nil
}

// InRelay returns a command in the relay's network namespace, not started.
func (c *Cluster) InRelay(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", c.Tag + "-relay"}, args...)...)
}

// task is a running container on a node.
type task struct {
	id  string
	pid int // in the node's PID namespace
}

// task finds the running container of a pod without the API server's help.
func (c *Cluster) task(ctx context.Context, node, pod string) (task, error) {
	ids, err := c.On(ctx, node, "ctr", "-n", "k8s.io", "containers", "ls", "-q",
		fmt.Sprintf(`labels."io.kubernetes.pod.name"==%q`, pod))
	if err != nil {
		return task{}, err
	}
	workers, err := c.On(ctx, node, "ctr", "-n", "k8s.io", "containers", "ls", "-q", `labels."io.cri-containerd.kind"==container`)
	if err != nil {
		return task{}, err
	}
	tasks, err := c.On(ctx, node, "ctr", "-n", "k8s.io", "tasks", "ls")
	if err != nil {
		return task{}, err
	}
	for line := range strings.Lines(tasks) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "RUNNING" || !hasLine(ids, f[0]) || !hasLine(workers, f[0]) {
			continue
		}
		pid, err := strconv.Atoi(f[1])
		return task{f[0], pid}, err
	}
	return task{}, fmt.Errorf("%s on %s: %w", pod, node, ErrNotRunning)
}

func hasLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}

// Exec runs podtool in the running container of a pod, as `kubectl exec` does, but
// without API server and kubelet.
func (c *Cluster) Exec(ctx context.Context, node, pod string, args ...string) (string, error) {
	t, err := c.task(ctx, node, pod)
	if err != nil {
		return "", err
	}
	return c.On(ctx, node, append([]string{"ctr", "-n", "k8s.io", "tasks", "exec", "--exec-id", "x" + rand.Text()[:12], t.id, "/podtool"}, args...)...)
}

// KillAgent kills the agent in its container, as a crash would; kubelet starts it anew.
func (c *Cluster) KillAgent(ctx context.Context, node string) error {
	ids, err := c.On(ctx, node, "ctr", "-n", "k8s.io", "containers", "ls", "-q",
		`labels."io.kubernetes.container.name"==agent`)
	if err != nil {
		return err
	}
	tasks, err := c.On(ctx, node, "ctr", "-n", "k8s.io", "tasks", "ls")
	if err != nil {
		return err
	}
	for line := range strings.Lines(tasks) {
		f := strings.Fields(line)
		if len(f) >= 3 && f[2] == "RUNNING" && hasLine(ids, f[0]) {
			_, err := c.On(ctx, node, "kill", "-9", f[1])
			return err
		}
	}
	return fmt.Errorf("the agent's pod on %s: %w", node, ErrNotRunning)
}
