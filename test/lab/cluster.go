package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Cluster is what cluster.yaml says. Nodes and relays are added by the lab;
// change what you like and call WriteMembership.
type Cluster struct {
	PodCIDRs   []string `json:"podCIDRs"`
	Relays     []string `json:"relays"`
	WANCIDRs   []string `json:"wanCIDRs"`
	Encryption string   `json:"encryption,omitempty"`
	LAN        *Trust   `json:"lan,omitempty"`
	Banned     []string `json:"banned,omitempty"`
	Observers  []string `json:"observers,omitempty"`
	AdmitLabel string   `json:"admitLabel,omitempty"`
	HostAccess string   `json:"hostAccess,omitempty"`
	HostPorts  []string `json:"hostPorts,omitempty"`
	PodDeny    []string `json:"podDenyCIDRs,omitempty"`
	Policies   string   `json:"policies,omitempty"`
	Policy     string   `json:"networkPolicy,omitempty"`
	Nodes      []Member `json:"nodes"`
}

// Trust is the key lan.
type Trust struct {
	Trusted []string `json:"trusted,omitempty"`
}

// Member is a line of cluster.yaml.
type Member struct {
	Name     string   `json:"name"`
	PeerID   string   `json:"peerID"`
	PodCIDRs []string `json:"podCIDRs"`

	Labels map[string]string `json:"labels,omitempty"`
}

// Labelled returns the cluster with this label on all nodes but one.
func (c Cluster) Labelled(key, value, but string) Cluster {
	c.Nodes = slices.Clone(c.Nodes)
	for i := range c.Nodes {
		if c.Nodes[i].Name != but {
			c.Nodes[i].Labels = map[string]string{key: value}
		}
	}
	return c
}

// Without returns the cluster without the named node.
func (c Cluster) Without(node string) Cluster {
	var rest []Member
	for _, m := range c.Nodes {
		if m.Name != node {
			rest = append(rest, m)
		}
	}
	c.Nodes = rest
	return c
}

// YAML returns the content of cluster.yaml.
func (c Cluster) YAML() string {
	b, err := yaml.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("marshal cluster: %v", err)) // strings and slices only
	}
	return string(b)
}

// WriteMembership gives the cluster, as it is now, to every node and relay. Each
// has a copy of its own, replaced by rename.
func (l *Lab) WriteMembership() error {
	var errs []error
	for _, r := range l.Relays {
		errs = append(errs, ReplaceFile(r.Membership, l.Cluster.YAML()))
	}
	for _, n := range l.Nodes() {
		errs = append(errs, ReplaceFile(n.Membership, l.Cluster.YAML()))
	}
	return errors.Join(errs...)
}

// ReplaceFile writes a file beside path and renames it to path.
func ReplaceFile(path, content string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	return nil
}

// Relay is a relay server on the WAN.
type Relay struct {
	*NS
	Addr       string // its public IPv4 address
	PeerID     string
	StateDir   string
	Membership string   // its copy of cluster.yaml
	Listen     []string // further addresses to listen on
	JoinSecret string   // the file with it: the relay has no membership unless its Membership exists
	Signers    []string // keys that it pins, likewise
	Limits     map[string]int
	Programs   string // as a node's
	Process    *Process
}

// relayPort is the port the lab's relays listen on, TCP and UDP.
const relayPort = 4501

// AddRelay makes a relay with its key and enters its addresses in the cluster.
func (l *Lab) AddRelay(name string) (*Relay, error) {
	n, err := l.newNS(name)
	if err != nil {
		return nil, err
	}
	addr, err := l.joinWAN(n, 5, 5+len(l.Relays))
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", name, err)
	}
	dir := filepath.Join(l.Dir, name)
	r := &Relay{
		NS:         n,
		Addr:       addr.String(),
		StateDir:   filepath.Join(dir, "state"),
		Membership: filepath.Join(dir, "cluster.yaml"),
	}
	if err := os.MkdirAll(r.StateDir, 0o755); err != nil {
		return nil, fmt.Errorf("relay %s: %w", name, err)
	}
	out, err := n.Run(context.Background(), l.tool("edgemesh-relay"), "id", "--state-dir", r.StateDir)
	if err != nil {
		return nil, fmt.Errorf("relay key: %w", err)
	}
	r.PeerID = strings.TrimSpace(out)
	l.Relays = append(l.Relays, r)
	l.Cluster.Relays = append(l.Cluster.Relays,
		fmt.Sprintf("/ip4/%s/tcp/%d/p2p/%s", addr, relayPort, r.PeerID),
		fmt.Sprintf("/ip4/%s/udp/%d/quic-v1/p2p/%s", addr, relayPort, r.PeerID))
	return r, nil
}

// Start starts the relay. WriteMembership must have been called.
func (r *Relay) Start() error {
	config := filepath.Join(filepath.Dir(r.StateDir), "relay.yaml")
	doc := map[string]any{
		"stateDir": r.StateDir,
		"listen": append([]string{
			fmt.Sprintf("/ip4/0.0.0.0/tcp/%d", relayPort), fmt.Sprintf("/ip4/0.0.0.0/udp/%d/quic-v1", relayPort),
		},
			r.Listen...),
	}
	if len(r.Signers) > 0 {
		doc["signers"] = r.Signers
	}
	if r.Limits != nil {
		doc["limits"] = r.Limits
	}
	if r.JoinSecret != "" {
		doc["joinSecretFile"] = r.JoinSecret
	}
	if r.JoinSecret == "" && len(r.Signers) == 0 || fileExists(r.Membership) {
		doc["membership"] = map[string]any{"file": r.Membership}
	}
	b, err := yaml.Marshal(doc)
	if err != nil {
		return fmt.Errorf("relay config: %w", err)
	}
	if err := ReplaceFile(config, string(b)); err != nil {
		return err
	}
	r.Process, err = r.NS.Start(r.Name, r.lab.toolOf(r.Programs, "edgemesh-relay"), "run", "--config", config)
	return err
}

// ListenIPv6 has the relay, once it starts, listen on IPv6 as well, as relays do by default.
func (r *Relay) ListenIPv6() {
	r.Listen = append(r.Listen, fmt.Sprintf("/ip6/::/tcp/%d", relayPort),
		fmt.Sprintf("/ip6/::/udp/%d/quic-v1", relayPort))
}

// ServeIPv6 has the relay listen on IPv6 as well, and the membership say so.
func (r *Relay) ServeIPv6() {
	r.ListenIPv6()
	l := r.lab
	for _, a := range l.Cluster.Relays {
		if rest, is := strings.CutPrefix(a, "/ip4/"+r.Addr+"/"); is {
			l.Cluster.Relays = append(l.Cluster.Relays, "/ip6/"+r.Addr6()+"/"+rest)
		}
	}
}

// Addr6 is the relay's public IPv6 address.
func (r *Relay) Addr6() string {
	b := netip.MustParseAddr(r.Addr).As4()
	return fmt.Sprintf("2a05:5:0:%x::%x", b[2], b[3])
}

// WaitUp waits until the relay accepts connections.
func (r *Relay) WaitUp(ctx context.Context) error {
	return Until(ctx, 20*time.Millisecond, func() error {
		if !r.Process.Running() {
			return fmt.Errorf("relay %s ended: %s\n%s", r.Name, r.Process.state(), r.Process.Tail(10))
		}
		out, err := r.Run(ctx, "ss", "-Hltn", fmt.Sprintf("sport = :%d", relayPort))
		if err == nil && strings.TrimSpace(out) == "" {
			err = fmt.Errorf("relay %s does not listen yet", r.Name)
		}
		return err
	})
}

// WaitReservations waits until the relay itself holds n reservations: an agent
// believes in one for a moment longer than a killed relay lives.
func (r *Relay) WaitReservations(ctx context.Context, n int) error {
	const gauge = "edgemesh_relay_reservations "
	return Until(ctx, 20*time.Millisecond, func() error {
		out, err := r.Run(ctx, r.lab.tool("podtool"), "get", "http://127.0.0.1:9470/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if value, ok := strings.CutPrefix(line, gauge); ok {
				if have, err := strconv.Atoi(strings.TrimSpace(value)); err != nil || have < n {
					return fmt.Errorf("relay %s holds %s of %d reservations", r.Name, strings.TrimSpace(value), n)
				}
				return nil
			}
		}
		return fmt.Errorf("relay %s does not report its reservations", r.Name)
	})
}

// fileExists says whether path exists.
func fileExists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
