package policyapi

import (
	"maps"
	"path"
	"slices"
	"strings"

	"edgemesh/agent/podgroups"
)

// engines are programs that enforce NetworkPolicies for pods of any plugin, by the last part of their image's name. Those of other plugins
// judge the interfaces that they made: beside our plugin they judge none of our pods.
var engines = map[string]string{"kube-router": "kube-router", "kube-network-policies": "kube-network-policies"} //nolint:gochecknoglobals // a constant

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
			if e := engines[name]; e != "" {
				return e + " (pod " + key + ")"
			}
		}
	}
	return ""
}
