package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// ServePort is where Serve answers HTTP (TCP) and echoes datagrams (UDP);
// BulkPort takes and gives bulk data over TCP.
const (
	ServePort = 9376
	BulkPort  = 9377
)

// Pod is a pod's namespace, plugged in by the real plugin.
type Pod struct {
	*NS
	Node   *Node
	ID     string // the container's
	Addrs  []netip.Addr
	Result string // of ADD, as the plugin printed it

	server *Process
}

// CNIError is the error a plugin prints on standard output.
type CNIError struct {
	Code    int    `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details"`
}

func (e *CNIError) Error() string {
	return fmt.Sprintf("cni error %d: %s: %s", e.Code, e.Msg, e.Details)
}

// CNITryAgain is the code of an ADD that came before subnet.json.
const CNITryAgain = 11

// Plugin is a network plugin other than ours.
type Plugin struct {
	Dir     string // has its binary, and those it calls
	Name    string // of the binary
	Netconf string // network configuration of version 1.0.0
}

// Netconf is the network configuration given to the plugin on this node.
func (n *Node) Netconf(cniVersion string) string {
	if n.Plugin != nil {
		return n.Plugin.Netconf
	}
	b, err := json.Marshal(map[string]string{
		"cniVersion": cniVersion, "name": "edgemesh", "type": "edgemesh-cni",
		"runtimeDir": n.Config.RuntimeDir, "dataDir": n.DataDir,
	})
	if err != nil {
		panic(fmt.Sprintf("marshal netconf: %v", err)) // strings only
	}
	return string(b)
}

// CNI calls the plugin on the node as a runtime does. netns may be empty where
// the command needs none. An error the plugin reports is a *CNIError.
func (n *Node) CNI(ctx context.Context, command, conf, containerID, netns, podName string) (string, error) {
	path, plugin := n.lab.bin, n.lab.toolOf(n.Programs, "edgemesh-cni")
	if n.Plugin != nil {
		path, plugin = n.Plugin.Dir, filepath.Join(n.Plugin.Dir, n.Plugin.Name)
	}
	args := []string{"env", "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + containerID, "CNI_NETNS=" + netns,
		"CNI_IFNAME=eth0", "CNI_PATH=" + path,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + podName + ";K8S_POD_INFRA_CONTAINER_ID=" + containerID,
		plugin}
	stdout, stderr, err := n.run(ctx, conf, args...)
	var exit *ExitError
	if errors.As(err, &exit) {
		ce := &CNIError{}
		if json.Unmarshal([]byte(stdout), ce) == nil && ce.Code != 0 {
			return stdout, fmt.Errorf("%s: %s: %w", n.Name, command, ce)
		}
		return stdout, fmt.Errorf("%s: %s: %w: %s", n.Name, command, err, stderr)
	}
	return stdout, err
}

// NewNS makes a namespace for a pod that another plugin connects.
func (n *Node) NewNS(name string) (*NS, error) {
	n.pods++
	ns, err := n.lab.newNS(fmt.Sprintf("%s-%d-%s", n.Name, n.pods, name))
	if err != nil {
		return nil, err
	}
	ns.Name = name
	return ns, nil
}

// AddPod makes a pod on the node.
func (n *Node) AddPod(ctx context.Context, name string) (*Pod, error) {
	return n.AddPodVersion(ctx, name, "1.0.0")
}

// AddPodVersion makes a pod as a runtime that speaks one version of the CNI
// specification.
func (n *Node) AddPodVersion(ctx context.Context, name, cniVersion string) (*Pod, error) {
	n.pods++
	ns, err := n.lab.newNS(fmt.Sprintf("%s-%d-%s", n.Name, n.pods, name))
	if err != nil {
		return nil, err
	}
	p := &Pod{NS: ns, Node: n, ID: fmt.Sprintf("%s%06d%s", n.lab.Tag, n.pods, n.Name)}
	p.Name = name
	p.Result, err = n.CNI(ctx, "ADD", n.Netconf(cniVersion), p.ID, p.netnsPath(), name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pod %s: %w", name, err), removeNS(ns.Full))
	}
	var r struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal([]byte(p.Result), &r); err != nil {
		return nil, fmt.Errorf("pod %s: result of ADD: %w: %s", name, err, p.Result)
	}
	for _, ip := range r.IPs {
		p.Addrs = append(p.Addrs, ip.Address.Addr())
	}
	return p, nil
}

// Delete removes the pod as a runtime does: its processes, DEL, its namespace.
func (p *Pod) Delete(ctx context.Context) error {
	if p.server != nil {
		p.server.Kill()
	}
	_, err := p.Node.CNI(ctx, "DEL", p.Node.Netconf("1.0.0"), p.ID, p.netnsPath(), p.Name)
	return errors.Join(err, removeNS(p.Full))
}

func (p *Pod) netnsPath() string { return filepath.Join("/run/netns", p.Full) }

// IP4 and IP6 are the pod's addresses; the zero Addr when it has none.
func (p *Pod) IP4() netip.Addr { return p.addr(netip.Addr.Is4) }
func (p *Pod) IP6() netip.Addr { return p.addr(netip.Addr.Is6) }

func (p *Pod) addr(is func(netip.Addr) bool) netip.Addr {
	for _, a := range p.Addrs {
		if is(a) {
			return a
		}
	}
	return netip.Addr{}
}

// Serve starts podtool's server in the pod and waits until it answers there.
func (p *Pod) Serve(ctx context.Context) error {
	var err error
	p.server, err = p.NS.Serve(ctx, p.Name)
	return err
}

// Serve starts podtool's server in any namespace and waits until it answers.
func (n *NS) Serve(ctx context.Context, name string) (*Process, error) {
	s, err := n.Start("serve-"+n.Full[len(n.lab.Tag)+1:], n.lab.tool("podtool"), "serve", "--name", name)
	if err != nil {
		return nil, err
	}
	return s, Until(ctx, 20*time.Millisecond, func() error {
		if !s.Running() {
			return fmt.Errorf("%s: server ended: %s", n.Name, s.Tail(5))
		}
		_, err := n.Get(ctx, netip.MustParseAddr("127.0.0.1"), time.Second)
		return err
	})
}

// Reply is what podtool's server answers.
type Reply struct {
	Name   string     `json:"name"`
	Client netip.Addr `json:"client"` // as the server saw it
}

// Get fetches http://addr:9376/ from inside the namespace.
func (n *NS) Get(ctx context.Context, addr netip.Addr, wait time.Duration) (Reply, error) {
	var r Reply
	err := n.Tool(ctx, &r, "get", "--timeout", wait.String(),
		"http://"+strings.Replace(netip.AddrPortFrom(addr, ServePort).String(), "%", "%25", 1)+"/") // a zone
	return r, err
}

// Tool runs podtool inside the namespace and decodes the JSON it prints. When
// podtool fails the result may be filled nevertheless.
func (n *NS) Tool(ctx context.Context, result any, args ...string) error {
	out, err := n.Run(ctx, append([]string{n.lab.tool("podtool")}, args...)...)
	if strings.TrimSpace(out) != "" && result != nil {
		if jerr := json.Unmarshal([]byte(out), result); jerr != nil {
			return errors.Join(err, fmt.Errorf("%s: podtool %s: %w: %s", n.Name, args[0], jerr, out))
		}
	}
	return err
}

// StartTool starts podtool inside the namespace; its output is in the log.
func (n *NS) StartTool(name string, args ...string) (*Process, error) {
	return n.Start(name, append([]string{n.lab.tool("podtool")}, args...)...)
}

// Bulk is what `podtool bulk` reports.
type Bulk struct {
	Bytes   int64   `json:"bytes"`
	SHA256  string  `json:"sha256"`
	Match   bool    `json:"match"`
	Seconds float64 `json:"seconds"`
	Mbps    float64 `json:"mbps"`
	StallMs float64 `json:"stallMs"` // the longest time one chunk took
	// Silences are all times of more than a second in which data were in flight and none was acknowledged, in their order, if
	// they were sent from here.
	Silences []Silence `json:"silences"`
	Error    string    `json:"error"`
}

// Echoed is what `podtool udp` reports.
type Echoed struct {
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	MaxMs    float64 `json:"maxMs"`
	Error    string  `json:"error"`
}

// Silence is a time without an answer. FairMs is as in Gaps.
type Silence struct {
	At     time.Time `json:"at"`
	Ms     float64   `json:"ms"`
	FairMs float64   `json:"-"`
}

// Gaps is what `podtool gaps` reports.
type Gaps struct {
	Sent      int     `json:"sent"`
	Received  int     `json:"received"`
	Lost      int     `json:"lost"`
	Doubled   int     `json:"doubled"`
	Reordered int     `json:"reordered"`
	GapMs     float64 `json:"gapMs"`
	// GapAt is when that gap began. FairMs is how long it was by a fair clock, where the
	// caller ran one.
	GapAt  time.Time `json:"gapAt"`
	FairMs float64   `json:"-"`
	// Silences are all gaps of more than a second, in their order.
	Silences []Silence `json:"silences"`

	P50Ms float64 `json:"p50Ms"`
	P99Ms float64 `json:"p99Ms"`
	MaxMs float64 `json:"maxMs"`
	Error string  `json:"error"`
}
