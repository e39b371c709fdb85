package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/durable"
)

// RelayPort is what a relay listens on by default, TCP and UDP. It is outside
// the range agents choose from, so that both fit on one host.
const RelayPort = 4470

const (
	// PortFile, in the state directory, holds the chosen port in decimal.
	PortFile = "port"
	// Agents choose below the NodePorts (30000) and the ephemeral ports (32768).
	minPort = 20000
	maxPort = 29999
	// edgeMeshPort is where KubeEdge's EdgeMesh listens; it could not start after us.
	edgeMeshPort = 20006
	// portTries bounds the search for a free port.
	portTries = 100
)

// ErrPort means that no stable port is available.
var ErrPort = errors.New("no listen port")

// ResolveListen fills an empty Listen: one port, the same for TCP and QUIC over
// IPv4 and IPv6, chosen at random once and stored in StateDir (which must exist).
// Nodes behind one NAT must not share a port: the NAT would remap the second one, but
// only towards the relay, and look symmetric. The error wraps ErrPort; Listen is filled all the same where the port was not
// stored.
func (c *Config) ResolveListen() error {
	if len(c.Listen) > 0 {
		return nil
	}
	port, err := stablePort(filepath.Join(c.StateDir, PortFile))
	if port != 0 {
		c.Listen = AllAddresses(port)
	}
	return err
}

// AnyListen is what ResolveListen fills in, on a port that is free now and not stored.
func AnyListen() ([]ma.Multiaddr, error) {
	port, err := freePort()
	return AllAddresses(port), err
}

// AllAddresses are the addresses for TCP and QUIC on port, on all interfaces; IPv6 only
// if the host has it.
func AllAddresses(port int) []ma.Multiaddr {
	hosts := []string{"/ip4/0.0.0.0"}
	if ipv6() {
		hosts = append(hosts, "/ip6/::")
	}
	var out []ma.Multiaddr
	for _, h := range hosts {
		for _, format := range []string{"%s/tcp/%d", "%s/udp/%d/quic-v1"} {
			out = append(out, ma.StringCast(fmt.Sprintf(format, h, port)))
		}
	}
	return out
}

// ipv6 reports whether this host can listen on IPv6 at all.
func ipv6() bool {
	l, err := net.Listen("tcp6", "[::]:0")
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// stablePort returns a port beside the error where it cannot be stored.
func stablePort(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		if port, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && port > 0 && port <= 65535 {
			return port, nil
		}
		// Torn by a power cut: nobody relies on the old port, so any will do.
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: %w", ErrPort, err)
	}
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	if err := durable.WriteFile(path, []byte(strconv.Itoa(port)+"\n"), 0o600); err != nil {
		return port, fmt.Errorf("%w: store the chosen one: %w", ErrPort, err)
	}
	return port, nil
}

func freePort() (int, error) {
	for range portTries {
		if port := minPort + rand.IntN(maxPort-minPort+1); port != edgeMeshPort && free(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("%w: %d random ports between %d and %d were all in use; set listen", ErrPort, portTries, minPort, maxPort)
}

// free reports whether port can be bound for TCP and UDP now.
func free(port int) bool {
	addr := fmt.Sprintf(":%d", port)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer l.Close()
	p, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	p.Close()
	return true
}
