package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// Silence has a site's router drop what it should forward, without a word, or forward it again.
func (c *Cluster) Silence(ctx context.Context, site string, on bool) error {
	op := "undrop"
	if on {
		op = "drop"
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
	cmd, err := c.Command(ctx, node, args...)
	if err != nil {
		return "", err
	}
	return output(ctx, cmd)
}

// Command is On, not started.
func (c *Cluster) Command(ctx context.Context, node string, args ...string) (*exec.Cmd, error) {
	pid, err := os.ReadFile(filepath.Join(c.Dir, "nodes", node, "init.pid"))
	if err != nil {
		return nil, fmt.Errorf("%s is not running: %w", node, err)
	}
	into := []string{"-t", strings.TrimSpace(string(pid)), "-m", "-u", "-i", "-n", "-p", "-C", "--",
		"env", "PATH=" + c.bin + ":" + c.edge + ":/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return exec.CommandContext(ctx, "nsenter", append(into, args...)...), nil
}

// InRelay returns a command in the relay's network namespace, not started.
func (c *Cluster) InRelay(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", c.Tag + "-relay"}, args...)...)
}

// InRouter runs a command in the network namespace of a site's router.
func (c *Cluster) InRouter(ctx context.Context, site string, args ...string) (string, error) {
	return output(ctx, exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", c.Tag + "-r" + site}, args...)...))
}

// Wire connects two nodes by a cable of their own; Unwire pulls it out.
func (c *Cluster) Wire(ctx context.Context, a, b string) error {
	for _, args := range [][]string{
		{"-n", c.Tag + "-" + a, "link", "add", cable, "type", "veth", "peer", "name", cable, "netns", c.Tag + "-" + b},
		{"-n", c.Tag + "-" + a, "address", "add", "10.99.0.1/24", "dev", cable},
		{"-n", c.Tag + "-" + b, "address", "add", "10.99.0.2/24", "dev", cable},
		{"-n", c.Tag + "-" + a, "link", "set", cable, "up"},
		{"-n", c.Tag + "-" + b, "link", "set", cable, "up"},
	} {
		if _, err := output(ctx, exec.CommandContext(ctx, "ip", args...)); err != nil {
			return fmt.Errorf("cable between %s and %s: %w", a, b, err)
		}
	}
	return nil
}

// Unwire removes the cable of a node.
func (c *Cluster) Unwire(ctx context.Context, node string) error {
	_, err := output(ctx, exec.CommandContext(ctx, "ip", "-n", c.Tag+"-"+node, "link", "delete", cable))
	return err
}

// cable is the interface of Wire.
const cable = "eth1"

// container finds the running container of a pod or of a name, without the API
// server's help: its PID in the node's PID namespace. The label is one that kubelet sets.
func (c *Cluster) container(ctx context.Context, node, label, value string) (string, error) {
	filter := fmt.Sprintf(`labels."io.cri-containerd.kind"==container,labels.%q==%q`, label, value)
	out, err := c.On(ctx, node, "sh", "-c",
		`ctr -n k8s.io containers ls -q "$1" && echo -- && ctr -n k8s.io tasks ls`, "sh", filter)
	if err != nil {
		return "", err
	}
	ids, tasks, _ := strings.Cut(out, "--\n")
	for line := range strings.Lines(tasks) {
		f := strings.Fields(line) // ID, PID, state
		if len(f) == 3 && f[2] == "RUNNING" && slices.Contains(strings.Fields(ids), f[0]) {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("%s on %s: %w", value, node, ErrNotRunning)
}

const (
	podLabel       = "io.kubernetes.pod.name"
	containerLabel = "io.kubernetes.container.name"
)

// Exec runs podtool inside a pod's running container, as `kubectl exec` does, but
// without API server and kubelet.
func (c *Cluster) Exec(ctx context.Context, node, pod string, args ...string) (string, error) {
	pid, err := c.container(ctx, node, podLabel, pod)
	if err != nil {
		return "", err
	}
	return c.On(ctx, node, append([]string{"nsenter", "-t", pid, "-m", "-n", "-u", "-i", "--", "/podtool"}, args...)...)
}

// Import imports one of the images that are not there from the start: edgemesh-relay,
// or edgemesh-agent-next, which is another version.
func (c *Cluster) Import(ctx context.Context, node, image string) error {
	_, err := c.On(ctx, node, "ctr", "-n", "k8s.io", "images", "import", filepath.Join(c.Dir, "later", image+".tar"))
	return err
}

// KillAgent kills the agent in its container, as a crash would; kubelet starts it again.
func (c *Cluster) KillAgent(ctx context.Context, node string) error {
	pid, err := c.container(ctx, node, containerLabel, "agent")
	if err != nil {
		return err
	}
	_, err = c.On(ctx, node, "kill", "-9", pid)
	return err
}
