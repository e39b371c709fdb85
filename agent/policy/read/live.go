// Package read compiles the NetworkPolicies of a cluster for the pods of this node, as the API has them now.
//
//	live.go      Live: what it reads, and when it decides
//	decide.go    what was seen becomes rules, purely; how long what is missing is waited for
//	file.go      policies of a membership file, a source beside the API
//	followed.go  what was read of one kind; groups.go: of PolicyGroups
//	findings.go  what there is to say, of other programs that enforce NetworkPolicies on this node, too
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
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/podgroups"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// lookEvery is how often the API is asked for ClusterNetworkPolicies, which nothing here enforces.
const lookEvery = time.Hour

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
	c      Config
	states chan mesh.State // latest
	pods   wake.One        // this node's changed
	in     chan message

	cluster atomic.Bool // there are ClusterNetworkPolicies

	mu   sync.Mutex // a leaf
	said Status

	// Of the goroutine in Run:
	seen
	known   bool // state is set
	readers sync.WaitGroup
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
	return &Live{c: c, states: make(chan mesh.State, 1), pods: wake.NewOne(), in: make(chan message), seen: seen{node: c.Node, follows: map[string]*followed{},
		groups: groups{}, memory: memory{held: map[string][2]bool{}, whole: map[string][]policy.Member{}}}}
}

// SetState takes the membership as it is now.
func (l *Live) SetState(s mesh.State) { wake.Latest(l.states, s) }

// First returns, of a node that has never known policies, the namespaces whose pods are to be closed until policies are compiled: pods may be made
// before. It must be called before Run.
func (l *Live) First(s mesh.State) policy.Rules {
	rules := policy.Rules{Namespaces: map[string][2]bool{}}
	switch {
	case s.NetworkPolicy == mesh.PolicyOff:
	case s.PolicyController:
		now := l.seen
		now.state = s
		now.believe(nil)
		now.closing(&rules)
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
	return l.said
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
		case s := <-l.states:
			if l.known && reflect.DeepEqual(s.Policies, l.state.Policies) && (l.peers == nil || reflect.DeepEqual(s.Nodes, l.state.Nodes)) {
				continue
			}
			l.state, l.known = s, true
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

// compile brings what was seen into force, and reads what that needs. It returns after how long it is to be called again, 0 for at the
// next change.
func (l *Live) compile(ctx context.Context) time.Duration {
	if !l.known {
		return 0
	}
	off, controller := l.state.NetworkPolicy == mesh.PolicyOff, l.state.PolicyController
	if alone := !off && !controller; alone != (l.peers != nil) {
		l.steer(ctx, nil, false) // what Peers know begins with a list
		if l.peers = nil; alone {
			l.peers = l.newPeers()
		}
	}
	if controller && !off {
		var err error
		if l.local, err = l.c.Local(); err != nil {
			l.say(Status{Trouble: fmt.Errorf("read the addresses of this node's pods: %w", err)})
			return unprovedPatience
		}
	}
	l.inForce = len(l.c.InForce().Namespaces) > 0
	d := decide(l.seen, time.Now())
	l.memory = d.memory
	l.groups.keep(d.needs)
	pods := keyOf(podgroups.Pods(""))
	had := l.follows[pods] != nil
	l.steer(ctx, d.follow, d.proofless)
	if l.peers != nil {
		if had && l.follows[pods] == nil {
			l.peers = l.newPeers()
		}
		for _, id := range l.peers.Groups() {
			l.peers.Drop(id) // unless it is needed
		}
		clear(l.peers.Changed)
	}
	l.say(d.status)
	l.c.SetOff(d.off)
	if d.given != nil {
		l.c.Set(*d.given)
	}
	return d.waits.next
}

// say notes what there is to say.
func (l *Live) say(s Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Trouble != nil {
		if s.Since = l.said.Since; l.said.Trouble == nil {
			s.Since = time.Now()
			l.c.Log.Info("not every policy of the API is in force; those that were stay", "err", s.Trouble)
		}
	}
	if s.Engine != l.said.Engine {
		l.c.Log.Info("who enforces NetworkPolicies on this node has changed", "program", s.Engine, "before", l.said.Engine)
	}
	l.said = s
}

// steer follows these kinds, and no others. proofless: lists count that nothing proves.
func (l *Live) steer(ctx context.Context, kinds []api.Kind, proofless bool) {
	want := map[string]api.Kind{}
	for _, k := range kinds {
		want[keyOf(k)] = k
	}
	late := slices.ContainsFunc(kinds, func(k api.Kind) bool { // what read the groups before continues until others do
		f := l.follows[keyOf(k)]
		return k.Name == api.PolicyGroups().Name && (f == nil || f.usable(proofless) != nil)
	})
	for key, f := range l.follows {
		if _, wanted := want[key]; wanted || late && f.kind.Name == api.PolicyGroups().Name && f.usable(proofless) == nil {
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

func (l *Live) newPeers() *podgroups.Peers {
	p := podgroups.NewPeers(nil)
	p.SetState(l.state.Admitted())
	return p
}
