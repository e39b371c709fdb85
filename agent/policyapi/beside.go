package policyapi

import (
	"maps"
	"path"
	"slices"
	"strings"

	"edgemesh/agent/podgroups"
)

// engines are programs that enforce NetworkPolicies, by the last part of their image's name.
var engines = map[string]string{ //nolint:gochecknoglobals // a constant
	"kube-router": "kube-router", "kube-network-policies": "kube-network-policies", "weave-npc": "Weave Net", "weave-kube": "Weave Net", "kube-ovn": "Kube-OVN",
	"cilium": "Cilium", "calico-node": "Calico", "node": "Calico", "antrea-agent-ubuntu": "Antrea", "antrea-agent-ubi": "Antrea", "antrea-ubuntu": "Antrea",
}

// engine is another program that enforces NetworkPolicies on this node, which its own pod here shows: ready, in the host's network, as
// only an administrator may make one. "" for none.
func engine(own map[string]*podgroups.Pod) string {
	for _, key := range slices.Sorted(maps.Keys(own)) {
		p := own[key]
		if !p.As.HostNetwork || p.As.Ended || !p.Ready || p.Meta.DeletionTimestamp != nil {
			continue
		}
		for _, image := range p.Images {
			name, _, _ := strings.Cut(path.Base(image), ":")
			name, _, _ = strings.Cut(name, "@")
			if name == "node" && !strings.Contains(image, "calico/") {
				continue
			}
			if e := engines[name]; e != "" {
				return e + " (pod " + key + ")"
			}
		}
	}
	return ""
}
