package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

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

// Compile says what all policies of the cluster mean for pods of this node. namespaces are the labels of those that exist and are known: of
// others, ClusterNetworkPolicies close all pods. members returns who is in a group.
func Compile(all []Policy, namespaces map[string]map[string]string, local []Pod, members func(Group) []Member) Rules {
	out := Rules{Pods: map[string][2]string{}, Namespaces: Isolated(all), Chains: map[string]Chain{}, Sets: map[string][]Member{}}
	cluster := out.Namespaces[ClusterKind]
	if cluster != [2]bool{} {
		out.Namespaces[EveryNamespace] = cluster
		for name, l := range namespaces {
			for _, p := range all {
				if p.Cluster() && p.isolates != [2]bool{} && p.subject.namespaces.Matches(labels.Set(l)) {
					out.Namespaces[name] = either(out.Namespaces[name], p.isolates)
				}
			}
		}
		out.SetExcept(slices.Sorted(maps.Keys(namespaces)))
	}
	all = slices.SortedFunc(slices.Values(all), order)
	for _, pod := range local {
		if !pod.counts() {
			continue
		}
		namespace, known := namespaces[pod.Namespace]
		if !known && cluster != [2]bool{} {
			continue // closed
		}
		var chains [2]string
		for _, d := range []Direction{Ingress, Egress} {
			if c := chainOf(all, namespace, pod, d); c.applies() {
				chains[d] = out.add(c)
			}
		}
		out.Pods[pod.Namespace+"/"+pod.Name] = chains
	}
	used := map[string]bool{}
	for _, c := range out.Chains {
		for _, id := range c.Groups() {
			used[id] = true
		}
	}
	for _, g := range Groups(all) {
		if used[g.ID()] {
			out.Sets[g.ID()] = members(g)
		}
	}
	out.lack(all, local)
	return out
}

// chainOf is what policies, in their order, say of a pod in one direction. namespace are the labels of its namespace.
func chainOf(all []Policy, namespace map[string]string, pod Pod, d Direction) (out Chain) {
	var baseline []string
	for _, p := range all {
		if !p.isolates[d] {
			continue
		}
		into, by := &out.Accepts, &out.Policies
		switch {
		case p.subject == nil:
			if p.Namespace != pod.Namespace || !p.pods.Matches(labels.Set(pod.Labels)) {
				continue
			}
		case !p.subject.has(namespace, pod):
			continue
		case p.tier == tierAdmin:
			into, by = &out.Admin, &out.Cluster
		default:
			into, by = &out.Baseline, &baseline
		}
		*by = append(*by, p.Key())
		for _, r := range p.rules[d] {
			if a, matches := r.accept(pod, d); matches {
				a.Policy, a.Action = p.Key(), r.action
				*into = append(*into, a)
			}
		}
	}
	if len(out.Policies) > 0 {
		out.Baseline = nil // NetworkPolicies have the last word
	} else {
		out.Cluster = append(out.Cluster, baseline...)
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
			if slices.ContainsFunc(r.named, func(n NamedPort) bool { return n.means(c.NamedPort) }) {
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

// lack notes the first ports by name that nobody has, of policies that select one of these pods.
func (r *Rules) lack(all []Policy, local []Pod) {
	selected := [2]map[string][]Pod{{}, {}}
	for _, pod := range local {
		for d, chain := range r.Pods[pod.Namespace+"/"+pod.Name] {
			for _, key := range r.Chains[chain].By() {
				selected[d][key] = append(selected[d][key], pod)
			}
		}
	}
	has := func(g Group) bool { return len(r.Sets[g.ID()]) > 0 }
	for _, p := range all {
		seen := map[NamedPort]bool{}
		for d, of := range selected {
			pods := of[p.Key()]
			if len(pods) == 0 {
				continue
			}
			for _, x := range p.rules[d] {
				if Direction(d) == Egress && len(x.groups) > 0 && !slices.ContainsFunc(x.groups, has) {
					continue // it has no peers
				}
				for _, n := range x.named {
					l := Lack{Policy: p.Key(), Direction: Direction(d), Port: n.Name}
					if n.Protocol != 0 {
						l.Port += " (" + ProtocolName(n.Protocol) + ")"
					}
					if l.Direction == Ingress {
						if seen[n] || slices.ContainsFunc(pods, func(pod Pod) bool {
							return slices.ContainsFunc(pod.Ports, func(c ContainerPort) bool { return n.means(c.NamedPort) })
						}) {
							continue
						}
						seen[n] = true
					} else {
						who := rule{any: x.any, groups: x.groups, named: []NamedPort{n}}.members(Egress)[len(x.groups):]
						if slices.ContainsFunc(who, has) {
							continue
						}
						for _, g := range who {
							l.Groups = append(l.Groups, g.ID())
						}
					}
					if r.Lacks = append(r.Lacks, l); len(r.Lacks) == mostLacks {
						return
					}
				}
			}
		}
	}
}

// add returns the name of a chain, and notes it. Pods with the same policies share one.
func (r Rules) add(c Chain) string {
	b, _ := json.Marshal(c) // it has no values that JSON lacks
	sum := sha256.Sum256(b)
	name := hex.EncodeToString(sum[:8])
	r.Chains[name] = c
	return name
}

// Without is what a group means of which not all is known: a rule that accepts counts the members that are known, any other denies all.
func (r *Rules) Without(missing map[string]bool) {
	lacks := func(a Accept) bool {
		return a.Action != ActionAccept && slices.ContainsFunc(slices.Concat(a.Groups, a.Named), func(id string) bool { return missing[id] })
	}
	r.Lacks = slices.DeleteFunc(r.Lacks, func(l Lack) bool {
		return slices.ContainsFunc(l.Groups, func(id string) bool { return missing[id] })
	})
	for pod, chains := range r.Pods {
		for d, name := range chains {
			c := r.Chains[name]
			if !slices.ContainsFunc(c.All(), lacks) {
				continue
			}
			for _, rules := range []*[]Accept{&c.Admin, &c.Baseline} {
				*rules = slices.Clone(*rules)
				for i, a := range *rules {
					if lacks(a) {
						(*rules)[i] = Accept{Policy: a.Policy, Action: ActionDeny, Any: true}
					}
				}
			}
			chains[d] = r.add(c)
		}
		r.Pods[pod] = chains
	}
}
