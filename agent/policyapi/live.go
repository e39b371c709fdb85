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
	// groupPatience is how long new rules wait for a PolicyGroup that the controller has not written yet: their peers are closed then.
	groupPatience = 5 * time.Second
	// unprovedPatience is after how long lists count that nothing proves, where no rule is in force.
	unprovedPatience = 15 * time.Second
)

// Config is what a Live works with.
type Config struct {
	Node    string
	Follow  func(ctx context.Context, k api.Kind, on func(kube.News)) // until ctx ends
	Local   func() (map[netip.Addr]string, error)                     // this node's pods, NAMESPACE/NAME by address
	InForce func() bool                                               // some rules are
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
	waits    time.Time // since when rules wait for a PolicyGroup
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
	return &Live{c: c, state: make(chan mesh.State, 1), pods: wake.NewOne(), in: make(chan message), follows: map[string]*followed{}, groups: groups{}}
}

// SetState takes the membership as it is now.
func (l *Live) SetState(s mesh.State) {
	for {
		select {
		case l.state <- s:
			return
		default:
		}
		select {
		case <-l.state:
		default:
		}
	}
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
	l.began = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer l.readers.Wait()
	defer cancel()
	next := time.NewTimer(unprovedPatience)
	defer next.Stop()
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
				l.peers.Owner = podgroups.Owners(s.Admitted())
				l.peers.Reconsider()
			}
		case <-l.pods:
		case m := <-l.in:
			if l.follows[m.of.key] != m.of {
				continue // not any longer
			}
			l.take(m)
		case <-next.C:
			if again := l.compile(ctx); again > 0 {
				next.Reset(again)
			}
			continue
		}
		next.Reset(together)
	}
}

// take notes news.
func (l *Live) take(m message) {
	m.of.take(m.news)
	switch {
	case m.of.kind.Name == api.PolicyGroups().Name:
		l.groups.take(m.news)
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

// complete says why what is followed does not count yet, nil if it does.
func (l *Live) complete() error {
	open := !l.c.InForce() && time.Since(l.began) >= unprovedPatience
	for _, f := range l.follows {
		if err := f.usable(open); err != nil {
			return err
		}
	}
	return nil
}

// withController reads what the controller has compiled.
func (l *Live) withController(ctx context.Context) time.Duration {
	l.peers = nil
	local, err := l.c.Local()
	if err != nil {
		l.say(Status{Trouble: fmt.Errorf("read the addresses of this node's pods: %w", err)})
		return unprovedPatience
	}
	own := map[string]*podgroups.Pod{}
	if f := l.follows[keyOf(podgroups.Pods(l.c.Node))]; f != nil {
		own = each[*podgroups.Pod](f)
	}
	spaces := map[string]bool{}
	for _, pod := range local {
		namespace, _, _ := strings.Cut(pod, "/")
		spaces[namespace] = true
	}
	for _, p := range own {
		spaces[p.Meta.Namespace] = true
	}
	var kinds []api.Kind
	for _, namespace := range slices.Sorted(maps.Keys(spaces)) {
		f := l.follows[keyOf(podgroups.Policies(namespace))]
		if l.now.PolicyNamespaces[namespace] != "" || f != nil && len(f.items) > 0 { // the second: it ends by its own word
			kinds = append(kinds, podgroups.Policies(namespace))
		}
	}
	if len(kinds) > 0 {
		kinds = append(kinds, podgroups.Pods(l.c.Node))
	}
	l.steer(ctx, append(kinds, groupKinds(l.needs)...))
	if err := l.complete(); err != nil {
		l.unready(err)
		return l.retry()
	}
	var all []policy.Policy
	invalid := map[string]error{}
	for _, f := range l.follows {
		for key, p := range each[*podgroups.Policy](f) {
			parsed, err := p.Parse()
			if all = append(all, parsed); err != nil {
				invalid[key] = err
			}
		}
	}
	needs, missing := map[string]bool{}, false
	rules := policy.Compile(all, pods(own, l.c.Node), func(g policy.Group) []policy.Member {
		needs[g.ID()] = true
		members, complete := l.groups.members(g.ID())
		missing = missing || !complete
		return members
	})
	for namespace, d := range l.now.PolicyNamespaces {
		in := rules.Namespaces[namespace]
		rules.Namespaces[namespace] = [2]bool{in[0] || strings.Contains(d, "Ingress"), in[1] || strings.Contains(d, "Egress")}
	}
	if !maps.Equal(needs, l.needs) {
		l.groups.keep(needs)
		l.needs = needs
		l.steer(ctx, append(kinds, groupKinds(needs)...))
	}
	if !missing {
		l.waits = time.Time{}
	} else if l.waits.IsZero() {
		l.waits = time.Now()
	}
	if wait := time.Until(l.waits.Add(groupPatience)); missing && wait > 0 {
		return wait
	}
	status := Status{Invalid: invalid, Engine: engine(own)}
	if missing {
		status.Trouble = errors.New("the controller has not written a PolicyGroup that a NetworkPolicy needs: its peers are closed until it does; check that a controller runs")
	}
	l.bring(rules, "the controller", status)
	return 0
}

// alone compiles from all pods.
func (l *Live) alone(ctx context.Context) time.Duration {
	if l.peers == nil {
		l.peers = podgroups.NewPeers(podgroups.Owners(l.now.Admitted()))
		l.steer(ctx, nil) // each begins with a list
	}
	all, errs := l.peers.Policies()
	kinds := []api.Kind{podgroups.Policies("")}
	if len(all) > 0 {
		kinds = append(kinds, podgroups.Namespaces(), podgroups.Pods(""))
	}
	l.steer(ctx, kinds)
	if err := l.complete(); err != nil {
		l.unready(err)
		return l.retry()
	}
	own := map[string]*podgroups.Pod{}
	if f := l.follows[keyOf(podgroups.Pods(""))]; f != nil {
		own = each[*podgroups.Pod](f)
		maps.DeleteFunc(own, func(_ string, p *podgroups.Pod) bool { return p.Node != l.c.Node })
	}
	rules := policy.Compile(all, pods(own, l.c.Node), func(g policy.Group) []policy.Member { return l.peers.Members(g.ID()) })
	l.bring(rules, "the API", Status{Invalid: maps.Clone(errs), Engine: engine(own)})
	return 0
}

// unready notes why what was in force stays.
func (l *Live) unready(err error) {
	if !errors.Is(err, errWaits) {
		l.say(Status{Trouble: err, Engine: l.Status().Engine})
	}
}

// retry is when lists that nothing proves may count.
func (l *Live) retry() time.Duration {
	return max(0, time.Until(l.began.Add(unprovedPatience)))
}

// bring has rules enforced, unless another program does.
func (l *Live) bring(rules policy.Rules, from string, s Status) {
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
