// Package config reads the agent's configuration file.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/agent/config/strict"
	"edgemesh/agent/mesh"
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
//
// Fields: one per key of the file, independent of each other; each part of the agent is
// given its own.
type Config struct {
	NodeName       string
	StateDir       string // absolute, as all directories
	RuntimeDir     string
	CNIConfDir     string         // "" = do not install a conflist
	CNIBinDir      string         // "" = do not install the plugin
	CNIDataDir     string         // the plugin's address records
	CNIMode        CNIMode        // which plugin connects the pods
	CNI            CNI            // options of ours
	Membership     Membership     // exactly one source
	LAN            LAN            // which of native and VXLAN paths this node uses
	Listen         []ma.Multiaddr // empty = not configured; see ResolveListen
	MetricsAddress string         // host:port, "" = off
	Relay          Relay          // whether this node is a relay for others
	Discovery      Discovery
	Punch          Punch
	TUNQueues      int // accepted without effect: the TUN has one queue

	own map[string]any // what `nodes` sets for this node
}

// document is the file as written. Pointers tell "" from absent.
//
// Fields: one per key of the file.
type document struct {
	NodeName       string            `json:"nodeName"`
	StateDir       *string           `json:"stateDir"`
	RuntimeDir     *string           `json:"runtimeDir"`
	CNIConfDir     *string           `json:"cniConfDir"`
	CNIBinDir      *string           `json:"cniBinDir"`
	CNIDataDir     *string           `json:"cniDataDir"`
	CNIMode        string            `json:"cniMode"`
	CNI            CNI               `json:"cni"`
	LAN            lanDoc            `json:"lan"`
	Membership     Membership        `json:"membership"`
	Listen         []string          `json:"listen"`
	MetricsAddress *string           `json:"metricsAddress"`
	Relay          relayDocument     `json:"relay"`
	TUNQueues      int               `json:"tunQueues"`
	Discovery      discoveryDocument `json:"discovery"`
	Punch          Punch             `json:"punch"`
	// Nodes holds settings of single nodes, by name.
	Nodes map[string]nodeDocument `json:"nodes"`
}

type discoveryDocument struct {
	MDNS        *bool `json:"mdns"`
	PortMapping *bool `json:"portMapping"`
}

// Punch is the `punch` key: optional means to get a direct path.
type Punch struct {
	// Birthday enables port guessing for peers that nothing else reaches; off by default.
	Birthday bool `json:"birthday"`
}

// Discovery is the `discovery` key: what the node queries in its own network. All of it
// is on by default.
type Discovery struct {
	MDNS        bool // find members of the same LAN by multicast DNS
	PortMapping bool // ask the router for a port (UPnP, PCP, NAT-PMP)
}

// or is what p points to, or byDefault where the key is absent.
func or(p *bool, byDefault bool) bool {
	if p == nil {
		return byDefault
	}
	return *p
}

// LAN is the `lan` key: paths that bypass the tunnel, between nodes that reach each
// other at private addresses.
type LAN struct {
	Native    bool
	VXLAN     bool
	VXLANPort uint16 // the same on every node
}

type lanDoc struct {
	Native    *bool `json:"native"`
	VXLAN     *bool `json:"vxlan"`
	VXLANPort *int  `json:"vxlanPort"`
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
}

// Load reads the configuration at path, with defaults from the environment and the
// host. The error names path; it is a *mesh.Invalid if the content is wrong. Every
// error is for the operator to fix (exit code 2).
func Load(path string) (Config, error) {
	return load(path, os.Getenv("NODE_NAME"), os.Hostname)
}

func load(path, nodeName string, hostname func() (string, error)) (Config, error) {
	data, err := ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	return parse(path, data, nodeName, hostname)
}

// Parse reads the content of a configuration file for the named node. The error is a
// *mesh.Invalid that names path.
func Parse(path string, data []byte, nodeName string) (Config, error) {
	return parse(path, data, nodeName, nil)
}

func parse(path string, data []byte, nodeName string, hostname func() (string, error)) (Config, error) {
	bad := mesh.Invalid{File: path}
	var doc document
	strict.Unmarshal(data, &doc, &bad)
	if err := bad.Err(); err != nil {
		return Config{}, err
	}
	name := checkNodeName(&bad, doc.NodeName, nodeName, hostname)
	c := doc.checkFor(&bad, data, name)
	c.NodeName = name
	return c, bad.Err()
}

// check is the configuration that d describes, without the node's name.
func (d document) check(bad *mesh.Invalid) Config {
	c := Config{
		StateDir:       Dir(bad, "stateDir", d.StateDir, DefaultStateDir),
		RuntimeDir:     Dir(bad, "runtimeDir", d.RuntimeDir, DefaultRuntimeDir),
		CNIConfDir:     optionalDir(bad, "cniConfDir", d.CNIConfDir, DefaultCNIConfDir),
		CNIBinDir:      optionalDir(bad, "cniBinDir", d.CNIBinDir, DefaultCNIBinDir),
		CNIDataDir:     Dir(bad, "cniDataDir", d.CNIDataDir, DefaultCNIDataDir),
		CNIMode:        checkCNIMode(bad, d.CNIMode),
		CNI:            d.CNI.check(bad),
		LAN:            d.LAN.check(bad),
		Membership:     d.Membership.Check(bad),
		Listen:         Listen(bad, "listen", d.Listen),
		MetricsAddress: HostPort(bad, "metricsAddress", d.MetricsAddress, DefaultMetricsAddress),
	}
	if c.TUNQueues = d.TUNQueues; c.TUNQueues < 0 || c.TUNQueues > MaxTUNQueues {
		bad.Addf("tunQueues", "%d is not between 0 and %d; the key has no effect and can be removed", c.TUNQueues, MaxTUNQueues)
	}
	c.Relay = d.Relay.check(bad, c.Listen)
	c.Punch = d.Punch
	c.Discovery = Discovery{MDNS: or(d.Discovery.MDNS, true), PortMapping: or(d.Discovery.PortMapping, true)}
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

func checkNodeName(bad *mesh.Invalid, written, env string, hostname func() (string, error)) string {
	name, from := written, ""
	if name == "" {
		name, from = env, " (from $NODE_NAME)"
	}
	if name == "" {
		host, err := hostname()
		if err != nil {
			bad.Addf("nodeName", "not set, and the host name is unknown (%v); set it", err)
			return ""
		}
		// Kubernetes names a node after its host name, in lower case.
		name, from = strings.ToLower(host), " (from the host name)"
	}
	if err := mesh.CheckNodeName(name); err != nil {
		bad.Addf("nodeName", "%v%s", err, from)
	}
	return name
}
