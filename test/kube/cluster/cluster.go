package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"edgemesh/test/lab"
	"edgemesh/test/repo"
)

// FirstNodes are the nodes of a new cluster; SecondCloud and edge-a2 can be started later.
func FirstNodes() []string { return []string{"cloud", "edge-a1", "edge-b1", "edge-b2"} }

// SecondCloud is another machine with a public address, SecondCloudIP, and no part of the control plane.
const SecondCloud, SecondCloudIP = "cloud-2", "5.5.5.11"

// RelayIP is where a relay listens, in its own namespace.
const RelayIP = "5.5.5.20"

// APIServer is where nodes reach the API server.
const APIServer, APIPort = "5.5.5.10", "6443"

// Cluster is one cluster. Its methods may be called concurrently, those that switch
// power and services not for the same node.
type Cluster struct {
	Tag        string
	Dir        string // everything of it
	Logs       string // where the logs go when it ends
	Kubeconfig string // admin's, through this machine's 127.0.0.1

	api      *API
	root     string // of the repository
	bin      string // directory of the Kubernetes programs
	flavour  string // Options.Flavour
	families string // Options.Families
	edge     string // directory of its programs
	port     string // of the API server on this machine
	watcher  *exec.Cmd
	watched  io.WriteCloser
}

// Options are what kinds of clusters differ in.
type Options struct {
	// kubeedge: edges run edgecore, and the cloud node cloudcore; openyurt: edges run YurtHub beside kubelet;
	// flannel: all nodes are on the WAN, and Flannel's images are there; or none of them
	Flavour string
	// ipv4; or ipv4,ipv6 or ipv6,ipv4: pods and Services have both, the first of a Service is the first one
	Families string
}

// DualStack says that pods and Services have two families.
func (c *Cluster) DualStack() bool { return strings.Contains(c.families, ",") }

// OfFamilies returns what the cluster's families have, in their order.
func (c *Cluster) OfFamilies(ipv4, ipv6 string) (out []string) {
	for f := range strings.SplitSeq(c.families, ",") {
		out = append(out, map[string]string{"ipv4": ipv4, "ipv6": ipv6}[f])
	}
	return out
}

// ServiceCIDR6 is the IPv6 range of Services of a cluster with both families.
const ServiceCIDR6 = "fd00:96::/112"

// PodCIDRs are the ranges of its pods.
func (c *Cluster) PodCIDRs() []string { return c.OfFamilies("10.244.0.0/16", "fd00:244::/56") }

// IsPodAddress says that an address is in them.
func (c *Cluster) IsPodAddress(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(c.PodCIDRs(), func(p string) bool { return netip.MustParsePrefix(p).Contains(a) })
}

// Up builds what is missing and brings a cluster up until all first nodes are
// registered, NotReady. Progress goes to out. The caller closes it.
func Up(ctx context.Context, out io.Writer, o Options) (_ *Cluster, err error) {
	if os.Geteuid() != 0 {
		return nil, lab.ErrNotRoot
	}
	root, err := repo.Root()
	if err != nil {
		return nil, err
	}
	tag := "ek" + strings.ToLower(rand.Text()[:6])
	c := &Cluster{
		Tag:  tag,
		Dir:  filepath.Join("/tmp", tag),
		root: root,
		Logs: filepath.Join(root, "dist", "kube-logs", tag),
	}
	if err := os.Mkdir(c.Dir, 0o755); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.startWatcher(); err != nil {
		return c, err
	}
	c.flavour, c.families = o.Flavour, cmp.Or(o.Families, "ipv4")
	build := exec.CommandContext(ctx, filepath.Join(root, "test", "kube", "build.sh"), c.Dir)
	build.Env, build.Stderr = c.env(), out
	bin, err := build.Output()
	if err != nil {
		return c, fmt.Errorf("build: %w", err)
	}
	c.bin = strings.TrimSpace(string(bin))
	if c.flavour != "" && c.flavour != "flannel" { // whose images build.sh has made
		build := exec.CommandContext(ctx, filepath.Join(root, "test", c.flavour, "build.sh"))
		build.Stderr = out
		edge, err := build.Output()
		if err != nil {
			return c, fmt.Errorf("build %s: %w", c.flavour, err)
		}
		c.edge = strings.TrimSpace(string(edge))
	}
	if c.port, err = freePort(); err != nil {
		return c, err
	}
	if err := c.script(ctx, out, "up.sh"); err != nil {
		return c, err
	}
	return c, c.connect()
}

// Attach finds a cluster that was kept.
func Attach(dir string) (*Cluster, error) {
	root, err := repo.Root()
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Tag:  filepath.Base(dir),
		Dir:  dir,
		root: root,
		Logs: filepath.Join(root, "dist", "kube-logs", filepath.Base(dir)),
	}
	kept, err := os.ReadFile(filepath.Join(dir, "kept"))
	if err != nil {
		return nil, fmt.Errorf("no kept cluster: %w", err)
	}
	if _, err := fmt.Sscan(string(kept), &c.bin, &c.port); err != nil {
		return nil, fmt.Errorf("kept cluster: %w", err)
	}
	families, err := os.ReadFile(filepath.Join(dir, "families"))
	if err != nil {
		return nil, fmt.Errorf("kept cluster: %w", err)
	}
	c.families = strings.TrimSpace(string(families))
	_, _ = fmt.Sscan(string(kept), &c.bin, &c.port, &c.flavour, &c.edge) // the last two only with a flavour
	return c, c.connect()
}

func (c *Cluster) connect() (err error) {
	c.Kubeconfig = filepath.Join(c.Dir, "kubeconfig")
	c.api, err = NewAPI(c.Kubeconfig)
	return err
}

// freePort returns a TCP port of 127.0.0.1 that was free just now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func (c *Cluster) startWatcher() error {
	w := exec.Command(filepath.Join(c.root, "test/kube/cluster/watch.sh"))
	w.Env = c.env()
	w.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives a Ctrl-C
	in, err := w.StdinPipe()
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	if err := w.Start(); err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	c.watcher, c.watched = w, in
	return nil
}

func (c *Cluster) env() []string {
	return append(os.Environ(), "RUN="+c.Dir, "BIN="+c.bin, "FLAVOUR="+c.flavour, "FAMILIES="+c.families, "EDGEBIN="+c.edge, "LOCAL_PORT="+c.port, "LOGS="+c.Logs)
}

// script runs one of the scripts.
func (c *Cluster) script(ctx context.Context, out io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.root, "test/kube/cluster", name), args...)
	cmd.Env = c.env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for the watcher to handle
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// quiet is script, with what it printed in the error only.
func (c *Cluster) quiet(ctx context.Context, name string, args ...string) error {
	var out bytes.Buffer
	if err := c.script(ctx, &out, name, args...); err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}

// Close removes the cluster and keeps its logs.
func (c *Cluster) Close() error {
	err := c.quiet(context.Background(), "down.sh")
	if c.watched != nil {
		_ = c.watched.Close()
		_ = c.watcher.Wait() // finds nothing left to do
	}
	return err
}

// Keep lets the cluster outlive this process; down.sh removes it. It returns what
// to type to play with it.
func (c *Cluster) Keep() (string, error) {
	if err := os.WriteFile(filepath.Join(c.Dir, "kept"), []byte(c.bin+" "+c.port+" "+c.flavour+" "+c.edge+"\n"), 0o644); err != nil {
		return "", err
	}
	if c.watched != nil {
		if _, err := io.WriteString(c.watched, "keep\n"); err != nil {
			return "", fmt.Errorf("keep: %w", err)
		}
		_ = c.watcher.Wait()
	}
	scripts := filepath.Join(c.root, "test/kube/cluster")
	return fmt.Sprintf(`
  export PATH=%[1]s:$PATH KUBECONFIG=%[2]s RUN=%[3]s BIN=%[1]s
  kubectl get nodes,meshnodes,pods -A -o wide
  kubectl -n kube-system exec POD -- edgemesh-agent status
  %[4]s/node.sh exec edge-b1 bash                       # a shell on a node
  %[4]s/net.sh wan-down b; %[4]s/node.sh reboot edge-b1; %[4]s/net.sh wan-up b
  EDGEMESH_KUBE_ATTACH=%[3]s EDGEMESH_TIER=long go test -v -run TestScene ./test/kube
  %[4]s/down.sh                                        # remove it
`, c.bin, c.Kubeconfig, c.Dir, scripts), nil
}

// Tool is the path of podtool for commands on nodes.
func (c *Cluster) Tool() string { return filepath.Join(c.Dir, "build", "podtool") }

// Program is the path of one of the Kubernetes programs.
func (c *Cluster) Program(name string) string { return filepath.Join(c.bin, name) }

// Kubectl runs kubectl as the cluster's admin.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlIn(ctx, "", args...)
}

// KubectlIn is Kubectl with a standard input.
func (c *Cluster) KubectlIn(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), append([]string{
		"--kubeconfig", c.Kubeconfig,
	}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir) // the discovery cache is the cluster's
	cmd.Stdin = strings.NewReader(stdin)
	return output(ctx, cmd)
}

// AdminCommand returns a program of the installation guide, not started, that finds
// kubectl and the cluster.
func (c *Cluster) AdminCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir, "KUBECONFIG="+c.Kubeconfig, "PATH="+filepath.Join(c.Dir, "admin")+":"+c.bin+":"+os.Getenv("PATH"))
	return cmd
}

// Minor is the API server's minor version, as the N of Kubernetes 1.N.
func (c *Cluster) Minor(ctx context.Context) (n int, err error) {
	var v struct{ Minor string }
	if err := c.api.Get(ctx, "/version", &v); err != nil {
		return 0, err
	}
	return strconv.Atoi(v.Minor)
}

// API returns access to the objects of the cluster.
func (c *Cluster) API() *API { return c.api }

// output runs cmd and returns its standard output; an error has what it wrote to
// standard error.
func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err != nil {
		args := strings.Join(cmd.Args[1:], " ")
		err = fmt.Errorf("%s %s: %w: %s%s", filepath.Base(cmd.Path), args, errors.Join(err, ctx.Err()),
			out.String(), errOut.String())
	}
	return out.String(), err
}
