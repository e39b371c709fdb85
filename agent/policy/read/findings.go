package read

import (
	"maps"
	"slices"
	"time"

	"edgemesh/agent/findings"
)

// lasting is how long what the API answers at a start, or during an upgrade, is no finding.
const lasting = time.Minute

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
