package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// AgentConfig is the agent's configuration file.
type AgentConfig struct {
	NodeName       string          `json:"nodeName"`
	StateDir       string          `json:"stateDir"`
	RuntimeDir     string          `json:"runtimeDir"`
	CNIConfDir     string          `json:"cniConfDir"`
	CNIBinDir      string          `json:"cniBinDir"`
	CNIDataDir     string          `json:"cniDataDir"`
	CNIMode        string          `json:"cniMode,omitempty"`
	CNI            map[string]any  `json:"cni,omitempty"`
	LAN            map[string]any  `json:"lan,omitempty"`
	Membership     map[string]any  `json:"membership"`
	JoinSecretFile string          `json:"joinSecretFile,omitempty"`
	Signers        []string        `json:"signers,omitempty"`
	Listen         []string        `json:"listen,omitempty"`
	MetricsAddress string          `json:"metricsAddress,omitempty"`
	Relay          map[string]any  `json:"relay,omitempty"`
	Discovery      map[string]bool `json:"discovery,omitempty"`
	Forward        map[string]any  `json:"forward,omitempty"`
	Carrier        map[string]any  `json:"carrier,omitempty"`
	Proxy          string          `json:"proxy,omitempty"`
	ProxyUser      string          `json:"proxyCredentials,omitempty"`
}

// Node is a host with an agent.
type Node struct {
	*NS
	Addr       netip.Addr // its address on the LAN or WAN
	Uplink     string     // its interface
	Site       *Site      // nil for a cloud node
	PeerID     string
	PodCIDRs   []string
	Dir        string // all its files
	DataDir    string // the plugin's
	Membership string // its copy of cluster.yaml
	Config     AgentConfig
	Agent      *Process // the running agent, or the last one
	Plugin     *Plugin  // makes the node's pods; nil for ours
	Programs   string   // a directory whose programs it runs; empty, or where one is missing there: the lab's

	pods int
}

// NodeOptions change a node's defaults.
type NodeOptions struct {
	// PodCIDRs are the node's blocks; empty means the next /24 and /64 of the
	// default ranges.
	PodCIDRs []string
	// Iptables is the backend the node's programs find: "nft", "legacy", or
	// empty for the machine's own.
	Iptables string
	// NoAgent makes a node without a key that is not a member: for the plugin
	// alone.
	NoAgent bool
}

// AddNode puts a node on the site's LAN.
func (s *Site) AddNode(name string, o NodeOptions) (*Node, error) {
	n, err := s.lab.newNode(name, o)
	if err != nil {
		return nil, err
	}
	n.Site, n.Uplink = s, "eth0"
	s.Nodes = append(s.Nodes, n)
	if n.Addr, err = s.join(n.NS); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	if s.NAT == Cone && len(s.Nodes) == 1 {
		n.Config.Listen = []string{
			fmt.Sprintf("/ip4/0.0.0.0/tcp/%d", ConePort), fmt.Sprintf("/ip4/0.0.0.0/udp/%d/quic-v1", ConePort),
		}
	}
	return n, nil
}

// AddCloudNode puts a node directly on the WAN.
func (l *Lab) AddCloudNode(name string, o NodeOptions) (*Node, error) {
	n, err := l.newNode(name, o)
	if err != nil {
		return nil, err
	}
	n.Uplink = "wan0"
	l.Clouds = append(l.Clouds, n)
	if n.Addr, err = l.joinWAN(n.NS, 100+len(l.Clouds), 1); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	return n, nil
}

// newNode makes a node's namespace, directories and key, and enters it in the
// cluster.
func (l *Lab) newNode(name string, o NodeOptions) (*Node, error) {
	ns, err := l.newNS(name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(l.Dir, name)
	n := &Node{
		NS:         ns,
		Dir:        dir,
		DataDir:    filepath.Join(dir, "data"),
		Membership: filepath.Join(dir, "cluster.yaml"),
		PodCIDRs:   o.PodCIDRs,
	}
	n.Config = AgentConfig{
		CNIDataDir: n.DataDir,
		NodeName:   name, StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"),
		Membership: map[string]any{"file": n.Membership}, MetricsAddress: "127.0.0.1:9469",
	}
	if v := os.Getenv("EDGEMESH_SEALED"); v != "" { // any test with TCP lanes alone: off
		n.Config.Carrier = map[string]any{"sealed": v}
	}
	if len(n.PodCIDRs) == 0 {
		k := len(l.Cluster.Nodes) + 1
		n.PodCIDRs = []string{fmt.Sprintf("10.244.%d.0/24", k), fmt.Sprintf("fd44:44:0:%x::/64", k)}
	}
	for _, d := range []string{n.Config.StateDir, n.Config.RuntimeDir, n.DataDir, filepath.Join(dir, "bin")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	n.env = []string{"XTABLES_LOCKFILE=" + filepath.Join(dir, "xtables.lock")}
	if err := n.useIptables(o.Iptables); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	if o.NoAgent {
		return n, nil
	}
	out, err := ns.Run(context.Background(), l.tool("edgemesh-agent"), "id", "--state-dir", n.Config.StateDir)
	if err != nil {
		return nil, fmt.Errorf("node key: %w", err)
	}
	n.PeerID = strings.TrimSpace(out)
	l.Cluster.Nodes = append(l.Cluster.Nodes, Member{Name: name, PeerID: n.PeerID, PodCIDRs: n.PodCIDRs})
	return n, nil
}

// useIptables makes the node's programs find one backend under the usual names.
func (n *Node) useIptables(backend string) error {
	if backend == "" {
		return nil
	}
	multi, err := exec.LookPath("xtables-" + backend + "-multi")
	if err != nil {
		return fmt.Errorf("%w: iptables with the %s backend: %w", ErrMissingTool, backend, err)
	}
	bin := filepath.Join(n.Dir, "bin")
	for _, v := range []string{"iptables", "ip6tables"} {
		for _, tool := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(multi, filepath.Join(bin, v+tool)); err != nil {
				return fmt.Errorf("iptables backend: %w", err)
			}
		}
	}
	n.env = append(n.env, "PATH="+bin+":"+os.Getenv("PATH"))
	return nil
}

// ConfigFile is the path of the agent's configuration.
func (n *Node) ConfigFile() string { return filepath.Join(n.Dir, "agent.yaml") }

// WriteConfig writes n.Config to the node's configuration file.
func (n *Node) WriteConfig() error {
	b, err := yaml.Marshal(n.Config)
	if err != nil {
		return fmt.Errorf("agent config: %w", err)
	}
	return ReplaceFile(n.ConfigFile(), string(b))
}

// Start writes the configuration and starts the agent, which logs details when
// EDGEMESH_VERBOSE is set. WriteMembership must have been called.
func (n *Node) Start() error {
	if err := n.WriteConfig(); err != nil {
		return err
	}
	args := []string{n.AgentPath(), "run", "--config", n.ConfigFile()}
	if os.Getenv("EDGEMESH_VERBOSE") != "" {
		args = append(args, "--verbose")
	}
	var err error
	n.Agent, err = n.NS.Start(n.Name, args...)
	return err
}

// AgentCommand runs a subcommand of the agent's binary on the node.
func (n *Node) AgentCommand(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	return n.run(ctx, "", append([]string{n.AgentPath()}, args...)...)
}

// ToolPath is podtool.
func (n *Node) ToolPath() string { return n.lab.tool("podtool") }

// AgentPath is the path of the agent's binary, for tests that start it themselves.
func (n *Node) AgentPath() string { return n.lab.toolOf(n.Programs, "edgemesh-agent") }

// WaitPods waits until the node can take pods: subnet.json is there.
func (n *Node) WaitPods(ctx context.Context) error {
	file := filepath.Join(n.Config.RuntimeDir, "subnet.json")
	return Until(ctx, 20*time.Millisecond, func() error {
		if n.Agent != nil && !n.Agent.Running() {
			return fmt.Errorf("node %s: %w: %s\n%s", n.Name, ErrEnded, n.Agent.state(), n.Agent.Tail(10))
		}
		if !fileExists(file) {
			return fmt.Errorf("node %s: no subnet.json yet", n.Name)
		}
		return nil
	})
}
