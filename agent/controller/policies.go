package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	policy "edgemesh/agent/policy/compile"
	pods "edgemesh/agent/policy/podgroups"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/seldom"
	"edgemesh/internal/watchdog"
)

const (
	// soon is how long changes of pods and policies are collected.
	soon = 50 * time.Millisecond
	// idleGroup is how long a group stays that no policy needs: policies are replaced, and an agent may not have heard yet.
	idleGroup = 10 * time.Minute
	// longestAgain is after how long a group is tried again at the latest that cannot be written; networkAgain of the PodNetwork, without which
	// agents read no first policy.
	longestAgain = time.Minute
	networkAgain = 5 * time.Second
	// mostNamespaces is how many the PodNetwork names: where as many have policies it says that any may.
	mostNamespaces = 10_000
)

// policies compiles the peers of NetworkPolicies into PolicyGroups, which agents read in place of all pods, and says in the PodNetwork's
// status which namespaces have policies. Pods are followed once there is a policy. All of it belongs to the goroutine in run, and during
// a round to those that it waits for.
type policies struct {
	api      cluster
	members  <-chan mesh.State // latest: whose block an address is of
	loop     *watchdog.Loop
	log      *slog.Logger
	metrics  *metrics
	reported seldom.Log
	accused  seldom.Log // nodes

	peers *pods.Peers
	have  map[string]map[string]bool             // by kind: keys that were listed; nil: not listed yet
	made  map[string]map[string]*api.PolicyGroup // as they are in the API, by group and name
	owned bool                                   // the membership is known
	idle  map[string]time.Time                   // groups that no policy needs, and since when
	began bool                                   // there were policies
	stop  context.CancelFunc                     // ends the readers of pods and namespaces, as the end of run does; nil: there are none
	later map[string]later                       // groups that could not be written; "": the PodNetwork
}

// later is when a group is tried again, and how long after the last attempt that is.
type later struct {
	at   time.Time
	wait time.Duration
}

func newPolicies(c cluster, members <-chan mesh.State, loop *watchdog.Loop, log *slog.Logger, m *metrics) *policies {
	return &policies{api: c, members: members, loop: loop, log: log, metrics: m, peers: pods.NewPeers(func(netip.Addr) string { return "" }),
		have: map[string]map[string]bool{}, made: map[string]map[string]*api.PolicyGroup{}, idle: map[string]time.Time{}, later: map[string]later{}}
}

// run compiles until ctx ends.
func (p *policies) run(ctx context.Context) {
	in := make(chan news)
	var readers sync.WaitGroup
	defer readers.Wait()
	read := func(k api.Kind) { readers.Go(func() { follow(ctx, p.api, k, nil, in) }) }
	read(pods.Policies(""))
	read(api.PolicyGroups())
	next, say := time.NewTimer(time.Hour), time.NewTicker(sayEvery)
	defer next.Stop()
	defer say.Stop()
	waiting, said := false, map[string]string(nil)
	var states <-chan mesh.State // nil until there is a policy
	var objects chan news        // of pods and namespaces, of those readers that run now: what former ones still say is of no use
	for {
		speak := false
		select {
		case <-ctx.Done():
			return
		case n := <-in:
			p.hear(ctx, n)
			if !p.began && len(p.have[pods.Policies("").Name]) > 0 {
				p.began, states = true, p.members
			}
		case n := <-objects:
			p.hear(ctx, n)
		case s := <-states:
			p.peers.SetState(s.Admitted())
			p.owned = true
			switch off := s.NetworkPolicy == mesh.PolicyOff; { // then the chart gives no right to pods
			case !off && p.stop == nil:
				var until context.Context
				until, p.stop = context.WithCancel(ctx)
				objects = make(chan news)
				for _, k := range []api.Kind{pods.Namespaces(), pods.Pods("")} {
					out := objects
					readers.Go(func() { follow(until, p.api, k, nil, out) })
				}
			case off && p.stop != nil:
				p.stop()
				p.stop, objects = nil, nil
				for _, k := range []api.Kind{pods.Namespaces(), pods.Pods("")} {
					for key := range p.have[k.Name] {
						p.forget(k, key)
					}
					delete(p.have, k.Name)
				}
			}
		case <-say.C:
			speak = true
		case <-next.C:
			if waiting = false; !p.ready() { // a first policy has pods read: without them its groups would be empty
				continue
			}
			err := p.round(ctx)
			if err != nil && ctx.Err() == nil {
				p.failed("write PolicyGroups; those that there are stay, and nodes close peers of new policies whose groups are missing", err)
			}
			// Whatever group is missing: a node closes its peers.
			if want := p.namespaces(); want != nil && !time.Now().Before(p.later[""].at) && (said == nil || !maps.Equal(want, said)) {
				if err = p.say(ctx, want); err == nil {
					said = want
					delete(p.later, "")
				} else if ctx.Err() == nil {
					p.postpone("")
					p.failed("say in the PodNetwork's status which namespaces have NetworkPolicies", err)
				}
			}
			if ctx.Err() == nil && len(p.later)+len(p.peers.Changed) > 0 {
				next.Reset(sweepAgain) // news comes first
			}
			continue
		}
		if speak && said != nil { // the PodNetwork may have been made again
			if err := p.say(ctx, said); err != nil && ctx.Err() == nil {
				p.failed("say in the PodNetwork's status which namespaces have NetworkPolicies", err)
			}
		}
		if !waiting && p.ready() {
			next.Reset(soon)
			waiting = true
		}
	}
}

func (p *policies) failed(what string, err error) {
	p.metrics.failures.Inc()
	if p.reported.Due(what) {
		p.log.Warn("cannot "+what+"; retrying", "err", err)
	}
}

// ready reports whether enough is known to write.
func (p *policies) ready() bool {
	// Without any policy it does not matter whether the API has PolicyGroups; with networkPolicy: off pods are not read, and nothing is compiled.
	kinds := []api.Kind{pods.Policies("")}
	if p.began {
		kinds = append(kinds, api.PolicyGroups(), pods.Namespaces(), pods.Pods(""))
	}
	return (p.owned || !p.began) && !slices.ContainsFunc(kinds, func(k api.Kind) bool { return p.have[k.Name] == nil })
}

// hear takes what the API says of a kind.
func (p *policies) hear(ctx context.Context, n news) {
	_, end := p.loop.Begin(ctx)
	defer end()
	switch {
	case n.err != nil:
		p.failed("follow "+n.kind.Name+": NetworkPolicies stay as they were compiled", n.err)
	case n.all:
		now := make(map[string]bool, len(n.list))
		for _, o := range n.list {
			now[pods.Key(o)] = true
			p.take(n.kind, o)
		}
		for key := range p.have[n.kind.Name] {
			if !now[key] {
				p.forget(n.kind, key)
			}
		}
		p.have[n.kind.Name] = now
	case n.event.What == client.Deleted:
		p.forget(n.kind, pods.Key(n.event.Object))
		delete(p.have[n.kind.Name], pods.Key(n.event.Object))
	default:
		p.take(n.kind, n.event.Object)
		p.have[n.kind.Name][pods.Key(n.event.Object)] = true
	}
}

// take notes an object.
func (p *policies) take(k api.Kind, o api.Object) {
	key := pods.Key(o)
	if pod, ok := o.(*pods.Pod); ok && pod.Cut && p.reported.Due("ports of "+key) {
		p.log.Warn("pod "+key+" names more ports than NetworkPolicies know: the last ones are in no group", "remedy", "name fewer containerPorts")
	}
	g, ok := o.(*api.PolicyGroup)
	if !ok {
		p.peers.Set(k, key, o)
		return
	}
	id := groupOf(key)
	if p.made[id] == nil {
		p.made[id] = map[string]*api.PolicyGroup{}
	}
	if was := p.made[id][key]; was == nil || was.Meta.UID != g.Meta.UID || older(was, g) { // else this controller has written it, or what came after it
		p.made[id][key] = g
		p.peers.Changed[id] = true
	}
}

// groupOf is the group of a PolicyGroup of that name.
func groupOf(name string) string {
	id, _, _ := strings.Cut(name, "-")
	return id
}

// older reports whether b is a later version of the same object than a.
func older(a, b *api.PolicyGroup) bool {
	x, err := strconv.ParseUint(a.Meta.ResourceVersion, 10, 64)
	y, failed := strconv.ParseUint(b.Meta.ResourceVersion, 10, 64)
	if err != nil || failed != nil {
		return a.Meta.ResourceVersion != b.Meta.ResourceVersion
	}
	return x < y
}

// forget notes that an object of that key is gone.
func (p *policies) forget(k api.Kind, key string) {
	if k.Name != api.PolicyGroups().Name {
		p.peers.Set(k, key, nil)
		return
	}
	id := groupOf(key)
	delete(p.made[id], key)
	p.peers.Changed[id] = true
}

// round makes the PolicyGroups of the groups that changed what they should be, under the name that agents of the release before know, too.
// Those where that fails stay changed.
func (p *policies) round(ctx context.Context) error {
	ctx, end := p.loop.Begin(ctx)
	defer end()
	now := time.Now()
	p.tidy(now)
	changed := slices.DeleteFunc(slices.Sorted(maps.Keys(p.peers.Changed)), func(id string) bool { return now.Before(p.later[id].at) })
	of := map[string]string{} // the group that is to be written, by each of its names
	for _, id := range changed {
		for _, name := range []string{id, policy.Former(id)} {
			if of[name] = name; len(p.peers.Named(name)) > 0 {
				of[name] = p.peers.Named(name)[0]
			}
		}
	}
	names := slices.Sorted(maps.Keys(of))
	errs := make([]error, len(names))
	slots := make(chan struct{}, workers)
	var all sync.WaitGroup
	for i, name := range names {
		id := of[name]
		var want []*api.PolicyGroup
		if p.peers.Known(id) || p.peers.Needed(id) && len(p.made[name]) > 0 { // the second: over the bounds, without members
			want = pods.Chunks(name, p.peers.Selector(id), p.peers.Members(id), len(p.made[name]))
		} else if _, waits := p.idle[id]; waits && len(p.made[name]) > 0 {
			continue
		}
		if p.made[name] == nil {
			p.made[name] = map[string]*api.PolicyGroup{}
		}
		made := p.made[name]
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = p.agree(ctx, want, made)
		})
	}
	all.Wait()
	failed := map[string]bool{}
	for i, name := range names {
		failed[name] = errs[i] != nil
		if len(p.made[name]) == 0 {
			delete(p.made, name)
		}
	}
	for _, id := range changed {
		if failed[id] || failed[policy.Former(id)] {
			p.postpone(id)
		} else {
			delete(p.peers.Changed, id)
			delete(p.later, id)
		}
	}
	p.metrics.groups.Set(float64(p.groups()))
	p.accuse(ctx)
	p.bounded()
	return several(errs)
}

// groups counts those that are in the API by their name of now.
func (p *policies) groups() (n int) {
	for name := range p.made {
		if name != policy.Former(name) {
			n++
		}
	}
	return n
}

// postpone has what could not be written tried again, later each time.
func (p *policies) postpone(id string) {
	longest := longestAgain
	if id == "" {
		longest = networkAgain
	}
	wait := min(max(sweepAgain, 2*p.later[id].wait), longest)
	p.later[id] = later{time.Now().Add(wait), wait}
}

// several are the first errors of some, and how many more there are.
func several(errs []error) error {
	const most = 4
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - most; more > 0 {
		errs = append(errs[:most], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// bounded names what is over the bounds: policies with peers that stay closed.
func (p *policies) bounded() {
	over := p.peers.Over()
	for _, key := range slices.Sorted(maps.Keys(over))[:min(len(over), 8)] {
		if p.reported.Due("over " + key) {
			p.log.Warn("policy "+key+": "+over[key], "remedy", "delete policies, or select the pods by fewer different selectors", "policies", len(over))
		}
	}
}

// tidy marks groups for deletion that no policy has needed for a while.
func (p *policies) tidy(now time.Time) {
	for id := range p.made {
		if len(p.peers.Named(id)) == 0 { // else it is another one's former name, until that goes
			p.consider(id, now)
		}
	}
	for _, id := range p.peers.Groups() {
		p.consider(id, now)
	}
}

func (p *policies) consider(id string, now time.Time) {
	since, idle := p.idle[id]
	switch {
	case p.peers.Needed(id):
		delete(p.idle, id)
	case !idle:
		p.idle[id] = now
	case now.Sub(since) >= idleGroup, p.peers.Pressed(id):
		p.peers.Drop(id)
		delete(p.idle, id)
		p.peers.Changed[id] = true
	}
}

// agree makes the PolicyGroups of one group what they should be: what gains members first, and what is not wanted last, so that whoever
// reads all of them misses none.
func (p *policies) agree(ctx context.Context, want []*api.PolicyGroup, made map[string]*api.PolicyGroup) error {
	named := map[string]bool{}
	for _, w := range want {
		named[w.Meta.Name] = true
	}
	slices.SortStableFunc(want, func(a, b *api.PolicyGroup) int { return gains(b, made) - gains(a, made) })
	for _, w := range want {
		old := made[w.Meta.Name]
		var got api.PolicyGroup
		var err error
		switch {
		case old == nil:
			err = p.api.Create(ctx, api.PolicyGroups().Path(""), w, &got)
		case same(old, w):
			continue
		default:
			labels := replacing(old.Meta.Labels, w.Meta.Labels) // what others put there is refused by our own ValidatingAdmissionPolicy
			patch := map[string]any{"metadata": map[string]any{"uid": old.Meta.UID, "resourceVersion": old.Meta.ResourceVersion, "labels": labels, "finalizers": nil,
				"ownerReferences": nil}, "spec": w.Spec}
			err = p.api.Patch(ctx, api.PolicyGroups().Path(w.Meta.Name), client.Merge, nil, patch, &got)
		}
		if apierrors.IsInvalid(err) {
			return fmt.Errorf("PolicyGroup %s: apply the chart's crds/, this CustomResourceDefinition is of a release before: %w", w.Meta.Name, err)
		}
		if err != nil {
			return fmt.Errorf("PolicyGroup %s: %w", w.Meta.Name, err)
		}
		made[w.Meta.Name] = &got
	}
	for name, old := range made {
		if named[name] {
			continue
		}
		if err := removed(ctx, p.api, api.PolicyGroups().Path(name), old.Meta.UID); err != nil {
			return fmt.Errorf("PolicyGroup %s: %w", name, err)
		}
		delete(made, name)
	}
	return nil
}

// gains is 2 if w is not in the API, where members of others move to it, and 1 if it has members that it lacks there.
func gains(w *api.PolicyGroup, made map[string]*api.PolicyGroup) int {
	old := made[w.Meta.Name]
	if old == nil {
		return 2
	}
	have := make(map[string]bool, len(old.Spec.Members))
	for _, m := range old.Spec.Members {
		have[m] = true
	}
	if slices.ContainsFunc(w.Spec.Members, func(m string) bool { return !have[m] }) {
		return 1
	}
	return 0
}

func same(a, b *api.PolicyGroup) bool {
	stated := a.Spec.Selector == b.Spec.Selector || a.Spec.Selector == "" // a CustomResourceDefinition before takes it away
	return stated && a.Spec.Group == b.Spec.Group && a.Spec.Chunk == b.Spec.Chunk && a.Spec.Chunks == b.Spec.Chunks && slices.Equal(a.Spec.Members, b.Spec.Members) &&
		maps.Equal(a.Meta.Labels, b.Meta.Labels)
}

// accuse names pods that claim addresses of other nodes: they are in no group.
func (p *policies) accuse(ctx context.Context) {
	forged := p.peers.Forged()
	p.metrics.forged.Set(float64(len(forged)))
	for _, key := range slices.Sorted(maps.Keys(forged)) {
		f := forged[key]
		if !p.accused.Due(f.Node) { // however many pods it makes up
			continue
		}
		text := fmt.Sprintf("pod %s of node %s claims the address %s, which is of the block of node %s: NetworkPolicies do not know it as a peer", key, f.Node, f.Addr, f.Owner)
		p.log.Warn(text, "remedy", "find what writes pods' status with the node's identity; if the node was taken over, delete its Node and list it in the PodNetwork's banned")
		var node api.Node
		err := p.api.Get(ctx, api.Nodes().Path(f.Node), &node)
		if err == nil {
			var ignored struct{}
			err = p.api.Create(ctx, api.EventsPath, api.NodeEvent(node.Meta, "edgemesh-controller", "Warning", "MeshForgedAddress", text), &ignored)
		}
		if err != nil {
			p.log.Info("an event could not be recorded", "node", f.Node, "err", err)
		}
	}
}

// directions in which policies isolate, as the PodNetwork's status has them.
func directions(d [2]bool) string {
	return strings.Join(slices.DeleteFunc([]string{"Ingress", "Egress"}, func(name string) bool { return !d[0] && name == "Ingress" || !d[1] && name == "Egress" }), ",")
}

// namespaces are those with policies, for the PodNetwork's status; nil: not known yet.
func (p *policies) namespaces() map[string]string {
	if !p.ready() {
		return nil
	}
	out := map[string]string{}
	every := [2]bool{}
	for name, d := range p.peers.Namespaces() {
		out[name] = directions(d)
		every = [2]bool{every[0] || d[0], every[1] || d[1]}
	}
	if len(out) < mostNamespaces {
		return out
	}
	return map[string]string{policy.EveryNamespace: directions(every)}
}

// say writes into the PodNetwork's status which namespaces have policies.
func (p *policies) say(ctx context.Context, want map[string]string) error {
	ctx, end := p.loop.Begin(ctx)
	defer end()
	var n api.PodNetwork
	path := api.PodNetworks().Path(api.NetworkName)
	if err := p.api.Get(ctx, path, &n); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // nobody reads it yet
		}
		return fmt.Errorf("read the PodNetwork: %w", err)
	}
	if n.Status.Policies != nil && maps.Equal(n.Status.Policies, want) {
		return nil
	}
	patch := map[string]any{"status": map[string]any{"policies": replacing(n.Status.Policies, want)}}
	if err := p.api.Patch(ctx, path+"/status", client.Merge, nil, patch, &n); err != nil {
		return fmt.Errorf("say in the PodNetwork's status which namespaces have NetworkPolicies: %w", err)
	}
	if n.Status.Policies == nil {
		return errors.New("the PodNetwork's status does not keep `policies`: its CustomResourceDefinition is of an older release; apply the chart's crds/")
	}
	p.log.Info("compiled NetworkPolicies", "namespaces", len(want), "groups", p.groups())
	return nil
}

// membership hands out the members until ctx ends.
func membership(ctx context.Context, access client.Access, version string, log *slog.Logger, onState func(mesh.State)) error {
	dir, err := os.MkdirTemp("", "edgemesh-members")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	source, err := kube.New(kube.Config{Access: access, ReadOnly: true, AgentVersion: version, StateDir: dir, Log: log})
	if err != nil {
		return err
	}
	source.Watch(ctx, onState, func(err error) { log.Warn("the membership cannot be read as a whole", "err", err) })
	return nil
}
