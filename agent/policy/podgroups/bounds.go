package podgroups

import (
	"fmt"
	"maps"
	"slices"

	policy "edgemesh/agent/policy/compile"
)

// bounds are how many groups, and members of all groups together, there may be: of all namespaces, and of the policies of one.
type bounds struct{ groups, members, spaceGroups, spaceMembers int }

// ofCluster is some 40 MB of PolicyGroups, of which one namespace has an eighth: enough for 25 groups of 10,000 pods.
var ofCluster = bounds{groups: 16_384, members: 2_000_000, spaceGroups: 1024, spaceMembers: 250_000} //nolint:gochecknoglobals // a constant

// usage is what groups use of the bounds.
type usage struct {
	groups, members int
	freed           bool // since readmit
}

func (p *Peers) usage(space string) *usage {
	if p.used[space] == nil {
		p.used[space] = &usage{}
	}
	return p.used[space]
}

func (p *Peers) count(g *group, groups, members int) {
	for _, u := range []*usage{p.usage(g.space), p.usage("")} {
		u.groups += groups
		u.members += members
	}
}

// full closes g if it and more groups are more than the bounds, though those that no policy needs are dropped.
func (p *Peers) full(g *group, more int) {
	own, all := p.usage(g.space), p.usage("")
	mine := func() bool {
		return own.groups+more > p.bounds.spaceGroups || own.members > p.bounds.spaceMembers || len(g.members) > MaxMembers
	}
	total := func() bool { return all.groups+more > p.bounds.groups || all.members > p.bounds.members }
	if !mine() && !total() {
		return
	}
	for _, x := range p.groups {
		if x.users == 0 && !x.closed && (x.space == g.space || total()) && (mine() || total()) {
			p.drop(x)
			p.pressed[x.id] = true
		}
	}
	if g.ofAll = total(); g.ofAll || mine() {
		p.close(g)
	}
}

// close takes all members of g.
func (p *Peers) close(g *group) {
	if g.closed {
		return
	}
	g.closed = true
	if p.within[g.Namespace][g] {
		p.count(g, -1, -len(g.members))
		delete(p.within[g.Namespace], g)
		for _, x := range p.pods {
			x.in = slices.DeleteFunc(x.in, func(e entry) bool { return e.group == g })
		}
	}
	clear(g.members)
	p.Changed[g.id] = true
}

// drop forgets g.
func (p *Peers) drop(g *group) {
	p.close(g)
	p.forget(g.id)
	p.usage(g.space).freed, p.usage("").freed = true, true
}

// admit gives g its members, if there is room.
func (p *Peers) admit(g *group) {
	g.closed = false
	if p.full(g, 1); g.closed {
		return
	}
	delete(p.pressed, g.id)
	p.count(g, 1, 0)
	if p.within[g.Namespace] == nil {
		p.within[g.Namespace] = map[*group]bool{}
	}
	p.within[g.Namespace][g] = true
	p.Changed[g.id] = true
	for _, x := range p.pods {
		if !g.closed && (g.Namespace == "" || g.Namespace == x.As.Namespace) {
			p.add(g, x, p.believed(x))
		}
	}
}

// forget forgets a group and its former name.
func (p *Peers) forget(id string) {
	delete(p.groups, id)
	former := policy.Former(id)
	if delete(p.former[former], id); len(p.former[former]) == 0 {
		delete(p.former, former)
	}
}

// readmit gives groups that are over the bounds their members, where there is room now.
func (p *Peers) readmit() {
	full := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(p.groups)) {
		g := p.groups[id]
		switch {
		case !g.closed:
		case g.users == 0:
			p.forget(id)
		case !full[g.space] && (p.usage(g.space).freed || g.ofAll && p.usage("").freed):
			p.admit(g)
			full[g.space] = g.closed
		}
	}
	for space, u := range p.used {
		if u.freed = false; *u == (usage{}) {
			delete(p.used, space)
		}
	}
}

// Pressed reports whether the group was dropped to make room for others.
func (p *Peers) Pressed(id string) bool { return p.pressed[id] }

// Over are policies, some of whose peers have no members because there are too many groups or members, and why.
func (p *Peers) Over() map[string]string {
	out := map[string]string{}
	closed := map[string]*group{}
	for id, g := range p.groups {
		if g.closed && g.users > 0 {
			closed[id] = g
		}
	}
	if len(closed) == 0 {
		return out
	}
	for key := range p.policies {
		for _, g := range policy.Groups(p.policy(key)) {
			if x := closed[g.ID()]; x != nil && out[key] == "" {
				u, b := p.usage(x.space), p.bounds
				of, groups, members := "the policies of namespace "+x.space, b.spaceGroups, b.spaceMembers
				if x.ofAll {
					u, of, groups, members = p.usage(""), "all policies", b.groups, b.members
				}
				out[key] = fmt.Sprintf("some of its peers are closed: %s have %d groups of pods with %d addresses, at most %d with %d, and %d in one",
					of, u.groups, u.members, groups, members, MaxMembers)
			}
		}
	}
	return out
}
