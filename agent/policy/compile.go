package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

// Compile says what the policies mean for pods of this node. members returns who is in a group.
func Compile(all []Policy, local []Pod, members func(Group) []Member) Rules {
	out := Rules{Chains: map[string][]Accept{}, Sets: map[string][]Member{}}
	for _, pod := range local {
		if !pod.counts() {
			continue
		}
		var chains [2]string
		for _, d := range []Direction{Ingress, Egress} {
			accept, isolated := accepts(all, pod, d)
			if isolated {
				chains[d] = out.chain(accept)
			}
		}
		if chains != [2]string{} {
			for _, a := range pod.Addrs {
				out.Pods = append(out.Pods, Place{a, chains})
			}
		}
	}
	slices.SortFunc(out.Pods, func(a, b Place) int { return a.Addr.Compare(b.Addr) })
	used := map[string]bool{}
	for _, c := range out.Chains {
		for _, a := range c {
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

// accepts is what policies allow a pod in one direction, if one of them isolates it.
func accepts(all []Policy, pod Pod, d Direction) (out []Accept, isolated bool) {
	for _, p := range all {
		if !p.isolates[d] || p.Namespace != pod.Namespace || !p.pods.Matches(labels.Set(pod.Labels)) {
			continue
		}
		isolated = true
		for _, r := range p.rules[d] {
			if a, matches := r.accept(pod, d); matches {
				a.Policy = p.key()
				out = append(out, a)
			}
		}
	}
	return out, isolated
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

// chain returns the name of a chain that accepts this, and notes it. Pods with the same policies share one.
func (r Rules) chain(accept []Accept) string {
	b, _ := json.Marshal(accept) // it has no values that JSON lacks
	sum := sha256.Sum256(b)
	name := hex.EncodeToString(sum[:8])
	r.Chains[name] = accept
	return name
}
