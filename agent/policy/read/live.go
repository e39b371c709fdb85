// Package read compiles the NetworkPolicies of a cluster for the pods of this node, as the API has them now.
//
//	live.go    Live: what it follows, and when it compiles
//	read.go    what was read of one kind; groups.go: of PolicyGroups
//	beside.go  other programs that enforce NetworkPolicies on this node; findings.go: what there is to say
//
// With a controller it reads the NetworkPolicies of the namespaces of this node's pods, these pods, and the PolicyGroups that their
// policies need; without one, all policies, and once there is one, all pods and namespaces. Where no namespace has policies that is no
// request with a controller, and one watch without. Once an hour it asks whether there are ClusterNetworkPolicies, to say that they are
// not enforced.
//
// What is in force stays until all that is read is proved to be current: a cache that lacks a policy opens nothing.
package read

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
	"sync/atomic"
	"time"

	"edgemesh/agent/policy"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/podgroups"
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
	// closePatience is after how long pods that were never judged are closed, where policies are named that cannot be compiled.
	closePatience = 15 * time.Second
	// unprovedPatience is after how long lists count that nothing proves, where no rule is in force.
	unprovedPatience = 15 * time.Second
	// lookEvery is how often the API is asked for ClusterNetworkPolicies, which nothing here enforces.
	lookEvery = time.Hour
)

// clusterPolicies are a kind that the cluster may have, and nothing here enforces.
func clusterPolicies() api.Kind {
	return api.Kind{Name: "clusternetworkpolicies", Group: "policy.networking.k8s.io", Version: "v1alpha2"}
}

// Config is what a Live works with.
type Config struct {
	Node    string
	Follow  func(ctx context.Context, k api.Kind, on func(kube.News)) // until ctx ends
	Local   func() (map[netip.Addr]string, error)                     // this node's pods, NAMESPACE/NAME by address
	Has     func(ctx context.Context, k api.Kind) bool                // the API has objects of a kind
	InForce func() policy.Rules
	Set     func(enforce.Given)
	SetOff  func(bool)
	Log     *slog.Logger
}

// Live compiles. Its exported methods may be called at any time.
type Live struct {
	c     Config
	state chan mesh.State // latest
	pods  wake.One        // this node's changed
	in    chan message

	cluster atomic.Bool // there are ClusterNetworkPolicies

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
	first    bool // all pods are closed since nothing was ever known here, and nothing was compiled
}

// Status is what there is to say of it.
type Status struct {
	Engine  string           // another program that enforces NetworkPolicies here
	Passer  string           // a pod that passes for one, and is not
	Invalid map[string]error // policies that close what they select, by NAMESPACE/NAME
	Off     bool             // networkPolicy: off
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
	l.readers.Go(func() {
		for again := true; again; again = wake.Sleep(ctx, lookEvery) {
			l.cluster.Store(l.c.Has(ctx, clusterPolicies()))
		}
	})
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
				l.peers.SetState(s.Admitted())
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
		s := Status{Off: off}
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

// complete says why what is followed does not count yet, nil if it does. PolicyGroups and namespaces' policies count one by one once rules
// were compiled.
func (l *Live) complete() error {
	open := l.open()
	for _, f := range l.follows {
		if f.kind.Name == api.PolicyGroups().Name && l.lastFrom != "" || f.kind.Namespace != "" && (l.lastFrom != "" || time.Since(l.began) >= unprovedPatience) {
			continue
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
	for name := range l.held {
		if l.now.PolicyNamespaces[name] != "" {
			continue
		}
		gone := l.now.PolicyProved
		if f := l.follows[keyOf(podgroups.Policies(name))]; spaces[name] {
			gone = f != nil && f.proved && len(f.items) == 0
		}
		if gone {
			delete(l.held, name)
		}
	}
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
	if len(kinds) > 0 {
		kinds = append(kinds, podgroups.Pods(l.c.Node))
	}
	l.steer(ctx, append(kinds, groupKinds(l.needs)...))
	if err := l.complete(); err != nil {
		return l.unready(err)
	}
	l.asked = map[string]bool{}
	status := Status{Invalid: map[string]error{}}
	status.Engine, status.Passer = engine(own, l.now.EnforcerNamespaces)
	var all []policy.Policy
	for _, f := range l.follows {
		for _, p := range each[*podgroups.Policy](f) {
			parsed, err := p.Parse()
			if all = append(all, parsed); err != nil {
				status.Invalid[parsed.Key()] = err
			}
		}
	}
	unread := l.unreadOf(spaces, &status)
	needs, missing, unknown, readable := map[string]bool{}, map[string]bool{}, map[string]bool{}, l.readable()
	judged := slices.DeleteFunc(pods(own), func(p policy.Pod) bool { return unread[p.Namespace] })
	rules := policy.Compile(all, judged, func(g policy.Group) []policy.Member {
		id, former := g.ID(), policy.Former(g.ID())
		needs[id], needs[former] = true, true
		members, complete := l.groups.members(id, g.Selector())
		if complete = complete && readable(id); !complete { // a controller before knows the former name alone
			if all, whole := l.groups.members(former, g.Selector()); whole && readable(former) {
				members, complete = all, true
			}
		}
		if complete {
			l.whole[id] = members
			return members
		}
		since := l.waiting("group " + id)
		if since >= groupPatience {
			status.Trouble = errors.New("a PolicyGroup that a policy needs is not there as a whole: its other peers are closed until it is; " +
				"check that a controller runs, and whether its log names policies that are over its bounds")
		}
		whole, known := l.whole[id]
		if missing[id] = !known; known && since < groupPatience {
			return policy.Sorted(slices.Concat(whole, members))
		}
		unknown[id] = true
		return members
	})
	l.closing(&rules)
	if every {
		var known []string
		for _, namespace := range slices.Sorted(maps.Keys(spaces)) {
			if !unread[namespace] {
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
	l.former(rules, own, unread, missing)
	rules.Without(unknown)
	l.bring(rules, "the controller", status)
	maps.DeleteFunc(l.waits, func(key string, _ time.Time) bool { return !l.asked[key] })
	again := time.Duration(0)
	for _, since := range l.waits {
		if left := time.Until(since.Add(groupPatience)); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	return again
}

// closing adds to rules where policies may be that are not in them.
func (l *Live) closing(rules *policy.Rules) {
	for name, d := range l.held {
		rules.Namespaces[name] = either(rules.Namespaces[name], d)
	}
}

// unreadOf are the namespaces whose policies are not known yet: nothing is compiled for their pods, and no other pod waits.
func (l *Live) unreadOf(spaces map[string]bool, s *Status) map[string]bool {
	out, open := map[string]bool{}, l.open()
	for namespace := range spaces {
		f := l.follows[keyOf(podgroups.Policies(namespace))]
		if f == nil {
			continue
		}
		err := f.usable(open)
		if err == nil {
			continue
		}
		if out[namespace] = true; l.waiting("namespace "+namespace) >= groupPatience {
			s.Trouble = fmt.Errorf("the policies of namespace %s are not known: %w", namespace, err)
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

// waiting is for how long key has been waited for: each compilation has asked since then.
func (l *Live) waiting(key string) time.Duration {
	if _, waits := l.waits[key]; !waits {
		l.waits[key] = time.Now()
	}
	l.asked[key] = true
	return time.Since(l.waits[key])
}

// former leaves pods the chains that they have where their new ones need a group that is missing, all of which was never known, or where their
// namespace is unread: for a group as long as there is patience, from when that began, whatever changes meanwhile.
func (l *Live) former(rules policy.Rules, own map[string]*podgroups.Pod, unread, missing map[string]bool) {
	for pod, chains := range rules.Pods {
		was, there := l.last.Pods[pod]
		for d, name := range chains {
			lacks := slices.ContainsFunc(rules.Chains[name].Groups(), func(id string) bool { return missing[id] })
			if lacks && l.waiting(fmt.Sprint("pod ", pod, d)) < groupPatience && there && l.lastFrom != "" { // a start does not prolong it
				chains[d] = was[d]
				l.keep(rules, was[d])
			}
		}
		rules.Pods[pod] = chains
	}
	for _, p := range pods(own) {
		pod := p.Namespace + "/" + p.Name
		_, there := l.last.Pods[pod]
		if there && unread[p.Namespace] {
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
	kinds := []api.Kind{podgroups.Policies("")}
	if len(all) > 0 {
		kinds = append(kinds, podgroups.Namespaces(), podgroups.Pods(""))
	} else if l.follows[keyOf(podgroups.Pods(""))] != nil {
		l.peers = l.newPeers() // pods are followed no longer
	}
	l.steer(ctx, kinds)
	if err := l.complete(); err != nil {
		return l.unready(err)
	}
	own := l.own(podgroups.Pods(""))
	rules := policy.Compile(all, pods(own), func(g policy.Group) []policy.Member { return l.peers.Members(g.ID()) })
	invalid := map[string]error{}
	for key, why := range l.peers.Over() {
		invalid[key] = errors.New(why)
	}
	maps.Copy(invalid, errs)
	status := Status{Invalid: invalid}
	status.Engine, status.Passer = engine(own, l.now.EnforcerNamespaces)
	l.bring(rules, "the API", status)
	l.held = maps.Clone(rules.Namespaces)
	for _, id := range l.peers.Groups() {
		l.peers.Drop(id) // unless it is needed
	}
	clear(l.peers.Changed)
	return 0
}

func (l *Live) newPeers() *podgroups.Peers {
	p := podgroups.NewPeers(nil)
	p.SetState(l.now.Admitted())
	return p
}

// release opens what First has closed: the cluster's release of controller or chart has no policies in force.
func (l *Live) release() {
	if l.first {
		l.first, l.last, l.held = false, policy.Rules{}, map[string][2]bool{}
		l.c.Set(enforce.Given{From: "no source yet"})
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
	if time.Since(l.unread) >= closePatience {
		l.closeUnjudged()
	}
	for _, at := range []time.Time{l.began.Add(unprovedPatience), l.unread.Add(closePatience)} {
		if left := time.Until(at); left > 0 {
			return left
		}
	}
	return lasting
}

// closeUnjudged closes pods that were never judged: what there is cannot be read, and may close them.
func (l *Live) closeUnjudged() {
	rules := l.last
	rules.Namespaces = map[string][2]bool{}
	maps.Copy(rules.Namespaces, l.last.Namespaces)
	l.closing(&rules)
	// A right that is missing is the chart's of an older release: its policies were never in force.
	if l.refused() != nil || maps.Equal(rules.Namespaces, l.last.Namespaces) {
		return
	}
	l.last = rules
	l.c.Set(enforce.Given{From: "policies that cannot be compiled yet", Rules: rules, Closes: true})
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
	l.last, l.lastFrom, l.first = rules, from, false
	l.c.Set(enforce.Given{From: from, Rules: rules})
}

// pods are this node's, without addresses: those are in its own records.
func pods(own map[string]*podgroups.Pod) (out []policy.Pod) {
	for _, key := range slices.Sorted(maps.Keys(own)) {
		out = append(out, own[key].As)
	}
	return out
}
