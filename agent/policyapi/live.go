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
	// groupPatience is how long a pod keeps its former rules where new ones need a PolicyGroup that was not read yet: its members are
	// closed then.
	groupPatience = 1500 * time.Millisecond
	// denyPatience is the same for groups of ClusterNetworkPolicies: what may be denied is denied then.
	denyPatience = 15 * time.Second
	// unprovedPatience is after how long lists count that nothing proves, where no rule is in force.
	unprovedPatience = 15 * time.Second
)

// Config is what a Live works with.
type Config struct {
	Node    string
	Follow  func(ctx context.Context, k api.Kind, on func(kube.News)) // until ctx ends
	Local   func() (map[netip.Addr]string, error)                     // this node's pods, NAMESPACE/NAME by address
	InForce func() map[string][2]bool                                 // the namespaces of the rules that are, and how they isolate
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
	held     map[string][2]bool   // namespaces that have policies until that is disproved, and how these isolate; with a controller
	waits    map[string]time.Time // since when rules wait for PolicyGroups, by group
	unread   time.Time            // since when what is in force stays because something cannot be read
	last     policy.Rules
	lastFrom string
}

// Status is what there is to say of it.
type Status struct {
	Engine  string           // another program that enforces NetworkPolicies here
	Invalid map[string]error // policies that close what they select, by NAMESPACE/NAME
	Trouble error            // why policies of the API are not in force
	Since   time.Time        // of Trouble
}

// message is news of a kind that is followed.
type message struct {
	of   *followed
	news kube.News
}

// New returns a Live that does nothing yet.
func New(c Config) *Live {
	return &Live{c: c, state: make(chan mesh.State, 1), pods: wake.NewOne(), in: make(chan message), follows: map[string]*followed{}, groups: groups{}, waits: map[string]time.Time{}}
}

// SetState takes the membership as it is now.
func (l *Live) SetState(s mesh.State) { wake.Latest(l.state, s) }

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
	l.began, l.held = time.Now(), maps.Clone(l.c.InForce())
	if l.held == nil {
		l.held = map[string][2]bool{}
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
		l.groups.take(m.news, l.needs)
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
			l.c.Log.Info("NetworkPolicies of the API are not in force; those that were in force stay", "err", s.Trouble)
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
	for key, f := range l.follows {
		if _, wanted := want[key]; !wanted {
			f.stop()
			delete(l.follows, key)
		}
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
	return len(l.c.InForce()) == 0 && time.Since(l.began) >= unprovedPatience
}

// complete says why what is followed does not count yet, nil if it does. PolicyGroups count one by one once rules were compiled.
func (l *Live) complete() error {
	open := l.open()
	for _, f := range l.follows {
		if f.kind.Name == api.PolicyGroups().Name && l.lastFrom != "" {
			continue
		}
		if f.kind.Name == podgroups.ClusterPolicies().Name && !f.listed && l.held[policy.ClusterKind] == [2]bool{} && (f.refused != nil || open && f.trouble != nil) {
			continue // a chart of an older release, or a cache: NetworkPolicies do not wait for it, and a finding names it
		}
		if err := f.usable(open); err != nil {
			return err
		}
	}
	return nil
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

// hold notes which namespaces have policies: what the PodNetwork lacks has none only where that is proved, and for pods of this node by
// the NetworkPolicies themselves. spaces are the namespaces of this node's pods.
func (l *Live) hold(spaces map[string]bool) {
	for name, text := range l.now.PolicyNamespaces {
		d := [2]bool{strings.Contains(text, "Ingress"), strings.Contains(text, "Egress")}
		if was := l.held[name]; !l.now.PolicyProved {
			d = [2]bool{d[0] || was[0], d[1] || was[1]}
		}
		l.held[name] = d
	}
	cluster := l.follows[keyOf(podgroups.ClusterPolicies())] // what they select is in the rules
	_, selected := l.held[policy.EveryNamespace]
	for name := range spaces {
		_, held := l.held[name]
		selected = selected || held
	}
	decided := cluster != nil && cluster.proved || cluster == nil && l.now.PolicyProved && (len(spaces) == 0 || !selected)
	for name := range l.held {
		if l.now.PolicyNamespaces[name] != "" {
			continue
		}
		gone := l.now.PolicyProved
		f := l.follows[keyOf(podgroups.Policies(name))]
		switch {
		case name == policy.ClusterKind, name == policy.EveryNamespace:
			gone = decided && (cluster == nil || len(cluster.items) == 0)
		case spaces[name]:
			gone = f != nil && f.proved && len(f.items) == 0 && (decided || l.held[policy.ClusterKind] == [2]bool{})
		}
		if gone {
			delete(l.held, name)
		}
	}
}

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
	l.hold(spaces)
	var kinds []api.Kind
	for _, namespace := range slices.Sorted(maps.Keys(spaces)) {
		f := l.follows[keyOf(podgroups.Policies(namespace))]
		if _, held := l.held[namespace]; held || f != nil && len(f.items) > 0 { // the second: it ends by its own word
			kinds = append(kinds, podgroups.Policies(namespace))
		}
	}
	f, marked := l.follows[keyOf(podgroups.ClusterPolicies())], l.held[policy.ClusterKind] != [2]bool{}
	_, everywhere := l.held[policy.EveryNamespace]
	if marked && len(spaces) > 0 && (everywhere || len(kinds) > 0) || f != nil && len(f.items) > 0 {
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
	var all []policy.Policy
	invalid, namespaces := map[string]error{}, map[string]map[string]string{}
	for _, f := range l.follows {
		for _, p := range each[*podgroups.Policy](f) {
			parsed, err := p.Parse()
			if all = append(all, parsed); err != nil {
				invalid[parsed.Key()] = err
			}
		}
		for name, n := range each[*podgroups.Namespace](f) {
			namespaces[name] = n.Labels
		}
	}
	needs := map[string]bool{}
	missing, unknown, readable, patience := map[string]bool{}, map[string]bool{}, l.readable(), patienceOf(all)
	rules := policy.Compile(all, namespaces, pods(own, l.c.Node), func(g policy.Group) []policy.Member {
		id := g.ID()
		needs[id] = true
		members, complete := l.groups.members(id)
		if was, known := l.last.Sets[id]; known && !readable(id) {
			return was
		}
		if complete && readable(id) {
			return members
		}
		missing[id] = true
		if was, known := l.last.Sets[id]; known && !l.late(id, patience(id)) {
			return was
		}
		unknown[id] = true
		return members
	})
	for name, d := range l.held {
		in := rules.Namespaces[name]
		rules.Namespaces[name] = [2]bool{in[0] || d[0], in[1] || d[1]}
	}
	if !maps.Equal(needs, l.needs) {
		l.groups.keep(needs)
		l.needs = needs
		l.steer(ctx, append(kinds, groupKinds(needs)...))
		if err := l.complete(); err != nil {
			return l.unready(err)
		}
	}
	maps.DeleteFunc(l.waits, func(id string, _ time.Time) bool { return !missing[id] })
	status := Status{Invalid: invalid, Engine: engine(own)}
	again := time.Duration(0)
	for id := range missing {
		if l.waits[id].IsZero() {
			l.waits[id] = time.Now()
		}
		for _, d := range []time.Duration{groupPatience, patience(id)} {
			if left := time.Until(l.waits[id].Add(d)); left > 0 && (again == 0 || left < again) {
				again = left
			}
		}
		if l.late(id, groupPatience) {
			status.Trouble = errors.New("a PolicyGroup that a NetworkPolicy needs is not there: its peers are closed until it is; check that a controller runs, and whether its log " +
				"names policies that are over its bounds")
		}
	}
	l.former(rules, func(id string) bool { return missing[id] && !l.late(id, patience(id)) })
	rules.Without(unknown)
	l.bring(rules, "the controller", status)
	return again
}

// readable reports of groups whether what was read of them counts.
func (l *Live) readable() func(id string) bool {
	open := l.open()
	return func(id string) bool {
		for _, k := range groupKinds(l.needs) {
			if f := l.follows[keyOf(k)]; f != nil && strings.Contains(k.Selector, id) {
				return f.usable(open) == nil
			}
		}
		return false
	}
}

// late reports whether rules have waited that long for a group.
func (l *Live) late(id string, patience time.Duration) bool {
	since, waits := l.waits[id]
	return waits && time.Since(since) >= patience
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

// former leaves pods the chains that they have, where their new ones need groups that are waited for.
func (l *Live) former(rules policy.Rules, waits func(id string) bool) {
	last := l.last
	lacks := func(c policy.Chain) bool {
		for _, id := range c.Groups() {
			if waits(id) {
				return true
			}
		}
		return false
	}
	for pod, chains := range rules.Pods {
		was, there := last.Pods[pod]
		for d, name := range chains {
			if !there || !lacks(rules.Chains[name]) {
				continue
			}
			if chains[d] = was[d]; was[d] == "" {
				continue
			}
			c := last.Chains[was[d]]
			rules.Chains[was[d]] = c
			for _, id := range c.Groups() {
				if _, has := rules.Sets[id]; !has {
					rules.Sets[id] = last.Sets[id]
				}
			}
		}
		rules.Pods[pod] = chains
	}
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
	lost := map[string]bool{}
	rules := policy.Compile(all, l.peers.Labels(), pods(own, l.c.Node), func(g policy.Group) []policy.Member {
		lost[g.ID()] = l.peers.Lost(g.ID())
		return l.peers.Members(g.ID())
	})
	rules.Without(lost)
	invalid := map[string]error{}
	for key, why := range l.peers.Over() {
		invalid[key] = errors.New(why)
	}
	maps.Copy(invalid, errs)
	l.bring(rules, "the API", Status{Invalid: invalid, Engine: engine(own)})
	for _, id := range l.peers.Groups() {
		l.peers.Drop(id) // unless it is needed
	}
	clear(l.peers.Changed)
	return 0
}

func (l *Live) newPeers() *podgroups.Peers {
	p := podgroups.NewPeers(nil)
	p.SetBlocks(l.now.Admitted())
	return p
}

// unready notes why what was in force stays. It returns when to look again: lists that nothing proves may count then, or it is trouble.
func (l *Live) unready(err error) time.Duration {
	if l.unread.IsZero() {
		l.unread = time.Now()
	}
	if !errors.Is(err, errWaits) && !errors.Is(err, errUnproved) || time.Since(l.unread) >= lasting {
		l.say(Status{Trouble: err, Engine: l.Status().Engine})
	}
	if first := time.Until(l.began.Add(unprovedPatience)); first > 0 {
		return first
	}
	return lasting
}

// bring has rules enforced, unless another program does.
func (l *Live) bring(rules policy.Rules, from string, s Status) {
	l.unread = time.Time{}
	if s.Trouble == nil {
		s.Trouble = l.refused()
	}
	l.say(s)
	l.c.SetOff(s.Engine != "")
	if len(rules.Namespaces) == 0 {
		rules = policy.Rules{}
	}
	if from == l.lastFrom && reflect.DeepEqual(rules, l.last) {
		return
	}
	l.last, l.lastFrom = rules, from
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
