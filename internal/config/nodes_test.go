package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"edgemesh/internal/membership/mesh"
)

const shared = `
membership: {kubernetes: {}}
listen: [/ip4/0.0.0.0/udp/4001/quic-v1]
lan: {vxlanPort: 5215}
cni: {keepFor: 72h, chained: [{type: portmap, snat: true}]}
nodes:
  cloud-1:
    listen: [/ip4/0.0.0.0/tcp/4470, /ip4/0.0.0.0/udp/4470/quic-v1]
    relay: {enabled: true, announce: [/ip4/5.5.5.5]}
    tunQueues: 2
  edge.example.org:
    lan: {native: false}
    cni: {chained: [{type: bandwidth}]}
    discovery: {mdns: false}
    punch: {guess: never}
  edge-3: {cniMode: keep}
  edge-4:
`

func TestSettingsOfSingleNodes(t *testing.T) {
	path := write(t, shared)
	of := func(name string) Config {
		c, err := load(path, name, hostNamed("h"))
		if err != nil || c.NodeName != name {
			t.Fatalf("%s: %+v, %v", name, c, err)
		}
		return c
	}
	if c := of("cloud-1"); fmt.Sprint(c.Listen) != "[/ip4/0.0.0.0/tcp/4470 /ip4/0.0.0.0/udp/4470/quic-v1]" || c.TUNQueues != 2 ||
		!c.Relay.Enabled || fmt.Sprint(c.Relay.Announce) != "[/ip4/5.5.5.5/tcp/4470 /ip4/5.5.5.5/udp/4470/quic-v1]" {
		t.Errorf("cloud-1: %+v", c)
	} else if c.Key("listen") != "nodes.cloud-1.listen" || c.Key("lan") != "lan" {
		t.Errorf("keys %s, %s", c.Key("listen"), c.Key("lan"))
	}
	// Mappings are joined, lists are replaced.
	if c := of("edge.example.org"); c.LAN != (LAN{VXLAN: true, VXLANPort: 5215}) || c.CNI.KeepFor != "72h" || fmt.Sprint(c.CNI.Chained) != "[map[type:bandwidth]]" ||
		c.Discovery.MDNS || !c.Discovery.PortMapping || c.Punch.Guess != GuessNever {
		t.Errorf("edge.example.org: %+v", c)
	}
	if c := of("edge-3"); c.Punch.Guess != GuessAuto || c.CNIMode != CNIKeep || c.LAN.VXLANPort != 5215 {
		t.Errorf("edge-3: %+v", c)
	}
	for _, name := range []string{"edge-4", "edge-5"} {
		c := of(name)
		if c.CNIMode != CNIOwn || c.Relay.Enabled || c.LAN != (LAN{true, true, 5215}) || fmt.Sprint(c.CNI.Chained) != "[map[snat:true type:portmap]]" ||
			fmt.Sprint(c.Listen) != "[/ip4/0.0.0.0/udp/4001/quic-v1]" {
			t.Errorf("%s, which has no settings of its own: %+v", name, c)
		}
	}
}

// A mistake in one node's settings is reported by every agent, once, by its key.
func TestSettingsOfSingleNodesRefused(t *testing.T) {
	for text, want := range map[string]string{
		"nodes: {edge-9: {listen: [0.0.0.0:1]}}":                              `nodes.edge-9.listen[0]: "0.0.0.0:1" is not a multiaddr`,
		"nodes: {edge-9: {cniMode: x}}":                                       `nodes.edge-9.cniMode: "x" is neither`,
		"nodes: {edge-9: {tunQueues: 99}}":                                    "nodes.edge-9.tunQueues: 99 is not between",
		"nodes: {edge-9: {tunQueues: many}}":                                  "nodes.edge-9.tunQueues: must be a whole number",
		"nodes: {edge-9: {stateDir: /x}}":                                     "nodes.edge-9.stateDir: unknown field; known here: cniMode, ",
		"nodes: {edge-9: {Relay: {}}}":                                        "nodes.edge-9.Relay: unknown field; did you mean relay?",
		"nodes: {edge-9: {relay: {enable: true}}}":                            "nodes.edge-9.relay.enable: unknown field",
		"nodes: {edge-9: {relay: {enabled: true, announce: [/ip4/5.5.5.5]}}}": "nodes.edge-9.relay.announce: needs listen",
		"nodes: {Edge_9: {}}":                                                 "nodes: ",
		"nodes: [edge-9]":                                                     "nodes: must be a mapping",
		"nodes: {edge-9: true}":                                               "nodes.edge-9: must be a mapping",
		"cniMode: z\nnodes: {edge-9: {tunQueues: 1}}":                         `agent.yaml: cniMode: "z" is neither`,
		"listen: [/ip4/0.0.0.0/tcp/1]\nrelay: {enabled: true, announce: [/ip4/5.5.5.5]}\nnodes: {edge-9: {listen: []}}": "relay.announce: needs listen: a port that is forwarded to this node must be fixed (together with nodes.edge-9)",
	} {
		_, err := load(write(t, text+"\nmembership: {file: /m.yaml}\n"), "edge-1", hostNamed("h"))
		var bad *mesh.Invalid
		if !errors.As(err, &bad) || len(bad.Problems) != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v\nwant one line with %q", text, err, want)
		}
	}
}
