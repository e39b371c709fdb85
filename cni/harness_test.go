package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"edgemesh/internal/cni/nstest"
	"edgemesh/internal/cni/podlink"
	"edgemesh/test/fair"
)

// binDir holds the plugin as users get it.
var binDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("SKIP: the plugin's tests need root: they make network namespaces")
		return 0
	}
	var err error
	if binDir, err = os.MkdirTemp("", "edgemesh-cni-test-"); err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(binDir)
	if err := build(filepath.Join(binDir, "edgemesh-cni"), "."); err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

func build(out string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", out}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", strings.Join(args, " "), err, b)
	}
	return nil
}

// node is a machine: a network namespace for the host, and directories.
type node struct {
	t       testing.TB
	netns   ns.NetNS
	run     string // runtimeDir
	data    string // dataDir
	plugin  string // path of the binary
	version string // cniVersion of calls
	conf    map[string]any
	serial  int
	env     []string // further environment of the plugin
	// strangers are living containers of another plugin: their IDs by address.
	strangers map[string]string
	mu        sync.Mutex
}

func newNode(t testing.TB, podCIDRs ...string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, run: filepath.Join(dir, "run"), data: filepath.Join(dir, "data"),
		plugin: filepath.Join(binDir, "edgemesh-cni"), version: "1.1.0", conf: map[string]any{}}
	n.netns = newNS(t)
	if err := os.MkdirAll(n.run, 0o755); err != nil {
		t.Fatal(err)
	}
	n.subnet(podCIDRs...)
	return n
}

func newNS(t testing.TB) ns.NetNS {
	t.Helper()
	return nstest.New(t)
}

// dropNS ends a namespace early, as a dead container's.
func dropNS(netns ns.NetNS) { _ = nstest.Drop(netns) }

// subnet writes subnet.json as the agent does.
func (n *node) subnet(podCIDRs ...string) {
	n.t.Helper()
	b, err := json.Marshal(map[string]any{"podCIDRs": podCIDRs, "clusterCIDRs": podCIDRs, "mtu": 1500})
	if err == nil {
		err = os.WriteFile(filepath.Join(n.run, "subnet.json"), b, 0o644)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// netconf is the configuration of the next call.
func (n *node) netconf(extra map[string]any) []byte {
	n.t.Helper()
	c := map[string]any{"cniVersion": n.version, "name": "edgemesh", "type": "edgemesh-cni", "runtimeDir": n.run, "dataDir": n.data}
	for _, m := range []map[string]any{n.conf, extra} {
		for k, v := range m {
			c[k] = v
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		n.t.Fatal(err)
	}
	return b
}

// args is CNI_ARGS as kubelet's runtimes give it.
func args(name, uid string) string {
	s := "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name + ";K8S_POD_INFRA_CONTAINER_ID=x"
	if uid != "" {
		s += ";K8S_POD_UID=" + uid
	}
	return s
}

// call runs the plugin inside the node. A CNI error comes back as
// *types.Error; a plugin that was killed or printed no error, as another.
func (n *node) call(verb, id, netns, cniArgs string, stdin []byte) ([]byte, error) {
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute) // as long as kubelet waits
	defer cancel()
	cmd := exec.CommandContext(ctx, n.plugin)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id,
		"CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=" + binDir, "CNI_ARGS=" + cniArgs}, n.env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errOut
	err := n.netns.Do(func(ns.NetNS) error { return cmd.Run() })
	if err == nil {
		return out.Bytes(), nil
	}
	var e types.Error
	if json.Unmarshal(out.Bytes(), &e) == nil && e.Msg != "" {
		return nil, &e
	}
	return nil, fmt.Errorf("%s: %w\n%s%s", verb, err, &out, &errOut)
}

// pod is one container of a pod.
type pod struct {
	node     *node
	name, id string
	netns    ns.NetNS
	result   *current.Result
}

// addrs are the pod's addresses as ADD reported them.
func (p *pod) addrs() []string {
	var out []string
	for _, ip := range p.result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		out = append(out, a.Unmap().String())
	}
	return out
}

// tryAdd makes a new container of a pod and calls ADD.
func (n *node) tryAdd(name string, extra map[string]any) (*pod, error) {
	n.mu.Lock()
	n.serial++
	id := fmt.Sprintf("%s-c%d", name, n.serial)
	n.mu.Unlock()
	p := &pod{node: n, name: name, id: id, netns: newNS(n.t)}
	out, err := n.call("ADD", id, p.netns.Path(), args(name, "uid-"+name), n.netconf(extra))
	if err != nil {
		return p, err
	}
	p.result, err = parseResult(out)
	return p, err
}

func (n *node) add(name string) *pod {
	n.t.Helper()
	p, err := n.tryAdd(name, nil)
	if err != nil {
		n.t.Fatalf("ADD %s: %v", name, err)
	}
	return p
}

func parseResult(out []byte) (*current.Result, error) {
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, err
	}
	if v.CNIVersion != "1.1.0" && v.CNIVersion != "1.0.0" {
		return nil, fmt.Errorf("result of version %s", v.CNIVersion)
	}
	r, err := current.NewResult(out)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(r)
}

// del calls DEL with the namespace still there.
func (p *pod) del() {
	p.node.t.Helper()
	if _, err := p.node.call("DEL", p.id, p.netns.Path(), args(p.name, "uid-"+p.name), p.node.netconf(nil)); err != nil {
		p.node.t.Fatalf("DEL %s: %v", p.name, err)
	}
}

// check calls CHECK with ADD's result.
func (p *pod) check() error {
	_, err := p.node.call("CHECK", p.id, p.netns.Path(), args(p.name, "uid-"+p.name),
		p.node.netconf(map[string]any{"prevResult": p.result}))
	return err
}

// records lists the files in the node's store.
func (n *node) records() []string {
	n.t.Helper()
	entries, err := os.ReadDir(n.data)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// used lists the addresses in use by the store's word.
func (n *node) used() []string {
	n.t.Helper()
	var out []string
	for _, f := range n.records() {
		b, err := os.ReadFile(filepath.Join(n.data, f))
		if err != nil {
			n.t.Fatal(err)
		}
		var r struct {
			IP       string
			Released time.Time
		}
		if err := json.Unmarshal(b, &r); err != nil {
			n.t.Fatalf("record %s: %v", f, err)
		}
		if r.Released.IsZero() {
			out = append(out, r.IP)
		}
	}
	return out
}

// veths lists the pods' interfaces on the node.
func (n *node) veths() []string {
	n.t.Helper()
	var out []string
	err := n.netns.Do(func(ns.NetNS) error {
		links, err := podlink.Dump(netlink.LinkList)
		for _, l := range links {
			if l.Type() == "veth" {
				out = append(out, l.Attrs().Name)
			}
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// reboot loses what a power cut loses: namespaces, interfaces, the runtime
// directory. The agent, which needs no network for it, then writes subnet.json.
func (n *node) reboot(podCIDRs ...string) {
	n.t.Helper()
	dropNS(n.netns)
	n.netns = newNS(n.t)
	n.subnet(podCIDRs...)
}

// answers pings until an answer comes: on a busy machine a new link's carrier comes late, and packets before it are lost.
func answers(netns ns.NetNS, to string, opts ...string) error {
	clock := fair.Start()
	defer clock.Stop()
	for {
		if err := ping(netns, to, opts...); err == nil || clock.Elapsed() > 10*time.Second {
			return err
		}
	}
}

// ping sends one packet from netns and reports whether an answer came.
func ping(netns ns.NetNS, to string, opts ...string) error {
	return netns.Do(func(ns.NetNS) error {
		b, err := exec.Command("ping", append(opts, "-n", "-c", "1", "-W", "2", to)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ping %s: %w\n%s", to, err, b)
		}
		return nil
	})
}

func wantCode(t *testing.T, err error, code uint, parts ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a CNI error of code %d", err, code)
	}
	if e.Code != code {
		t.Fatalf("code %d, want %d: %v", e.Code, code, e)
	}
	for _, p := range parts {
		if !strings.Contains(e.Msg+" "+e.Details, p) {
			t.Errorf("error does not say %q: %s; %s", p, e.Msg, e.Details)
		}
	}
}

func wantEqual(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}
