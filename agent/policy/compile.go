package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// members lists the groups of a rule: its peers and, for named ports of an egress rule, its peers that have them. Without peers
// these are all pods.
func (r rule) members(d Direction) []Group {
	out := slices.Clone(r.groups)
	if d == Ingress {
		return out // named ports are those of the local pod
	}
	peers := r.groups
	if r.any {
		peers = []Group{everyPod()}
	}
	for _, n := range r.named {
		for _, g := range peers {
			g.port = n
			out = append(out, g)
		}
	}
	return out
}

// Compile says what all policies of the cluster mean for pods of this node. members returns who is in a group.
func Compile(all []Policy, local []Pod, members func(Group) []Member) Rules {
	out := Rules{Pods: map[string][2]string{}, Namespaces: map[string][2]bool{}, Chains: map[string]Chain{}, Sets: map[string][]Member{}}
	all = slices.SortedFunc(slices.Values(all), func(a, b Policy) int { return strings.Compare(a.key(), b.key()) }) // names of chains do not depend on it
	for _, p := range all {
		in := out.Namespaces[p.Namespace]
		out.Namespaces[p.Namespace] = [2]bool{in[0] || p.isolates[0], in[1] || p.isolates[1]}
	}
	for _, pod := range local {
		if !pod.counts() {
			continue
		}
		var chains [2]string
		for _, d := range []Direction{Ingress, Egress} {
			if c := chainOf(all, pod, d); len(c.Policies) > 0 {
				chains[d] = out.add(c)
			}
		}
		out.Pods[pod.Namespace+"/"+pod.Name] = chains
	}
	used := map[string]bool{}
	for _, c := range out.Chains {
		for _, a := range c.Accepts {
			for _, id := range slices.Concat(a.Groups, a.Named) {
				used[id] = true
			}
		}
	}
	for _, g := range Groups(all) {
		if used[g.ID()] {
			out.Sets[g.ID()] = members(g)
		}
	}
	return out
}

// chainOf is what policies allow a pod in one direction; none of them isolates it where there are no Policies.
func chainOf(all []Policy, pod Pod, d Direction) (out Chain) {
	for _, p := range all {
		if !p.isolates[d] || p.Namespace != pod.Namespace || !p.pods.Matches(labels.Set(pod.Labels)) {
			continue
		}
		out.Policies = append(out.Policies, p.key())
		for _, r := range p.rules[d] {
			if a, matches := r.accept(pod, d); matches {
				a.Policy = p.key()
				out.Accepts = append(out.Accepts, a)
			}
		}
	}
	return out
}

// accept is a rule as it is for one pod; matches is false where it can match nothing.
func (r rule) accept(pod Pod, d Direction) (a Accept, matches bool) {
	a = Accept{Any: r.any, Blocks: r.blocks, Ports: slices.Clone(r.ports)}
	for _, g := range r.groups {
		a.Groups = append(a.Groups, g.ID())
	}
	switch {
	case d == Ingress:
		for _, c := range pod.Ports {
			if slices.Contains(r.named, c.NamedPort) {
				a.Ports = append(a.Ports, Ports{c.Protocol, c.Number, c.Number})
			}
		}
	case len(r.named) > 0:
		for _, g := range r.members(d)[len(r.groups):] {
			a.Named = append(a.Named, g.ID())
		}
	}
	a.None = !r.all && len(a.Ports) == 0
	return a, !a.None || len(a.Named) > 0
}

// add returns the name of a chain, and notes it. Pods with the same policies share one.
func (r Rules) add(c Chain) string {
	b, _ := json.Marshal(c) // it has no values that JSON lacks
	sum := sha256.Sum256(b)
	name := hex.EncodeToString(sum[:8])
	r.Chains[name] = c
	return name
}
