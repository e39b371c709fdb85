// Package manifests holds the files of this directory that `edgemesh-agent install`
// and `edgemesh-relay install` hand out. They can be used by hand as they are; what differs per node is
// replaced here.
package manifests

import (
	_ "embed"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"edgemesh/internal/endpoint"
)

//go:embed systemd/edgemesh-agent.service
var agentUnit string

// RelayUnit is the relay's systemd unit.
//
//go:embed systemd/edgemesh-relay.service
var RelayUnit string

//go:embed static-pod/edgemesh-agent.yaml
var agentPod string

// Networkd and NetworkManager have these programs leave the pod network's interfaces alone.
var (
	//go:embed network/10-edgemesh.network
	Networkd string
	//go:embed network/10-edgemesh.conf
	NetworkManager string
)

// AgentUnit is the agent's systemd unit, for binaries in prefix/bin, and a configuration that names these directories to
// write to, stateDir first; none: those of the defaults.
func AgentUnit(prefix string, writes ...string) string {
	out := strings.Replace(agentUnit, "ExecStart=/usr/local/bin/", "ExecStart="+strings.TrimSuffix(prefix, "/")+"/bin/", 1)
	if len(writes) == 0 {
		return out
	}
	paths := make([]string, len(writes))
	for i, p := range writes {
		paths[i] = word(p)
	}
	line := func(start, rest string) {
		old := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(start) + " ?/.*$")
		out = old.ReplaceAllLiteralString(out, start+rest)
	}
	line("ExecStartPre=+/bin/mkdir -p -m 0700", " "+paths[0])
	line("ExecStartPre=+/bin/mkdir -p", " "+strings.Join(paths[1:], " "))
	line("ReadWritePaths=", strings.Join(paths, " ")+" /run/xtables.lock")
	return out
}

// word writes a path in a unit, quoted where it must be.
func word(path string) string {
	path = strings.ReplaceAll(path, "%", "%%")
	if regexp.MustCompile(`^[A-Za-z0-9._/%-]+$`).MatchString(path) {
		return path
	}
	return strconv.Quote(path)
}

// Pod is what differs from node to node in the agent's static pod.
type Pod struct {
	Image   string  // "" leaves the image of this release
	Health  string  // HOST:PORT of the agent's metricsAddress; "" is off, and the probes with it
	LowPort bool    // the agent listens on a port below 1024, for peers or metrics
	Mounts  []Mount // of what the node's configuration names
}

// Mount is a file or directory of the node, at the same path in the pod.
type Mount struct {
	Name     string // DNS label, of the volume
	Path     string
	Type     string // of the hostPath: Directory, DirectoryOrCreate, File
	ReadOnly bool
}

// named is the line of the static pod after which its mounts, and its volumes, are
// those that the configuration names.
const named = "# What /etc/edgemesh/agent.yaml names:\n"

// AgentPod is the agent's static pod.
func AgentPod(p Pod) string {
	head, rest, _ := strings.Cut(agentPod, named)
	_, between, _ := strings.Cut(rest, "  volumes:\n")
	middle, _, _ := strings.Cut(between, named)
	var b strings.Builder
	b.WriteString(head + named)
	for _, m := range p.Mounts {
		readOnly := ""
		if m.ReadOnly {
			readOnly = ", readOnly: true"
		}
		fmt.Fprintf(&b, "        - {name: %s, mountPath: %s%s}\n", m.Name, scalar(m.Path), readOnly)
	}
	b.WriteString("  volumes:\n" + middle + named)
	for _, m := range p.Mounts {
		fmt.Fprintf(&b, "    - {name: %s, hostPath: {path: %s, type: %s}}\n", m.Name, scalar(m.Path), m.Type)
	}
	out := b.String()
	if p.Image != "" {
		line := regexp.MustCompile(`(?m)^(\s+image: )\S+`)
		out = line.ReplaceAllString(out, "${1}"+strings.ReplaceAll(p.Image, "$", "$$"))
	}
	if p.LowPort {
		out = strings.Replace(out, "NET_RAW]", "NET_RAW, NET_BIND_SERVICE]", 1)
	}
	return probes(out, p.Health)
}

// scalar writes a path in YAML, quoted where it must be.
func scalar(path string) string {
	if regexp.MustCompile(`^[A-Za-z0-9._/-]+$`).MatchString(path) {
		return path
	}
	return strconv.Quote(path)
}

// probes makes kubelet probe where the agent answers. An address of all interfaces is
// probed on loopback.
func probes(pod, health string) string {
	host, port, err := net.SplitHostPort(health)
	if err != nil {
		return regexp.MustCompile(`(?m)^      # An agent that waits.*\n|^      \w+Probe:\n(        .*\n)*`).ReplaceAllString(pod, "")
	}
	host = endpoint.Local(host)
	if strings.Contains(host, ":") {
		host = `"` + host + `"`
	}
	return strings.ReplaceAll(pod, "host: 127.0.0.1, port: 9469,", fmt.Sprintf("host: %s, port: %s,", host, port))
}

// AgentConfig is a commented agent.yaml, valid as it is.
//
//go:embed config/agent.yaml
var AgentConfig string

//go:embed config/cluster.yaml
var clusterFile string

// Cluster is a commented cluster.yaml whose one member is the named node, with the first
// block of the range.
func Cluster(node, peerID string) string {
	return strings.Replace(clusterFile, "nodes:\n", "nodes:\n"+Member(node, peerID, netip.MustParsePrefix("10.244.1.0/24")), 1)
}

// Member is a node's line of cluster.yaml.
func Member(node, peerID string, blocks ...netip.Prefix) string {
	list := ""
	for _, b := range blocks {
		list += ", " + b.String()
	}
	return fmt.Sprintf("  - {name: %s, peerID: %s, podCIDRs: [%s]}\n", scalar(node), peerID, strings.TrimPrefix(list, ", "))
}
