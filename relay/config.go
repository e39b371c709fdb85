package main

import (
	"fmt"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	agent "edgemesh/agent/config"
	"edgemesh/agent/config/strict"
	"edgemesh/agent/mesh"
)

const (
	// defaultConfig is read when neither --config nor --membership is given.
	defaultConfig = "/etc/edgemesh/relay.yaml"
	// defaultStateDir differs from the agent's: one key must not serve both.
	defaultStateDir = "/var/lib/edgemesh-relay"
	// defaultMetrics answers to this host only.
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
	limits         limits
}

// document is the file as written. Pointers tell "" from absent.
type document struct {
	StateDir       *string          `json:"stateDir"`
	Listen         []string         `json:"listen"`
	Announce       []string         `json:"announce"`
	Membership     agent.Membership `json:"membership"`
	MetricsAddress *string          `json:"metricsAddress"`
	Limits         limitsDocument   `json:"limits"`
}

// loadConfig reads the file at path. The error names it and every key at fault;
// all are the operator's to mend.
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

// membershipConfig is the configuration that needs no file.
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
		listen:         agent.Listen(bad, "listen", d.Listen),
		metricsAddress: agent.HostPort(bad, "metricsAddress", d.MetricsAddress, defaultMetrics),
		limits:         d.Limits.check(bad),
	}
	if len(d.Listen) == 0 {
		var err error
		if c.listen, err = agent.AllAddresses(agent.RelayPort); err != nil {
			return config{}, err
		}
	}
	c.announce = announced(bad, d.Announce, c.listen)
	return c, bad.Err()
}

// announced checks the addresses the operator gives out. One without a transport
// stands for that host at every listening port.
func announced(bad *mesh.Invalid, list []string, listen []ma.Multiaddr) []ma.Multiaddr {
	var out []ma.Multiaddr
	for i, text := range list {
		field := fmt.Sprintf("announce[%d]", i)
		m, err := ma.NewMultiaddr(text)
		if err != nil {
			bad.Addf(field, "%q is not a multiaddr like /ip4/5.5.5.5 or /dns4/relay.example.org/tcp/%d: %v", text, agent.RelayPort, err)
			continue
		}
		if _, id := peer.SplitAddr(m); id != "" {
			bad.Addf(field, "%q: leave /p2p/… out, it is added", text)
			continue
		}
		host := ma.Cast(m[0].Bytes())
		switch m[0].Protocol().Code {
		case ma.P_IP4, ma.P_IP6, ma.P_DNS, ma.P_DNS4, ma.P_DNS6:
		default:
			bad.Addf(field, "%q does not begin with /ip4, /ip6, /dns, /dns4 or /dns6", text)
			continue
		}
		if len(m) > 1 {
			if !transportOf(m[1:]) {
				bad.Addf(field, "%q ends neither in /tcp/PORT nor in /udp/PORT/quic-v1", text)
				continue
			}
			out = append(out, m)
			continue
		}
		for _, l := range listen {
			out = append(out, host.Encapsulate(l[1:]))
		}
	}
	return ma.Unique(out)
}

// transportOf reports whether m is one of the transports we have, with a port.
func transportOf(m ma.Multiaddr) bool {
	switch {
	case len(m) == 1:
		return m[0].Protocol().Code == ma.P_TCP && m[0].Value() != "0"
	case len(m) == 2:
		return m[0].Protocol().Code == ma.P_UDP && m[1].Protocol().Code == ma.P_QUIC_V1 && m[0].Value() != "0"
	}
	return false
}
