package read

import (
	"maps"
	"path"
	"slices"
	"strings"

	"edgemesh/agent/policy/podgroups"
)

// engines are programs that enforce NetworkPolicies for pods of any plugin, by the last part of their image's name. Those of other plugins
// judge the interfaces that they made: beside our plugin they judge none of our pods.
var engines = map[string]string{"kube-router": "kube-router", "kube-network-policies": "kube-network-policies"} //nolint:gochecknoglobals // a constant

// usualNamespace has the DaemonSets of such programs unless the PodNetwork says otherwise.
const usualNamespace = "kube-system"

// engine is another program that enforces NetworkPolicies on this node, which its own pod here shows: ready, in the host's network, of a
// DaemonSet in one of namespaces, nil for the usual one. passer is a pod that passes for one and is not: who may make such pods could
// switch off all policies of a node. Both are "" for none.
func engine(own map[string]*podgroups.Pod, namespaces []string) (is, passer string) {
	if len(namespaces) == 0 {
		namespaces = []string{usualNamespace}
	}
	for _, key := range slices.Sorted(maps.Keys(own)) {
		p := own[key]
		if !p.As.HostNetwork || p.As.Ended || !p.Ready || p.Meta.DeletionTimestamp != nil {
			continue
		}
		for _, image := range p.Images {
			name, _, _ := strings.Cut(path.Base(image), ":")
			name, _, _ = strings.Cut(name, "@")
			switch e := engines[name]; {
			case e == "":
			case p.Daemon && slices.Contains(namespaces, p.As.Namespace):
				return e + " (pod " + key + ")", ""
			default:
				passer = key
			}
		}
	}
	return "", passer
}
