// Package policyapi compiles the NetworkPolicies of a cluster for the pods of this node, as the API has them now.
//
//	live.go    Live: what it follows, and when it compiles
//	read.go    what was read of one kind; groups.go: of PolicyGroups
//	beside.go  other programs that enforce NetworkPolicies on this node; findings.go: what there is to say
//
// With a controller it reads the NetworkPolicies of the namespaces of this node's pods, these pods, and the PolicyGroups that their
// policies need; without one, all policies, and once there is one, all pods and namespaces. Where no namespace has policies that is no
// request with a controller, and one watch without.
//
// What is in force stays until all that is read is proved to be current: a cache that lacks a policy opens nothing.
package policyapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"edgemesh/agent/podgroups"
	"edgemesh/agent/policies"
	"edgemesh/agent/policy"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

const (
	// together is how long changes wait for each other.
	together = 20 * time.Millisecond
	// groupPatience is how long a pod keeps its former rules where new ones need a PolicyGroup of which not all is known: from when it was
	// first needed, or all of it was known last.
	groupPatience = 1500 * time.Millisecond
	// denyPatience is the same for groups of ClusterNetworkPolicies, and for what is to be read of a namespace.
	denyPatience = 15 * time.Second
	// unprovedPatience is after how long lists count that nothing proves, where no rule is in force.
	unprovedPatience = 15 * time.Second
)

// Config is what a Live works with.
type Config struct {
	Node    string
	Follow  func(ctx context.Context, k api.Kind, on func(kube.News)) // until ctx ends
	Local   func() (map[netip.Addr]string, error)                     // this node's pods, NAMESPACE/NAME by address
	InForce func() policy.Rules
	Set     func(policies.Given)
	SetOff  func(bool)
	Log     *slog.Logger
}

// Live compiles. Its exported methods may be called at any time.
type Live struct {
	c     Config
	state chan mesh.State // latest
	pods  wake.One        // this node's changed
	in    chan message

	mu     sync.Mutex // a leaf
	status Status

	// Of the goroutine in Run:
	began    time.Time
	now      mesh.State
	known    bool // now is set
	follows  map[string]*followed
	readers  sync.WaitGroup
	groups   groups
	peers    *podgroups.Peers // without a controller
	needs    map[string]bool
	held     map[string][2]bool         // namespaces that have policies until that is disproved, and how these isolate; with a controller
	whole    map[string][]policy.Member // of groups, when all of them were known last; with a controller
	waits    map[string]time.Time       // since when something is waited for, see waiting
	asked    map[string]bool            // what is, in this compilation
	unread   time.Time                  // since when what is in force stays because something cannot be read
	last     policy.Rules
	lastFrom string
	guessed  bool // last has ClusterKind though nothing was compiled
	first    bool // all pods are closed since nothing was ever known here, and nothing was compiled
}

// Status is what there is to say of it.
type Status struct {
	Engine  string           // another program that enforces NetworkPolicies here
	Invalid map[string]error // policies that close what they select, by NAMESPACE/NAME
	Cluster bool             // there are ClusterNetworkPolicies
	Trouble error            // why policies of the API are not in force, or not all
	Since   time.Time        // of Trouble
}

// message is news of a kind that is followed.
type message struct {
	of   *followed
	news kube.News
}

// New returns a Live that does nothing yet.
func New(c Config) *Live {
	return &Live{c: c, state: make(chan mesh.State, 1), pods: wake.NewOne(), in: make(chan message), follows: map[string]*followed{}, groups: groups{},
		held: map[string][2]bool{}, whole: map[string][]policy.Member{}, waits: map[string]time.Time{}, asked: map[string]bool{}}
}

// SetState takes the membership as it is now.
func (l *Live) SetState(s mesh.State) { wake.Latest(l.state, s) }

// First returns, of a node that has never known policies, the namespaces whose pods are to be closed until policies are compiled: pods may be made
// before. It must be called before Run.
func (l *Live) First(s mesh.State) policy.Rules {
	rules := policy.Rules{Namespaces: map[string][2]bool{}}
	switch {
	case s.NetworkPolicy == mesh.PolicyOff:
	case s.PolicyController:
		l.now = s
		l.follow(nil)
		l.closing(&rules)
	default:
		rules.Guess = true
		rules.Namespaces[policy.EveryNamespace] = [2]bool{true, true}
	}
	return rules
}

// PodsChanged says that Local has changed.
func (l *Live) PodsChanged() { l.pods.Wake() }

// Status returns what there is to say.
func (l *Live) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Run compiles until ctx ends.
func (l *Live) Run(ctx context.Context) {
	l.began, l.last = time.Now(), l.c.InForce()
	if l.first = l.last.Guess; !l.first { // a guess is no word of the PodNetwork
		l.hold(l.last.Namespaces)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer l.readers.Wait()
	defer cancel()
	next := time.NewTimer(unprovedPatience)
	defer next.Stop()
	waiting := false
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-l.state:
			if l.known && reflect.DeepEqual(s.Policies, l.now.Policies) && (l.peers == nil || reflect.DeepEqual(s.Nodes, l.now.Nodes)) {
				continue
			}
			l.now, l.known = s, true
			if l.peers != nil {
				l.peers.SetBlocks(s.Admitted())
			}
		case <-l.pods:
		case m := <-l.in:
			if l.follows[m.of.key] != m.of {
				continue // not any longer
			}
			l.take(m)
		case <-next.C:
			waiting = false
			if again := l.compile(ctx); again > 0 {
				next.Reset(again)
			}
			continue
		}
		if !waiting {
			next.Reset(together)
			waiting = true
		}
	}
}

// take notes news.
func (l *Live) take(m message) {
	m.of.take(m.news)
	switch {
	case m.of.kind.Name == api.PolicyGroups().Name:
		listed := ""
		if slices.ContainsFunc(groupKinds(l.needs), func(k api.Kind) bool { return keyOf(k) == m.of.key }) { // not one that is about to end
			listed = m.of.kind.Selector
		}
		l.groups.take(m.news, l.needs, listed)
	case l.peers != nil:
		m.of.feed(l.peers)
	}
}

// compile brings what is known into force. It returns after how long it is to be called again, 0 for at the next change.
func (l *Live) compile(ctx context.Context) time.Duration {
	if !l.known {
		return 0
	}
	off := l.now.NetworkPolicy == mesh.PolicyOff
	if off || l.now.PolicyController && l.now.PolicyNamespaces == nil {
		l.peers = nil // its followers end
		l.steer(ctx, nil)
		l.c.SetOff(off)
		s := Status{}
		if !off {
			l.release()
			s.Trouble = errors.New("a controller is configured, and the API has not said yet which namespaces have NetworkPolicies: it does not answer, or no controller runs of this release")
		}
		l.say(s)
		return 0
	}
	if l.now.PolicyController {
		return l.withController(ctx)
	}
	return l.alone(ctx)
}

// say notes what there is to say.
func (l *Live) say(s Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Trouble != nil {
		if s.Since = l.status.Since; l.status.Trouble == nil {
			s.Since = time.Now()
			l.c.Log.Info("not every policy of the API is in force; those that were stay", "err", s.Trouble)
		}
	}
	if s.Engine != l.status.Engine {
		l.c.Log.Info("who enforces NetworkPolicies on this node has changed", "program", s.Engine, "before", l.status.Engine)
	}
	l.status = s
}

// steer follows these kinds, and no others.
func (l *Live) steer(ctx context.Context, kinds []api.Kind) {
	want := map[string]api.Kind{}
	for _, k := range kinds {
		want[keyOf(k)] = k
	}
	late := slices.ContainsFunc(kinds, func(k api.Kind) bool { // what read the groups before continues until others do
		f := l.follows[keyOf(k)]
		return k.Name == api.PolicyGroups().Name && (f == nil || f.usable(l.open()) != nil)
	})
	for key, f := range l.follows {
		if _, wanted := want[key]; wanted || late && f.kind.Name == api.PolicyGroups().Name && f.usable(l.open()) == nil {
			continue
		}
		f.stop()
		delete(l.follows, key)
	}
	for key, k := range want {
		if l.follows[key] != nil {
			continue
		}
		one, stop := context.WithCancel(ctx)
		f := &followed{key: key, kind: k, stop: stop, items: map[string]api.Object{}}
		l.follows[key] = f
		l.readers.Go(func() {
			l.c.Follow(one, k, func(n kube.News) {
				select {
				case l.in <- message{f, n}:
				case <-one.Done():
				}
			})
		})
	}
}

// open reports whether lists count that nothing proves.
func (l *Live) open() bool {
	return (l.first && !l.now.PolicyController || len(l.c.InForce().Namespaces) == 0) && time.Since(l.began) >= unprovedPatience
}

// complete says why what is followed does not count yet, nil if it does. PolicyGroups and namespaces count one by one once rules were
// compiled; groups also where they were waited for at a start, and there are ClusterNetworkPolicies: those that need none must hold.
func (l *Live) complete() error {
	open := l.open()
	var groups error
	for _, f := range l.follows {
		one := f.kind.Namespace != "" || f.kind.Name == podgroups.Namespaces("").Name && f.kind.Fields != ""
		if f.kind.Name == api.PolicyGroups().Name && l.lastFrom != "" || one && (l.lastFrom != "" || time.Since(l.began) >= unprovedPatience) {
			continue
		}
		if f.kind.Name == podgroups.ClusterPolicies().Name && !f.listed && l.held[policy.ClusterKind] == [2]bool{} && (f.absent || f.refused != nil || f.trouble != nil && time.Since(l.began) >= unprovedPatience) {
			continue // a cluster without the kind, a chart of an older release, or a cache: NetworkPolicies do not wait for it, and a finding names it
		}
		sure := open && (f.kind.Name != podgroups.ClusterPolicies().Name || len(f.items) > 0 || l.held[policy.ClusterKind] == [2]bool{}) // or the PodNetwork knows better
		if err := f.usable(sure); err != nil && f.kind.Name == api.PolicyGroups().Name {
			groups = err
		} else if err != nil {
			return err
		}
	}
	if groups != nil && l.held[policy.ClusterKind] != [2]bool{} && l.waiting(start) >= denyPatience {
		return nil
	}
	return groups
}

// refused says what cannot be read any longer that was.
func (l *Live) refused() error {
	for _, key := range slices.Sorted(maps.Keys(l.follows)) {
		if err := l.follows[key].refused; err != nil {
			return err
		}
	}
	return nil
}

// hold notes which namespaces have policies.
func (l *Live) hold(more map[string][2]bool) {
	for name, d := range more {
		if d != [2]bool{} {
			l.held[name] = d
		}
	}
}

// follow notes which namespaces have policies: what the PodNetwork lacks has none only where that is proved, and for pods of this node by
// the policies themselves. spaces are the namespaces of this node's pods.
func (l *Live) follow(spaces map[string]bool) {
	for name, text := range l.now.PolicyNamespaces {
		d := [2]bool{strings.Contains(text, "Ingress"), strings.Contains(text, "Egress")}
		if was := l.held[name]; !l.now.PolicyProved {
			d = either(d, was)
		}
		l.hold(map[string][2]bool{name: d})
	}
	cluster := l.follows[keyOf(podgroups.ClusterPolicies())]
	for name := range l.held {
		if l.now.PolicyNamespaces[name] != "" {
			continue
		}
		gone := l.now.PolicyProved
		switch f := l.follows[keyOf(podgroups.Policies(name))]; {
		case name == policy.ClusterKind && gone && cluster != nil && cluster.absent: // the controller has read an empty list before
			clear(cluster.items)
		case name == policy.ClusterKind && cluster != nil && cluster.proved:
			gone = len(cluster.items) == 0
		case name == policy.ClusterKind:
			unanswered := cluster != nil && !cluster.listed && (cluster.refused != nil || !l.unread.IsZero() && time.Since(l.unread) >= denyPatience)
			gone = gone && (len(spaces) == 0 || l.last.Namespaces[name] == [2]bool{} || (l.guessed || unanswered) && !l.decides())
		case spaces[name]:
			gone = f != nil && f.proved && len(f.items) == 0
		}
		if gone {
			delete(l.held, name)
		}
	}
}

// decides reports whether a chain in force is a ClusterNetworkPolicy's: where none is, pods may be closed for policies that nobody could read.
func (l *Live) decides() bool {
	for _, c := range l.last.Chains {
		if len(c.Cluster) > 0 {
			return true
		}
	}
	return false
}

func either(a, b [2]bool) [2]bool { return [2]bool{a[0] || b[0], a[1] || b[1]} }

// withController reads what the controller has compiled.
func (l *Live) withController(ctx context.Context) time.Duration {
	l.peers = nil
	local, err := l.c.Local()
	if err != nil {
		l.say(Status{Trouble: fmt.Errorf("read the addresses of this node's pods: %w", err)})
		return unprovedPatience
	}
	own := l.own(podgroups.Pods(l.c.Node))
	spaces := map[string]bool{}
	for _, pod := range local {
		namespace, _, _ := strings.Cut(pod, "/")
		spaces[namespace] = true
	}
	for _, p := range own {
		spaces[p.Meta.Namespace] = true
	}
	l.follow(spaces)
	for pod := range l.last.Pods { // after a start: those that come back without the API have nothing else than what is in force, until pods are read
		if namespace, _, _ := strings.Cut(pod, "/"); l.lastFrom == "" {
			spaces[namespace] = true
		}
	}
	var kinds []api.Kind
	_, every := l.held[policy.EveryNamespace] // too many to be named
	for _, namespace := range slices.Sorted(maps.Keys(spaces)) {
		f := l.follows[keyOf(podgroups.Policies(namespace))]
		if _, held := l.held[namespace]; held || every || f != nil && len(f.items) > 0 { // the last: it ends by its own word
			kinds = append(kinds, podgroups.Policies(namespace))
		}
	}
	f := l.follows[keyOf(podgroups.ClusterPolicies())]
	cluster := l.held[policy.ClusterKind] != [2]bool{} || f != nil && len(f.items) > 0
	if cluster && len(spaces) > 0 {
		kinds = append(kinds, podgroups.ClusterPolicies())
		for _, namespace := range slices.Sorted(maps.Keys(spaces)) {
			kinds = append(kinds, podgroups.Namespaces(namespace))
		}
	}
	if len(kinds) > 0 {
		kinds = append(kinds, podgroups.Pods(l.c.Node))
	}
	l.steer(ctx, append(kinds, groupKinds(l.needs)...))
	if err := l.complete(); err != nil {
		return l.unready(err)
	}
	l.asked = map[string]bool{}
	status := Status{Invalid: map[string]error{}, Engine: engine(own)}
	var all []policy.Policy
	labels := map[string]map[string]string{}
	for _, f := range l.follows {
		for _, p := range each[*podgroups.Policy](f) {
			parsed, err := p.Parse()
			if all = append(all, parsed); err != nil {
				status.Invalid[parsed.Key()] = err
			}
		}
		for name, n := range each[*podgroups.Namespace](f) {
			labels[name] = n.Labels
		}
	}
	unread := l.unreadOf(spaces, cluster, labels, &status)
	maps.DeleteFunc(labels, func(name string, _ map[string]string) bool { return unread[name] })
	needs, missing, unknown, readable, patience := map[string]bool{}, map[string]bool{}, map[string]bool{}, l.readable(), patienceOf(all)
	judged := slices.DeleteFunc(pods(own, l.c.Node), func(p policy.Pod) bool { return unread[p.Namespace] })
	rules := policy.Compile(all, labels, judged, func(g policy.Group) []policy.Member {
		id := g.ID()
		needs[id] = true
		members, complete := l.groups.members(id)
		if complete && readable(id) {
			l.whole[id] = members
			return members
		}
		since := l.waiting("group " + id)
		if since >= groupPatience {
			status.Trouble = errors.New("a PolicyGroup that a policy needs is not there as a whole: its other peers are closed until it is, and what rules deny or pass is denied; " +
				"check that a controller runs, and whether its log names policies that are over its bounds")
		}
		whole, known := l.whole[id]
		if missing[id] = !known; known && since < patience(id) {
			return policy.Sorted(slices.Concat(whole, members))
		}
		unknown[id] = true
		return members
	})
	l.closing(&rules)
	if every {
		var known []string
		for _, namespace := range slices.Sorted(maps.Keys(spaces)) {
			if _, labelled := labels[namespace]; !unread[namespace] && (labelled || !cluster) {
				known = append(known, namespace)
			}
		}
		rules.SetExcept(known)
	}
	if !maps.Equal(needs, l.needs) {
		l.groups.keep(needs)
		maps.DeleteFunc(l.whole, func(id string, _ []policy.Member) bool { return !needs[id] })
		l.needs = needs
		l.steer(ctx, append(kinds, groupKinds(needs)...))
		if err := l.complete(); err != nil {
			return l.unready(err)
		}
	}
	l.former(rules, own, unread, cluster, missing)
	rules.Without(unknown)
	l.bring(rules, "the controller", status)
	maps.DeleteFunc(l.waits, func(key string, _ time.Time) bool { return !l.asked[key] })
	again := time.Duration(0)
	for _, since := range l.waits {
		for _, d := range []time.Duration{groupPatience, denyPatience} {
			if left := time.Until(since.Add(d)); left > 0 && (again == 0 || left < again) {
				again = left
			}
		}
	}
	return again
}

// closing adds to rules where policies may be that are not in them.
func (l *Live) closing(rules *policy.Rules) {
	for name, d := range l.held {
		rules.Namespaces[name] = either(rules.Namespaces[name], d)
	}
	if d := l.held[policy.ClusterKind]; d != [2]bool{} {
		rules.Namespaces[policy.EveryNamespace] = either(rules.Namespaces[policy.EveryNamespace], d)
	}
}

// unreadOf are the namespaces whose policies or labels are not known yet: nothing is compiled for their pods, and no other pod waits.
func (l *Live) unreadOf(spaces map[string]bool, cluster bool, labels map[string]map[string]string, s *Status) map[string]bool {
	out, open := map[string]bool{}, l.open()
	for namespace := range spaces {
		var err error
		if f := l.follows[keyOf(podgroups.Policies(namespace))]; f != nil {
			err = f.usable(open)
		}
		if f := l.follows[keyOf(podgroups.Namespaces(namespace))]; f != nil {
			err = errors.Join(err, f.current(open))
		}
		if _, known := labels[namespace]; err == nil && cluster && !known {
			err = errors.New("the API has no such namespace")
		}
		if err == nil {
			continue
		}
		if out[namespace] = true; l.waiting("namespace "+namespace) >= groupPatience {
			s.Trouble = fmt.Errorf("what namespace %s has of policies and labels is not known: %w", namespace, err)
		}
	}
	return out
}

// readable reports of groups whether what was read of them counts.
func (l *Live) readable() func(id string) bool {
	open := l.open()
	return func(id string) bool {
		for _, f := range l.follows {
			if f.kind.Name == api.PolicyGroups().Name && strings.Contains(f.kind.Selector, id) && f.current(open) == nil {
				return true
			}
		}
		return false
	}
}

// start is what waiting calls the PolicyGroups of a start, groupsOfAll what they are made of without a controller.
const start, groupsOfAll = "start", "pods and namespaces"

// waiting is for how long key has been waited for: each compilation has asked since then.
func (l *Live) waiting(key string) time.Duration {
	if _, waits := l.waits[key]; !waits {
		l.waits[key] = time.Now()
	}
	l.asked[key] = true
	return time.Since(l.waits[key])
}

// patienceOf returns how long rules wait for a group.
func patienceOf(all []policy.Policy) func(id string) time.Duration {
	decides := map[string]bool{}
	for _, g := range policy.Groups(slices.DeleteFunc(slices.Clone(all), func(p policy.Policy) bool { return !p.Cluster() })) {
		decides[g.ID()] = true
	}
	return func(id string) time.Duration {
		if decides[id] {
			return denyPatience
		}
		return groupPatience
	}
}

// former leaves pods the chains that they have where their new ones need a group that is missing, all of which was never known, or where their
// namespace is unread: for as long as there is patience, from when that began, whatever changes meanwhile.
func (l *Live) former(rules policy.Rules, own map[string]*podgroups.Pod, unread map[string]bool, cluster bool, missing map[string]bool) {
	for pod, chains := range rules.Pods {
		was, there := l.last.Pods[pod]
		for d, name := range chains {
			lacks, patience := lacking(rules.Chains[name], missing)
			if lacks && l.waiting(fmt.Sprint("pod ", pod, d, patience)) < patience && there && l.lastFrom != "" { // a start does not prolong it
				chains[d] = was[d]
				l.keep(rules, was[d])
			}
		}
		rules.Pods[pod] = chains
	}
	for _, p := range pods(own, l.c.Node) {
		pod := p.Namespace + "/" + p.Name
		_, there := l.last.Pods[pod]
		if there && unread[p.Namespace] && (!cluster || l.waiting("namespace "+p.Namespace) < denyPatience) {
			l.keepPod(rules, pod)
		}
	}
}

// keepPod and keep copy from the rules that are in force.
func (l *Live) keepPod(rules policy.Rules, pod string) {
	rules.Pods[pod] = l.last.Pods[pod]
	for _, chain := range l.last.Pods[pod] {
		l.keep(rules, chain)
	}
}

func (l *Live) keep(rules policy.Rules, chain string) {
	if chain == "" {
		return
	}
	c := l.last.Chains[chain]
	rules.Chains[chain] = c
	for _, id := range c.Groups() {
		if _, has := rules.Sets[id]; !has {
			rules.Sets[id] = l.last.Sets[id]
		}
	}
}

// lacking reports whether a chain needs one of the groups, and how long a pod keeps another one for that.
func lacking(c policy.Chain, missing map[string]bool) (lacks bool, patience time.Duration) {
	patience = groupPatience
	for _, a := range c.All() {
		if slices.ContainsFunc(slices.Concat(a.Groups, a.Named), func(id string) bool { return missing[id] }) {
			if lacks = true; policy.OfCluster(a.Policy) {
				patience = denyPatience
			}
		}
	}
	return lacks, patience
}

// own are the pods of this node that are followed as k.
func (l *Live) own(k api.Kind) map[string]*podgroups.Pod {
	f := l.follows[keyOf(k)]
	if f == nil {
		return nil
	}
	own := each[*podgroups.Pod](f)
	maps.DeleteFunc(own, func(_ string, p *podgroups.Pod) bool { return p.Node != l.c.Node })
	return own
}

// alone compiles from all pods.
func (l *Live) alone(ctx context.Context) time.Duration {
	if l.peers == nil {
		l.peers = l.newPeers()
		l.steer(ctx, nil) // each begins with a list
	}
	all, errs := l.peers.Policies()
	l.hold(policy.Isolated(all))
	kinds := []api.Kind{podgroups.Policies(""), podgroups.ClusterPolicies()}
	if len(all) > 0 {
		kinds = append(kinds, podgroups.Namespaces(""), podgroups.Pods(""))
	} else if l.follows[keyOf(podgroups.Pods(""))] != nil {
		l.peers = l.newPeers() // pods are followed no longer
	}
	l.steer(ctx, kinds)
	if err := l.complete(); err != nil {
		return l.unready(err)
	}
	own := l.own(podgroups.Pods(""))
	var stale error // what groups are made of is not read any longer
	for _, k := range []api.Kind{podgroups.Pods(""), podgroups.Namespaces("")} {
		if f := l.follows[keyOf(k)]; f != nil {
			stale = errors.Join(stale, f.current(l.open()))
		}
	}
	again, unknown := time.Duration(0), false
	if stale == nil {
		delete(l.waits, groupsOfAll)
	} else if again = denyPatience - l.waiting(groupsOfAll); again <= 0 {
		again, unknown = 0, true
	}
	lost := map[string]bool{}
	rules := policy.Compile(all, l.peers.Labels(), pods(own, l.c.Node), func(g policy.Group) []policy.Member {
		lost[g.ID()] = unknown || l.peers.Lost(g.ID())
		return l.peers.Members(g.ID())
	})
	rules.Without(lost)
	invalid := map[string]error{}
	for key, why := range l.peers.Over() {
		invalid[key] = errors.New(why)
	}
	maps.Copy(invalid, errs)
	l.bring(rules, "the API", Status{Invalid: invalid, Engine: engine(own)})
	l.held = maps.Clone(rules.Namespaces)
	for _, id := range l.peers.Groups() {
		l.peers.Drop(id) // unless it is needed
	}
	clear(l.peers.Changed)
	return again
}

func (l *Live) newPeers() *podgroups.Peers {
	p := podgroups.NewPeers(nil)
	p.SetBlocks(l.now.Admitted())
	return p
}

// release opens what First has closed: the cluster's release of controller or chart has no policies in force.
func (l *Live) release() {
	if l.first {
		l.first, l.last, l.held = false, policy.Rules{}, map[string][2]bool{}
		l.c.Set(policies.Given{From: "no source yet"})
	}
}

// unready notes why what was in force stays. It returns when to look again: lists that nothing proves may count then, or it is trouble.
func (l *Live) unready(err error) time.Duration {
	if l.unread.IsZero() {
		l.unread = time.Now()
	}
	if !errors.Is(err, errWaits) && !errors.Is(err, errUnproved) || time.Since(l.unread) >= lasting {
		l.say(Status{Trouble: err, Engine: l.Status().Engine})
	}
	if f := l.follows[keyOf(podgroups.Policies(""))]; f != nil && f.refused != nil {
		l.release()
	}
	if time.Since(l.unread) >= denyPatience {
		l.closeUnjudged()
	}
	for _, at := range []time.Time{l.began.Add(unprovedPatience), l.unread.Add(denyPatience), l.waits[start].Add(denyPatience)} {
		if left := time.Until(at); left > 0 {
			return left
		}
	}
	return lasting
}

// closeUnjudged closes pods that were never judged: what there is cannot be read, and may deny.
func (l *Live) closeUnjudged() {
	rules := l.last
	rules.Namespaces = map[string][2]bool{}
	maps.Copy(rules.Namespaces, l.last.Namespaces)
	l.closing(&rules)
	cluster := rules.Namespaces[policy.ClusterKind] != l.last.Namespaces[policy.ClusterKind]
	// A right that is missing is the chart's of an older release: its policies were never in force.
	if !cluster && (l.refused() != nil || maps.Equal(rules.Namespaces, l.last.Namespaces)) {
		return
	}
	if cluster {
		rules.Except, l.guessed = nil, true
	}
	l.last = rules
	l.c.Set(policies.Given{From: "policies that cannot be compiled yet", Rules: rules, Closes: true})
}

// bring has rules enforced, unless another program does.
func (l *Live) bring(rules policy.Rules, from string, s Status) {
	l.unread = time.Time{}
	if s.Trouble == nil {
		s.Trouble = l.refused()
	}
	s.Cluster = rules.Namespaces[policy.ClusterKind] != [2]bool{}
	l.say(s)
	l.c.SetOff(s.Engine != "")
	if len(rules.Namespaces) == 0 {
		rules = policy.Rules{}
	}
	if from == l.lastFrom && reflect.DeepEqual(rules, l.last) {
		return
	}
	l.last, l.lastFrom, l.guessed, l.first = rules, from, false, false
	l.c.Set(policies.Given{From: from, Rules: rules})
}

// pods are this node's, without addresses: those are in its own records.
func pods(own map[string]*podgroups.Pod, node string) (out []policy.Pod) {
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if own[key].Node == node {
			out = append(out, own[key].As)
		}
	}
	return out
}
