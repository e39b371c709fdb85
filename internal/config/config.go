// Package config reads the agent's configuration file.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/logs"
	"edgemesh/internal/membership/mesh"
)

const (
	// DefaultPath is where the agent looks for its configuration.
	DefaultPath = "/etc/edgemesh/agent.yaml"
	// DefaultStateDir holds identity.key, membership.json and port.
	DefaultStateDir = "/var/lib/edgemesh"
	// DefaultRuntimeDir holds agent.sock and subnet.json.
	DefaultRuntimeDir = "/run/edgemesh"
	// DefaultCNIConfDir is where container runtimes look for a conflist.
	DefaultCNIConfDir = "/etc/cni/net.d"
	// DefaultCNIBinDir is where container runtimes look for plugins.
	DefaultCNIBinDir = "/opt/cni/bin"
	// DefaultCNIDataDir holds the plugin's address records.
	DefaultCNIDataDir = "/var/lib/cni/networks/edgemesh"
	defaultCNIData    = "/var/lib/cni" // with other plugins' records
	// MaxTUNQueues is the most that tunQueues accepts.
	MaxTUNQueues = 8
	// DefaultMetricsAddress is reachable from this host only.
	DefaultMetricsAddress = "127.0.0.1:9469"
)

const (
	maxSize = 1 << 20 // bytes of a configuration file
	// socketFile is the longest name in the agent's runtime directory; maxSocketPath is
	// what sun_path holds (unix(7)), in bytes.
	socketFile    = "agent.sock"
	maxSocketPath = 107
)

// CNIMode says which network plugin connects the node's pods.
type CNIMode string

const (
	// CNIOwn installs ours. It is the default.
	CNIOwn CNIMode = "own"
	// CNIKeep leaves the pods to the plugin that the node already has; the agent only
	// carries packets between them and pods on other nodes.
	CNIKeep CNIMode = "keep"
)

// Config is the agent's configuration, complete and valid.
type Config struct {
	NodeName       string         `json:"nodeName"`
	StateDir       string         `json:"stateDir"` // absolute, as all directories
	RuntimeDir     string         `json:"runtimeDir"`
	CNIConfDir     string         `json:"cniConfDir"`       // "" = do not install a conflist
	CNIBinDir      string         `json:"cniBinDir"`        // "" = do not install the plugin
	CNIDataDir     string         `json:"cniDataDir"`       // the plugin's address records
	CNIMode        CNIMode        `json:"cniMode"`          // which plugin connects the pods
	CNI            CNI            `json:"cni"`              // options of ours
	Membership     Membership     `json:"membership"`       // exactly one source
	JoinSecretFile string         `json:"joinSecretFile"`   // what relays without a membership require; "" = none does
	Signers        []peer.ID      `json:"-"`                // keys whose signed membership alone counts; none: the source is believed
	LAN            LAN            `json:"lan"`              // which of native and VXLAN paths this node uses
	Listen         []ma.Multiaddr `json:"-"`                // empty = not configured; see ResolveListen
	MetricsAddress string         `json:"metricsAddress"`   // host:port, mesh:port (endpoint.Mesh), "" = off
	Proxy          string         `json:"proxy"`            // URL of the HTTP proxy to relays and API, "none", or "" = HTTPS_PROXY
	ProxyUser      string         `json:"proxyCredentials"` // a file with user:password; "" = those of HTTPS_PROXY, if any
	Relay          Relay          `json:"-"`                // whether this node is a relay for others
	Discovery      Discovery      `json:"discovery"`
	Punch          Punch          `json:"-"`
	Carrier        Carrier        `json:"carrier"`   // what carries the lanes of the tunnel
	Uplink         Uplink         `json:"-"`         // whether its bytes are paid for
	Forward        mesh.Forward   `json:"-"`         // what this node forwards into the pod network from outside
	Log            logs.Config    `json:"log"`       // format and first level
	TUNQueues      int            `json:"tunQueues"` // accepted without effect: the TUN has one queue

	// MetricsUnset: nobody has chosen MetricsAddress, which is the default.
	MetricsUnset bool `json:"-"`

	// HostNamed: nothing but the host's name says NodeName, which is "" where that is not a node's name. See As.
	HostNamed bool `json:"-"`

	own  map[string]any // what `nodes` sets for this node
	host map[string]any // what HostFile sets
	path string         // of the file, where HostNamed
	data []byte         // its content, likewise
}

// document is the file as written, over the defaults.
type document struct {
	Config
	Metrics *string         `json:"metricsAddress"`
	Listen  []string        `json:"listen"`
	Signers []string        `json:"signers"`
	Relay   relayDocument   `json:"relay"`
	Punch   punchDocument   `json:"punch"`
	Uplink  uplinkDocument  `json:"uplink"`
	Forward forwardDocument `json:"forward"`
	// Nodes holds settings of single nodes, by name.
	Nodes map[string]nodeDocument `json:"nodes"`
}

// defaults is what an empty file means.
var defaults = document{Config: Config{
	StateDir:   DefaultStateDir,
	RuntimeDir: DefaultRuntimeDir,
	CNIConfDir: DefaultCNIConfDir,
	CNIBinDir:  DefaultCNIBinDir,
	CNIDataDir: DefaultCNIDataDir,
	LAN:        LAN{Native: true, VXLAN: true, VXLANPort: mesh.VXLANPort},
	Discovery:  Discovery{MDNS: true, PortMapping: true},
}}

// Discovery is the `discovery` key: what the node queries in its own network. All of it
// is on by default.
type Discovery struct {
	MDNS        bool `json:"mdns"`        // find members of the same LAN by multicast DNS
	PortMapping bool `json:"portMapping"` // request a port of the router (UPnP, PCP, NAT-PMP)
}

// LAN is the `lan` key: paths that bypass the tunnel, between nodes that reach each
// other at private addresses.
type LAN struct {
	Native    bool `json:"native"`
	VXLAN     bool `json:"vxlan"`
	VXLANPort int  `json:"vxlanPort"` // the same on every node
}

// Membership is the `membership` key of the agent's and the relay's files.
type Membership struct {
	File       string      `json:"file"`
	Kubernetes *Kubernetes `json:"kubernetes"`
}

// Kubernetes says how to reach the API.
type Kubernetes struct {
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	// LocalUID may serve the API on this host without TLS, besides root.
	LocalUID int `json:"localUID"`
	// NodeCertificate proves to controllers which node this is, where the API may only be read; "" is edgecore's or
	// kubelet's.
	NodeCertificate string `json:"nodeCertificate"`
	NodeKey         string `json:"nodeKey"` // "" is in the same file
}

// Load reads the configuration at path, with defaults from the environment and the
// host, and with HostFile. The error names the file; it is a *mesh.Invalid if the content is wrong. Every
// error is for the operator to fix (exit code 2).
func Load(path string) (Config, error) {
	return load(path, os.Getenv("NODE_NAME"), os.Hostname)
}

func load(path, nodeName string, hostname func() (string, error)) (Config, error) {
	data, err := ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	c, err := parse(path, data, nodeName, hostname)
	if err != nil {
		return Config{}, err
	}
	return c.withHost(data)
}

// As is c, which Load returned, for a node of another name than the host's.
func (c Config) As(name string) (Config, error) {
	if c.path == "" {
		c.NodeName = name
		return c, nil
	}
	out, err := parse(c.path, c.data, name, nil)
	if err != nil {
		return c, err
	}
	return out.withHost(c.data)
}

// Parse reads the content of a configuration file for the named node. The error is a
// *mesh.Invalid that names path.
func Parse(path string, data []byte, nodeName string) (Config, error) {
	return parse(path, data, nodeName, nil)
}

func parse(path string, data []byte, nodeName string, hostname func() (string, error)) (Config, error) {
	bad := mesh.Invalid{File: path}
	doc := defaults
	strict.Unmarshal(data, &doc, &bad)
	if err := bad.Err(); err != nil {
		return Config{}, err
	}
	name := checkNodeName(&bad, cmp.Or(doc.NodeName, nodeName), doc.NodeName == "")
	hostNamed := name == "" && hostname != nil
	if hostNamed {
		name = nameOf(hostname)
	}
	c := doc.checkFor(&bad, data, name)
	c.NodeName, c.HostNamed = name, hostNamed
	if hostNamed {
		c.path, c.data = path, data
	}
	return c, bad.Err()
}

// check is the configuration that d describes, without the node's name.
func (d document) check(bad *mesh.Invalid) Config {
	c := d.Config
	c.StateDir = Dir(bad, "stateDir", d.StateDir, DefaultStateDir)
	c.RuntimeDir = Dir(bad, "runtimeDir", d.RuntimeDir, DefaultRuntimeDir)
	c.CNIConfDir = optionalDir(bad, "cniConfDir", d.CNIConfDir)
	c.CNIBinDir = optionalDir(bad, "cniBinDir", d.CNIBinDir)
	c.CNIDataDir = Dir(bad, "cniDataDir", d.CNIDataDir, DefaultCNIDataDir)
	c.CNIMode = cmp.Or(d.CNIMode, CNIOwn)
	if c.CNIMode != CNIOwn && c.CNIMode != CNIKeep {
		bad.Addf("cniMode", "%q is neither %q nor %q", c.CNIMode, CNIOwn, CNIKeep)
	}
	c.CNI.check(bad)
	if p := c.LAN.VXLANPort; p < 1 || p > 65535 {
		bad.Addf("lan.vxlanPort", "%d is not a UDP port; leave it out for the default %d", p, mesh.VXLANPort)
	}
	c.Membership.Check(bad)
	c.JoinSecretFile = SecretFile(bad, "joinSecretFile", d.JoinSecretFile)
	c.Signers = Signers(bad, d.Signers)
	c.Listen = Listen(bad, "listen", d.Listen, false)
	if c.MetricsAddress, c.MetricsUnset = DefaultMetricsAddress, d.Metrics == nil; !c.MetricsUnset {
		c.MetricsAddress = *d.Metrics
	}
	HostPort(bad, "metricsAddress", c.MetricsAddress, DefaultMetricsAddress)
	c.checkProxy(bad)
	if c.TUNQueues < 0 || c.TUNQueues > MaxTUNQueues {
		bad.Addf("tunQueues", "%d is not between 0 and %d; the key has no effect and can be removed", c.TUNQueues, MaxTUNQueues)
	}
	c.Relay = d.Relay.check(bad, c.Listen)
	c.Punch = d.Punch.check(bad)
	mesh.Carrier{Sealed: c.Carrier.Sealed}.Check(bad)
	c.Uplink = d.Uplink.check(bad)
	c.Forward = d.Forward.check(bad)
	c.Log = Log(bad, d.Log)
	if n := len(filepath.Join(c.RuntimeDir, socketFile)); n > maxSocketPath {
		bad.Addf("runtimeDir", "%s is too long: a unix socket's path holds %d bytes, agent.sock in it needs %d; choose a shorter one", c.RuntimeDir, maxSocketPath, n)
	}
	if c.StateDir != "" && c.StateDir == c.RuntimeDir {
		bad.Addf("runtimeDir", "%s is also the stateDir; choose two directories: the runtimeDir is lost at a reboot, the stateDir must not be", c.RuntimeDir)
	}
	return c
}

// ReadFile reads a configuration file. The error names path and the remedy.
func ReadFile(path string) ([]byte, error) {
	data, err := strict.ReadFile(path, maxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("configuration: %w; create it, or give its path with --config", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("configuration: %w; run as root or change the file's permissions", err)
	case err != nil:
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return data, nil
}

func checkNodeName(bad *mesh.Invalid, name string, env bool) string {
	if name == "" {
		return ""
	}
	from := ""
	if env {
		from = " (from $NODE_NAME)"
	}
	if err := mesh.CheckNodeName(name); err != nil {
		bad.Addf("nodeName", "%v%s", err, from)
	}
	return name
}

// nameOf is the name that Kubernetes gives a node after its host's, in lower case; "" if that is none.
func nameOf(hostname func() (string, error)) string {
	host, err := hostname()
	if name := strings.ToLower(host); err == nil && mesh.CheckNodeName(name) == nil {
		return name
	}
	return ""
}

// Help describes every key of the agent's configuration.
func Help() string {
	return fmt.Sprintf(`  nodeName        this node's name (default $NODE_NAME, then the host name)
  stateDir        identity.key, port, the snapshot of the membership (default %s)
  runtimeDir      agent.sock, subnet.json (default %s)
  cniConfDir      where the conflist is installed (default %s, "" = not installed)
  cniBinDir       where edgemesh-cni is installed (default %s, "" = not installed)
  cniDataDir      records of the pods' addresses (default %s)
  cniMode         own, or keep: another network plugin connects the pods (default own)
  cni             options of our plugin: keepFor, keepOnly, exclude, promiscMode,
                  allowSpoofing, chained
  membership      {file: PATH of cluster.yaml}, or {kubernetes: {kubeconfig: PATH, server: URL,
                  nodeCertificate: PATH, nodeKey: PATH, localUID: UID}}; {kubernetes: {}}
                  in a pod. Without TLS the API must be on this host, and a program of
                  root's or localUID's accept the connection
  joinSecretFile  file (0600) with the secret that relays outside the cluster require
  signers         keys whose signed membership alone is believed, as edgemesh-agent membership key
                  prints them (default none: the membership's source is believed)
  listen          multiaddrs (default TCP and QUIC on a port chosen once, IPv4 and IPv6)
  metricsAddress  /metrics, /healthz, /readyz (default %s, "" = off; mesh:PORT = 127.0.0.1
                  and the node's mesh addresses)
  proxy           HTTP proxy to relays and API: http://HOST:PORT, none (default $HTTPS_PROXY;
                  $NO_PROXY holds for both)
  proxyCredentials  file (0600) with user:password for the proxy
  lan             paths that bypass the tunnel: {native: true, vxlan: true, vxlanPort: %d}
  relay           this node as a relay: {enabled: false, announce: [ADDRESS…], limits: {…}}
  discovery       what to query in this network: {mdns: true, portMapping: true}
  punch           {guess: auto}: ports of random NATs are guessed where nothing else helps; never, for
                  links that are metered or run on batteries (birthday: accepted for one release)
  carrier         {sealed: auto}: sealed packets with repair carry what goes to peers that have them, too, where a
                  QUIC connection leads to them; "off": TCP alone, also for UDP (default as the membership has it, which is auto)
  uplink          {metered: auto}: whether each byte is paid for: true, false, or auto: a modem's interface with a
                  default route, or one that NetworkManager calls metered (in a pod: by a profile in /run). The
                  Node's annotation network.edgemesh.io/metered goes before it (read every hour). Then no ports are guessed, and direct paths are
                  opened only for large transfers
  forward         whom this node forwards to nodes and pods from outside, an API server without an agent
                  for instance: {from: [172.31.0.0/20], ports: [10250/tcp]} (default: nobody; kubelet's port);
                  all, or {uplinks: all} beside from: this host routes between its uplinks, too. Without it
                  the agent does not make a host that did not forward before a router between them
  log             {format: text, level: info}: text or json; debug, info, warn, error. The command
                  log-level changes the level of a running agent
  tunQueues       0 to %d; accepted without effect, the TUN has one queue
  nodes           settings of single nodes, by name, in a file that many nodes share; what a
                  host itself has in stateDir/node.yaml goes before them

relay.%s`,
		DefaultStateDir, DefaultRuntimeDir, DefaultCNIConfDir, DefaultCNIBinDir, DefaultCNIDataDir,
		DefaultMetricsAddress, mesh.VXLANPort, MaxTUNQueues, RelayLimitsHelp)
}

// Writes are the directories that the agent writes to, stateDir first.
func (c Config) Writes() []string {
	data := c.CNIDataDir
	if data == DefaultCNIDataDir {
		data = defaultCNIData
	}
	out := []string{c.StateDir, c.RuntimeDir}
	for _, d := range []string{c.CNIConfDir, c.CNIBinDir, data} {
		if d != "" {
			out = append(out, d)
		}
	}
	return out
}
