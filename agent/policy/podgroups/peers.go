// Package podgroups knows the pods, namespaces and policies of a cluster, and who is in the groups that policies select as peers. The
// controller uses it, and agents where none is configured.
//
//	objects.go  pods, namespaces and policies as the API has them
//	peers.go    who is in which group, kept up to date by one object at a time; bounds.go: how many groups and members there may be
//	owner.go    whose an address is
//	chunks.go   a group as PolicyGroups, and back
package podgroups

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/membership/kube/api"
)

// Peers knows who is in which group. It is not safe for concurrent use.
type Peers struct {
	// Owner is the node whose block has an address, "" for none.
	Owner func(netip.Addr) string
	// Changed are the groups whose members changed; the caller clears it.
	Changed map[string]bool

	namespaces map[string]*Namespace
	pods       map[string]*peer           // by NAMESPACE/NAME
	at         map[netip.Addr][]*peer     // pods that claim an address
	policies   map[string]policy.Policy   // by Key
	errs       map[string]error           // of policies
	groups     map[string]*group          // by ID
	former     map[string]map[string]bool // IDs by the name of the release before
	within     map[string]map[*group]bool // by the one namespace that they select in, "": others
	blocks     map[netip.Prefix]string    // as Owner knows them
	mirrors    bool                       // static pods are members, too
	bounds     bounds
	used       map[string]*usage // by space; "": of all
	pressed    map[string]bool   // IDs of groups that were dropped to make room
}

// peer is a pod, and what it adds to groups.
type peer struct {
	Pod
	in []entry
}

type entry struct {
	group  *group
	member policy.Member
}

// group is a group, and how many pods add each member.
type group struct {
	policy.Group
	id      string
	members map[policy.Member]int
	users   int    // policies
	space   string // the namespace of the policy that needed it first
	closed  bool   // has no members: over its bounds, or dropped
	ofAll   bool   // it is the bounds of all namespaces that it is over
}

// NewPeers returns Peers without anything.
func NewPeers(owner func(netip.Addr) string) *Peers {
	return &Peers{Owner: owner, Changed: map[string]bool{}, namespaces: map[string]*Namespace{}, pods: map[string]*peer{}, at: map[netip.Addr][]*peer{},
		policies: map[string]policy.Policy{}, errs: map[string]error{}, groups: map[string]*group{}, former: map[string]map[string]bool{}, within: map[string]map[*group]bool{},
		bounds: ofCluster, used: map[string]*usage{}, pressed: map[string]bool{}}
}

// Policies are all of them, in order of their names; errs are what is wrong with some.
func (p *Peers) Policies() (all []policy.Policy, errs map[string]error) {
	for _, key := range slices.Sorted(maps.Keys(p.policies)) {
		all = append(all, p.policies[key])
	}
	return all, p.errs
}

// Namespaces are those with policies, and in which directions these isolate, as policy.Isolated says.
func (p *Peers) Namespaces() map[string][2]bool {
	return policy.Isolated(slices.Collect(maps.Values(p.policies)))
}

// Needed reports whether a policy has the group as a peer.
func (p *Peers) Needed(id string) bool { return p.groups[id] != nil && p.groups[id].users > 0 }

// Known reports whether the group is kept up to date.
func (p *Peers) Known(id string) bool { return p.groups[id] != nil && !p.groups[id].closed }

// Groups are the IDs of those that are kept up to date: those that policies need, and those that they needed before, until Drop.
func (p *Peers) Groups() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p.groups)), func(id string) bool { return p.groups[id].closed })
}

// Drop forgets a group that no policy needs.
func (p *Peers) Drop(id string) {
	if g := p.groups[id]; g != nil && g.users == 0 {
		p.drop(g)
		p.readmit()
	}
}

// Selector is what a group selects, in words.
func (p *Peers) Selector(id string) string {
	if g := p.groups[id]; g != nil {
		return g.Selector()
	}
	return ""
}

// Named are the groups that had that name in the release before.
func (p *Peers) Named(former string) []string { return slices.Sorted(maps.Keys(p.former[former])) }

// Members are a group's, in order.
func (p *Peers) Members(id string) []policy.Member {
	g := p.groups[id]
	if g == nil {
		return nil
	}
	return policy.Sorted(slices.Collect(maps.Keys(g.members)))
}

// Set takes an object of a kind that Peers know as it is now, nil where it is gone.
func (p *Peers) Set(k api.Kind, key string, now api.Object) {
	switch k.Name {
	case Pods("").Name:
		pod, _ := now.(*Pod)
		p.setPod(key, pod)
	case Namespaces().Name:
		namespace, _ := now.(*Namespace)
		p.setNamespace(key, namespace)
	case Policies("").Name:
		written, _ := now.(*Policy)
		p.setPolicy(key, written)
	}
}

// setPolicy takes a policy as it is now, nil where it is gone.
func (p *Peers) setPolicy(key string, now *Policy) {
	before := policy.Groups(p.policy(key))
	delete(p.policies, key)
	delete(p.errs, key)
	if now != nil {
		parsed, err := now.Parse()
		if p.policies[key] = parsed; err != nil {
			p.errs[key] = err
		}
	}
	for _, g := range policy.Groups(p.policy(key)) {
		p.use(g, p.policies[key].Namespace)
	}
	for _, g := range before {
		have := p.groups[g.ID()]
		if have.users--; have.users == 0 {
			p.usage(have.space).freed, p.usage("").freed = true, true
		}
	}
	p.readmit()
}

func (p *Peers) policy(key string) []policy.Policy {
	if x, there := p.policies[key]; there {
		return []policy.Policy{x}
	}
	return nil
}

// use counts a policy of a namespace that needs g.
func (p *Peers) use(g policy.Group, space string) {
	id := g.ID()
	if have := p.groups[id]; have != nil {
		have.users++
		return
	}
	n := &group{Group: g, id: id, members: map[policy.Member]int{}, users: 1, space: space}
	p.groups[id] = n
	former := policy.Former(id)
	if p.former[former] == nil {
		p.former[former] = map[string]bool{}
	}
	p.former[former][id] = true
	p.admit(n)
}

// setNamespace takes a namespace as it is now, nil where it is gone.
func (p *Peers) setNamespace(name string, now *Namespace) {
	before := p.namespaces[name]
	if now == nil {
		delete(p.namespaces, name)
	} else {
		p.namespaces[name] = now
	}
	if now != nil && before != nil && maps.Equal(now.Labels, before.Labels) {
		return
	}
	for _, x := range p.pods {
		if x.As.Namespace == name {
			p.place(x)
		}
	}
}

// setPod takes a pod as it is now, nil where it is gone.
func (p *Peers) setPod(key string, now *Pod) {
	before := p.pods[key]
	if now != nil && before != nil && now.Meta.UID == before.Meta.UID && now.Node == before.Node && now.Mirror == before.Mirror && samePod(now.As, before.As) {
		return
	}
	var near []*peer
	if before != nil {
		near = append(near, p.leave(before)...)
		delete(p.pods, key)
	}
	if now != nil {
		x := &peer{Pod: *now}
		p.pods[key] = x
		near = append(near, x)
		for _, a := range now.As.Addrs {
			near = append(near, p.at[a]...)
			p.at[a] = append(p.at[a], x)
		}
	}
	for _, x := range near {
		p.place(x)
	}
}

func samePod(a, b policy.Pod) bool {
	return a.HostNetwork == b.HostNetwork && a.Ended == b.Ended && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Ports, b.Ports)
}

// leave takes a pod out, and returns those that claim one of its addresses.
func (p *Peers) leave(x *peer) (near []*peer) {
	p.clear(x)
	for _, a := range x.As.Addrs {
		p.at[a] = slices.DeleteFunc(p.at[a], func(y *peer) bool { return y == x })
		if near = append(near, p.at[a]...); len(p.at[a]) == 0 {
			delete(p.at, a)
		}
	}
	return near
}

// Reconsider looks at all addresses again: blocks have other owners now.
func (p *Peers) Reconsider() {
	for _, x := range p.pods {
		p.place(x)
	}
}

// Forged are pods that claim an address of another node's block: KEY to what is wrong.
func (p *Peers) Forged() map[string]Forgery {
	out := map[string]Forgery{}
	for key, x := range p.pods {
		if x.As.HostNetwork || x.As.Ended {
			continue
		}
		for _, a := range x.As.Addrs {
			if owner := p.Owner(a); owner != "" && owner != x.Node {
				out[key] = Forgery{x.Node, a, owner}
			}
		}
	}
	return out
}

// Forgery is an address that a pod of Node has, though it is of Owner's block.
type Forgery struct {
	Node  string
	Addr  netip.Addr
	Owner string
}

// place puts a pod into the groups that it belongs to now.
func (p *Peers) place(x *peer) {
	was := x.in
	x.in = nil
	now := p.believed(x)
	for _, in := range []string{"", x.As.Namespace} {
		for g := range p.within[in] {
			p.add(g, x, now)
		}
	}
	p.remove(was)
}

func (p *Peers) clear(x *peer) {
	p.remove(x.in)
	x.in = nil
}

func (p *Peers) remove(in []entry) {
	for _, e := range in {
		if e.group.closed {
			continue
		}
		if e.group.members[e.member]--; e.group.members[e.member] == 0 {
			delete(e.group.members, e.member)
			p.count(e.group, 0, -1)
			p.Changed[e.group.id] = true
		}
	}
}

func (p *Peers) add(g *group, x *peer, now policy.Pod) {
	n := p.namespaces[now.Namespace]
	if n == nil || len(now.Addrs) == 0 {
		return
	}
	for _, m := range g.Of(n.Labels, now) {
		x.in = append(x.in, entry{g, m})
		if g.members[m]++; g.members[m] == 1 {
			p.Changed[g.id] = true
			p.count(g, 0, 1)
			if p.full(g, 0); g.closed {
				return
			}
		}
	}
}

// believed is the pod with those of its addresses that its node owns, and that no younger pod has. A static pod has none: what groups it is
// in, whoever has its node's credential chooses.
func (p *Peers) believed(x *peer) policy.Pod {
	out := x.As
	out.Addrs = nil
	if x.Mirror && !p.mirrors {
		return out
	}
	for _, a := range x.As.Addrs {
		younger := slices.ContainsFunc(p.at[a], func(y *peer) bool {
			return y != x && y.Node == x.Node && !y.As.Ended && created(y).After(created(x))
		})
		if !younger && p.Owner(a) == x.Node && x.Node != "" {
			out.Addrs = append(out.Addrs, a)
		}
	}
	return out
}

func created(x *peer) time.Time {
	if x.Meta.CreationTimestamp == nil {
		return time.Time{}
	}
	return *x.Meta.CreationTimestamp
}
