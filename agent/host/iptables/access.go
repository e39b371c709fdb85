package iptables

import (
	"fmt"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// restricted reports whether pods may not go everywhere.
func restricted(f plan.Family) bool { return len(f.Access.Deny)+len(f.Access.Nodes) > 0 }

// hostRules say who reaches the ports of a node, whatever address they were translated from.
func hostRules(f plan.Family) []string {
	return expand(f,
		"{answers} -j RETURN",
		"-p {icmp} -j RETURN",
		"{host-port} -j RETURN",
		"-s {node} -j RETURN",
		"-j DROP",
	)
}

// denyRules keep pods from what is outside of the cluster, and from this node's addresses there. Who is outside may be
// answered.
func denyRules(f plan.Family) []string {
	return expand(f,
		"{answers} -j RETURN",
		"-d {range} -j RETURN",
		"-d {denied} -j DROP",
	)
}

// port matches packets to a port.
func port(p mesh.HostPort) string {
	return fmt.Sprintf("-p %[1]s -m %[1]s --dport %[2]d", p.Proto, p.Port)
}

// accessWords are those of hostRules, denyRules and forwardRules.
func accessWords(f plan.Family) map[string][]string {
	words := map[string][]string{"pods": {"-i " + plan.BridgeName}}
	if f.Keep {
		words["pods"] = nil
		for _, b := range f.Blocks { // the other plugin's interfaces are not known
			words["pods"] = append(words["pods"], fmt.Sprintf("-s %s ! -i lo", b))
		}
	}
	if f.Access.Closed {
		words["closed"] = []string{""}
	}
	for _, m := range f.Access.Nodes {
		words["node"] = append(words["node"], m.String())
	}
	for _, p := range f.Access.Ports {
		words["host-port"] = append(words["host-port"], port(p))
	}
	for _, p := range f.Forward.From {
		words["forwarded"] = append(words["forwarded"], p.String())
	}
	for _, p := range f.Forward.Ports {
		words["forward-port"] = append(words["forward-port"], port(p))
	}
	for _, p := range f.Access.Deny {
		words["denied"] = append(words["denied"], p.String())
	}
	for _, m := range f.Access.Inside {
		words["denied"] = append(words["denied"], m.String())
	}
	if len(f.Access.Deny) > 0 {
		words["deny"] = []string{""}
	}
	if restricted(f) {
		words["restricted"] = []string{""}
	}
	return words
}
