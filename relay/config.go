package main

import (
	"fmt"
	"path/filepath"

	ma "github.com/multiformats/go-multiaddr"

	agent "edgemesh/agent/config"
	"edgemesh/agent/config/strict"
	"edgemesh/agent/mesh"
)

const (
	// defaultConfig is read when neither --config nor --membership is given.
	defaultConfig = "/etc/edgemesh/relay.yaml"
	// defaultStateDir differs from the agent's: they must not share a key.
	defaultStateDir = "/var/lib/edgemesh-relay"
	// defaultMetrics is reachable from this host only.
	defaultMetrics = "127.0.0.1:9470"
)

// config is the relay's configuration, complete and valid.
type config struct {
	file           string // where it was read, "" if from flags
	stateDir       string
	membership     agent.Membership
	listen         []ma.Multiaddr
	announce       []ma.Multiaddr // empty = addresses of the interfaces
	metricsAddress string         // host:port, "" = off
	limits         agent.RelayLimits
}

// document is the file as written. Pointers tell "" from absent.
type document struct {
	StateDir       *string                   `json:"stateDir"`
	Listen         []string                  `json:"listen"`
	Announce       []string                  `json:"announce"`
	Membership     agent.Membership          `json:"membership"`
	MetricsAddress *string                   `json:"metricsAddress"`
	Limits         agent.RelayLimitsDocument `json:"limits"`
}

// loadConfig reads the file at path. The error names it and every key to
// fix.
func loadConfig(path string) (config, error) {
	data, err := agent.ReadFile(path)
	if err != nil {
		return config{}, err
	}
	bad := mesh.Invalid{File: path}
	var doc document
	strict.Unmarshal(data, &doc, &bad)
	if err := bad.Err(); err != nil {
		return config{}, err
	}
	return doc.config(&bad)
}

// membershipConfig is the configuration where only --membership is given.
func membershipConfig(membership string) (config, error) {
	abs, err := filepath.Abs(membership)
	if err != nil {
		return config{}, fmt.Errorf("--membership %s: %w", membership, err)
	}
	doc := document{Membership: agent.Membership{File: abs}}
	return doc.config(&mesh.Invalid{})
}

func (d document) config(bad *mesh.Invalid) (config, error) {
	c := config{
		file:           bad.File,
		stateDir:       agent.Dir(bad, "stateDir", d.StateDir, defaultStateDir),
		membership:     d.Membership.Check(bad),
		listen:         agent.RelayListen(bad, "listen", d.Listen),
		metricsAddress: agent.HostPort(bad, "metricsAddress", d.MetricsAddress, defaultMetrics),
		limits:         d.Limits.Check(bad, "limits"),
	}
	if len(d.Listen) == 0 {
		var err error
		if c.listen, err = agent.AllAddresses(agent.RelayPort); err != nil {
			return config{}, err
		}
	}
	c.announce = agent.Announced(bad, "announce", d.Announce, c.listen)
	return c, bad.Err()
}
