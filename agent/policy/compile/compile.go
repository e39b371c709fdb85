package compile

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

// Isolated are the namespaces with policies, and the directions in which one of them isolates.
func Isolated(all []Policy) map[string][2]bool {
	out := map[string][2]bool{}
	for _, p := range all {
		if p.isolates != [2]bool{} {
			out[p.Namespace] = either(out[p.Namespace], p.isolates)
		}
	}
	return out
}

func either(a, b [2]bool) [2]bool { return [2]bool{a[0] || b[0], a[1] || b[1]} }

// Compile says what all policies of the cluster mean for pods of this node. members returns who is in a group.
func Compile(all []Policy, local []Pod, members func(Group) []Member) Rules {
	out := Rules{Pods: map[string][2]string{}, Namespaces: Isolated(all), Chains: map[string]Chain{}, Sets: map[string][]Member{}}
	all = slices.SortedFunc(slices.Values(all), func(a, b Policy) int { return strings.Compare(a.Key(), b.Key()) }) // names of chains do not depend on it
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

// chainOf is what policies, in their order, say of a pod in one direction.
func chainOf(all []Policy, pod Pod, d Direction) (out Chain) {
	for _, p := range all {
		if !p.isolates[d] || p.Namespace != pod.Namespace || !p.pods.Matches(labels.Set(pod.Labels)) {
			continue
		}
		out.Policies = append(out.Policies, p.Key())
		for _, r := range p.rules[d] {
			if a, matches := r.accept(pod, d); matches {
				a.Policy = p.Key()
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

// lack notes the first ports by name that nobody has, of policies that select one of these pods.
func (r *Rules) lack(all []Policy, local []Pod) {
	selected := [2]map[string][]Pod{{}, {}}
	for _, pod := range local {
		for d, chain := range r.Pods[pod.Namespace+"/"+pod.Name] {
			for _, key := range r.Chains[chain].Policies {
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
					l := Lack{Policy: p.Key(), Direction: Direction(d), Port: n.Name + " (" + ProtocolName(n.Protocol) + ")"}
					if l.Direction == Ingress {
						if seen[n] || slices.ContainsFunc(pods, func(pod Pod) bool {
							return slices.ContainsFunc(pod.Ports, func(c ContainerPort) bool { return c.NamedPort == n })
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
	name := hex.EncodeToString(sum[:16]) // tenants choose what is in it
	r.Chains[name] = c
	return name
}

// Without forgets ports that nobody seems to have while not all is known of a group.
func (r *Rules) Without(missing map[string]bool) {
	r.Lacks = slices.DeleteFunc(r.Lacks, func(l Lack) bool {
		return slices.ContainsFunc(l.Groups, func(id string) bool { return missing[id] })
	})
}
