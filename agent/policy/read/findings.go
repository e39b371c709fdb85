package read

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"edgemesh/agent/findings"
	"edgemesh/agent/policy/podgroups"
)

// Findings are what there is to say of policies of the API.
func (l *Live) Findings() (out []findings.Finding) {
	const id = "network-policy"
	s := l.Status()
	if s.Engine != "" {
		out = append(out, findings.Notef(id, "%s enforces NetworkPolicies on this node, and the agent does not", s.Engine))
	}
	if s.Passer != "" && !s.Off && s.Engine == "" {
		out = append(out, findings.Warningf(id, "if it is to enforce NetworkPolicies in place of the agent, run it as a DaemonSet in "+usualNamespace+", or name its namespace in enforcerNamespaces of the PodNetwork",
			"pod %s has the image of a program that enforces NetworkPolicies; it is not a DaemonSet's in a namespace that the PodNetwork names, so the agent enforces them all the same", s.Passer))
	}
	if l.cluster.Load() && !s.Off && s.Engine == "" {
		out = append(out, findings.Warningf(id, "podDenyCIDRs in PodNetwork denies metadata addresses and LANs; use NetworkPolicy for the rest",
			"ClusterNetworkPolicy objects exist; this network does not enforce them"))
	}
	if s.Trouble != nil && time.Since(s.Since) >= lasting {
		out = append(out, findings.Warningf(id, "fix what it names; `networkPolicy: \"off\"` in the PodNetwork silences this", "not every policy of the API is in force, those that were stay: %v", s.Trouble))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Invalid)) {
		out = append(out, findings.Warningf(id, "correct the NetworkPolicy "+key, "NetworkPolicy %s lets nothing pass to and from the pods that it selects: %v", key, s.Invalid[key]))
	}
	return out
}

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
