package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policy "edgemesh/agent/policy/compile"
	pods "edgemesh/agent/policy/podgroups"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/watchdog"
)

// groupAPI holds PolicyGroups and a PodNetwork, and notes what is written, in order.
type groupAPI struct {
	mu      sync.Mutex
	groups  map[string]*api.PolicyGroup
	network api.PodNetwork
	objects map[string][]api.Object // of other kinds, as they are listed
	writes  []string
	version int
	fail    string // writes to this path fail
	lacks   bool   // it has no PolicyGroups
	down    error  // what writes are answered with
}

var _ cluster = (*groupAPI)(nil)

func (f *groupAPI) List(_ context.Context, k api.Kind, _ func(api.Object)) (out []api.Object, rv string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lacks && k.Name == "policygroups" {
		return nil, "", apierrors.NewNotFound(schema.GroupResource{}, k.Name)
	}
	for _, g := range f.groups {
		if k.Name == "policygroups" {
			c := *g
			out = append(out, &c)
		}
	}
	return append(out, f.objects[k.Name]...), "1", nil
}

func (f *groupAPI) Watch(ctx context.Context, _ api.Kind, _ string, _ int, _ func(api.Object)) (*client.Stream, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (f *groupAPI) Get(_ context.Context, path string, out any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch out := out.(type) {
	case *api.PodNetwork:
		*out = f.network
	case *api.Node:
		out.Meta.Name = path[strings.LastIndex(path, "/")+1:]
	}
	return nil
}

func (f *groupAPI) Create(_ context.Context, path string, in, out any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, ok := in.(*api.PolicyGroup)
	if !ok {
		f.writes = append(f.writes, "event "+in.(map[string]any)["reason"].(string))
		return nil
	}
	if f.down != nil {
		return f.down
	}
	if f.fail != "" && f.fail == g.Meta.Name {
		return apierrors.NewConflict(schema.GroupResource{}, g.Meta.Name, nil)
	}
	c := *g
	f.version++
	c.Meta.UID, c.Meta.ResourceVersion = fmt.Sprint("uid-", f.version), fmt.Sprint(f.version)
	f.groups[g.Meta.Name] = &c
	f.wrote("create", g)
	*out.(*api.PolicyGroup) = c
	return nil
}

func (f *groupAPI) Patch(_ context.Context, path, _ string, _ url.Values, in, out any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, err := json.Marshal(in)
	if err = errors.Join(err, f.down); err != nil {
		return err
	}
	if n, ok := out.(*api.PodNetwork); ok {
		var change struct {
			Status struct{ Policies map[string]*string }
		}
		if err := json.Unmarshal(body, &change); err != nil {
			return err
		}
		now := maps.Clone(f.network.Status.Policies)
		if now == nil {
			now = map[string]string{}
		}
		for name, d := range change.Status.Policies {
			if d == nil {
				delete(now, name)
			} else {
				now[name] = *d
			}
		}
		f.network.Status.Policies = now
		*n = f.network
		return nil
	}
	g := *f.groups[path[strings.LastIndex(path, "/")+1:]]
	g.Meta.Labels = maps.Clone(g.Meta.Labels)
	if err := json.Unmarshal(body, &g); err != nil {
		return err
	}
	maps.DeleteFunc(g.Meta.Labels, func(_, v string) bool { return v == "" }) // null
	if len(g.Meta.Labels) > 1 {                                               // the ValidatingAdmissionPolicy edgemesh-controller
		return apierrors.NewForbidden(schema.GroupResource{}, g.Meta.Name, errors.New("only the label of its group"))
	}
	f.version++
	g.Meta.Name, g.Meta.ResourceVersion = path[strings.LastIndex(path, "/")+1:], fmt.Sprint(f.version)
	f.groups[g.Meta.Name] = &g
	f.wrote("patch", &g)
	*out.(*api.PolicyGroup) = g
	return nil
}

func (f *groupAPI) Remove(_ context.Context, path, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := path[strings.LastIndex(path, "/")+1:]
	f.wrote("delete", f.groups[name])
	delete(f.groups, name)
	return nil
}

// wrote notes a change of a group by its name of now.
func (f *groupAPI) wrote(what string, g *api.PolicyGroup) {
	if policy.Former(g.Spec.Group) != g.Spec.Group {
		f.writes = append(f.writes, fmt.Sprint(what, " ", g.Spec.Chunk))
	}
}

// members are all that groups have, under their names of now or, each the same, those of the release before.
func (f *groupAPI) members() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var former []string
	for _, g := range f.groups {
		if policy.Former(g.Spec.Group) == g.Spec.Group {
			former = append(former, g.Spec.Members...)
		} else {
			out = append(out, g.Spec.Members...)
		}
	}
	slices.Sort(out)
	if slices.Sort(former); !slices.Equal(out, former) {
		return append(out, fmt.Sprint("by former names ", former))
	}
	return out
}

// chunks counts those of names of now.
func (f *groupAPI) chunks() (n int) {
	for _, g := range f.groups {
		if policy.Former(g.Spec.Group) != g.Spec.Group {
			n++
		}
	}
	return n
}

func readObject[T api.Object](t *testing.T, out T, text string) T {
	t.Helper()
	if err := json.Unmarshal([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func podJSON(t *testing.T, name, node, ip, more string) *pods.Pod {
	return readObject(t, new(pods.Pod), fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":%q,"resourceVersion":"1","labels":{"app":"web"}%s},"spec":{"nodeName":%q,
		"containers":[{"ports":[{"name":"http","containerPort":8080}]}]},"status":{"phase":"Running","podIPs":[{"ip":%q}]}}`, name, "uid-"+name+ip, more, node, ip))
}

// policyJSON allows ingress from pods with app=web, or to the port http of them.
func policyJSON(t *testing.T, name string) *pods.Policy {
	return readObject(t, new(pods.Policy), fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":%q},"spec":{"podSelector":{},"policyTypes":["Ingress"],
		"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"web"}}}]}]}}`, name, "uid-"+name))
}

func shop(t *testing.T) *pods.Namespace {
	return readObject(t, new(pods.Namespace), `{"metadata":{"name":"shop","uid":"s"}}`)
}

// twoNodes own 10.244.1.0/24 and 10.244.2.0/24.
func twoNodes() <-chan mesh.State {
	out := make(chan mesh.State, 1)
	out <- mesh.State{Nodes: []mesh.Node{{Name: "a", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		{Name: "b", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}}}
	return out
}

// running is a controller's part with an API, whose changes news sends.
func runningPolicies(t *testing.T, f *groupAPI, do func(p *policies)) {
	t.Helper()
	runningWhile(t, f, slog.DiscardHandler, func() { time.Sleep(2 * time.Second) }, do)
}

func runningWhile(t *testing.T, f *groupAPI, log slog.Handler, meanwhile func(), do func(p *policies)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		dog := watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)})
		p := newPolicies(f, twoNodes(), dog.Loop("NetworkPolicies"), slog.New(log), newMetrics(nil))
		ended := make(chan struct{})
		go func() { defer close(ended); p.run(ctx) }()
		meanwhile()
		synctest.Wait()
		cancel()
		<-ended
		if do != nil {
			do(p)
		}
	})
}

func newGroupAPI(objects map[string][]api.Object) *groupAPI {
	return &groupAPI{groups: map[string]*api.PolicyGroup{}, objects: objects}
}

// The peers of a policy become a PolicyGroup, of pods whose node owns their address; the PodNetwork says which namespaces have policies.
func TestPolicyGroups(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{
		"networkpolicies": {policyJSON(t, "one"), policyJSON(t, "two")},
		"namespaces":      {shop(t)},
		"pods": {
			podJSON(t, "web-1", "a", "10.244.1.5", ""), podJSON(t, "web-2", "b", "10.244.2.5", ""),
			podJSON(t, "forged", "b", "10.244.1.6", ""),     // of node a's block
			podJSON(t, "elsewhere", "c", "192.168.1.5", ""), // of no member
		},
	})
	runningPolicies(t, f, func(p *policies) {
		if got := p.peers.Forged(); len(got) != 1 || got["shop/forged"].Owner != "a" {
			t.Errorf("forged: %v", got)
		}
	})
	if got := f.members(); !slices.Equal(got, []string{"10.244.1.5", "10.244.2.5"}) || f.chunks() != 1 {
		t.Errorf("members %v in %d groups", got, f.chunks())
	}
	if got := f.network.Status.Policies; !maps.Equal(got, map[string]string{"shop": "Ingress"}) {
		t.Errorf("the PodNetwork says %v", got)
	}
	if !slices.Contains(f.writes, "event MeshForgedAddress") {
		t.Errorf("no event names the forged address: %v", f.writes)
	}
	writes := len(f.writes)
	runningPolicies(t, f, nil) // a restart
	if again := slices.DeleteFunc(slices.Clone(f.writes[writes:]), func(w string) bool { return strings.HasPrefix(w, "event") }); len(again) > 0 {
		t.Errorf("a restart wrote %v", again)
	}
}

// Without policies nothing is read of pods, and the PodNetwork says that there are none.
func TestNoPolicies(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{"pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	runningPolicies(t, f, func(p *policies) {
		if p.began {
			t.Error("pods are followed")
		}
	})
	if p := f.network.Status.Policies; p == nil || len(p) > 0 || len(f.writes) > 0 {
		t.Errorf("the PodNetwork says %v; written: %v", p, f.writes)
	}
}

// What another program wrote into a PolicyGroup is undone, and a group that no policy needs goes after a while.
func TestForeignGroup(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{
		"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}, "pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	runningPolicies(t, f, nil)
	for _, g := range f.groups {
		g.Spec.Members = append(g.Spec.Members, "10.244.9.9")
	}
	f.groups["000000000000000000000000000000aa-0"] = &api.PolicyGroup{Meta: api.Meta{Name: "000000000000000000000000000000aa-0", UID: "x"}, Spec: api.PolicyGroupSpec{Group: "000000000000000000000000000000aa", Chunks: 1}}
	runningPolicies(t, f, func(p *policies) {
		if got := f.members(); !slices.Equal(got, []string{"10.244.1.5"}) || f.chunks() != 2 {
			t.Errorf("members %v in %d groups", got, f.chunks())
		}
		for id := range p.idle {
			p.idle[id] = time.Now().Add(-idleGroup)
		}
		if err := p.round(t.Context()); err != nil || f.chunks() != 1 {
			t.Errorf("%d groups, %v", f.chunks(), err)
		}
	})
}

// A group grows by chunks, whose additions are written first, and one pod changes one chunk.
func TestChunks(t *testing.T) {
	var every []api.Object
	for i := range 10_000 {
		every = append(every, podJSON(t, fmt.Sprint("web-", i), "a", netip.AddrFrom4([4]byte{10, 244, byte(64 + i/256), byte(i)}).String(), ""))
	}
	list := func(n int) []api.Object { return every[:n] }
	f := newGroupAPI(map[string][]api.Object{"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}, "pods": list(900)})
	p := newPolicies(f, nil, watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)}).Loop("x"), slog.New(slog.DiscardHandler), newMetrics(nil))
	p.peers.Owner, p.owned, p.began = func(netip.Addr) string { return "a" }, true, true
	step := func(n int) []string {
		t.Helper()
		f.objects["pods"] = list(n)
		for _, k := range []api.Kind{pods.Policies(""), pods.Namespaces(), pods.Pods(""), api.PolicyGroups()} {
			all, _, _ := f.List(t.Context(), k, nil)
			p.hear(t.Context(), news{kind: k, all: true, list: all})
		}
		f.writes = nil
		if err := p.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(f.members()); got != n {
			t.Fatalf("%d members of %d", got, n)
		}
		for _, g := range f.groups {
			if len(g.Spec.Members) > api.MaxChunk {
				t.Fatalf("chunk %d has %d members", g.Spec.Chunk, len(g.Spec.Members))
			}
		}
		return f.writes
	}
	if w := step(900); !slices.Equal(w, []string{"create 0"}) {
		t.Errorf("900: %v", w)
	}
	if w := step(1500); len(w) != 2 || w[0] != "create 1" {
		t.Errorf("grown to two chunks: %v", w)
	}
	if w := step(1501); len(w) != 1 {
		t.Errorf("one more: %v", w)
	}
	if w := step(10_000); f.chunks() != 16 {
		t.Errorf("10,000: %d chunks, %v", f.chunks(), w)
	}
	if w := step(9_999); len(w) != 1 {
		t.Errorf("one less: %v", w)
	}
	if w := step(100); f.chunks() != 1 || !slices.Contains(w[:1], "patch 0") {
		t.Errorf("shrunk: %d chunks, %v", f.chunks(), w)
	}
}

// A group that cannot be written is named, and stops nothing: the others are written, and the PodNetwork names the namespaces. It is
// tried again later and later.
func TestAGroupThatCannotBeWritten(t *testing.T) {
	var all []api.Object
	for i := range 8 {
		all = append(all, readObject(t, new(pods.Policy), fmt.Sprintf(`{"metadata":{"namespace":"shop","name":"p%d","uid":"p%[1]d"},"spec":{"podSelector":{},
			"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"a%[1]d"}}}]}]}}`, i)))
	}
	f := newGroupAPI(map[string][]api.Object{"networkpolicies": all, "namespaces": {shop(t)}, "pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	p := newPolicies(f, nil, watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)}).Loop("x"), slog.New(slog.DiscardHandler), newMetrics(nil))
	for _, o := range all {
		p.take(pods.Policies(""), o)
	}
	last := p.peers.Groups()[7] // by its name the eighth
	f.fail = last + "-0"
	runningPolicies(t, f, func(p *policies) {
		if f.chunks() != 7 || !maps.Equal(f.network.Status.Policies, map[string]string{"shop": "Ingress"}) {
			t.Errorf("%d groups, the PodNetwork says %v", f.chunks(), f.network.Status.Policies)
		}
		if wait := p.later[last].wait; wait <= sweepAgain {
			t.Errorf("tried again each %v", wait)
		}
		p.later = map[string]later{}
		if err := p.round(t.Context()); err == nil || !strings.Contains(err.Error(), f.fail) {
			t.Errorf("the eighth group's error is not named: %v", err)
		}
	})
}

// Labels that others put on a PolicyGroup are taken off, so that it can be written.
func TestForeignLabel(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{
		"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}, "pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	runningPolicies(t, f, nil)
	for _, g := range f.groups {
		g.Meta.Labels = map[string]string{api.GroupLabel: g.Spec.Group, "kustomize": "yes"}
		g.Meta.ResourceVersion = "99"
	}
	f.objects["pods"] = []api.Object{podJSON(t, "web-1", "a", "10.244.1.6", "")}
	runningPolicies(t, f, nil)
	if got := f.members(); !slices.Equal(got, []string{"10.244.1.6"}) {
		t.Errorf("members %v", got)
	}
}

// Without a NetworkPolicy the PodNetwork says that there are none, though the API has no PolicyGroups yet: helm upgrades no CRDs.
func TestNoPolicyGroupsKind(t *testing.T) {
	f := newGroupAPI(nil)
	f.lacks = true
	runningPolicies(t, f, nil)
	if p := f.network.Status.Policies; p == nil || len(p) > 0 {
		t.Errorf("the PodNetwork says %v", p)
	}
}

// More namespaces than the PodNetwork can name are any namespace.
func TestManyNamespaces(t *testing.T) {
	p := newPolicies(newGroupAPI(nil), nil, watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)}).Loop("x"), slog.New(slog.DiscardHandler), newMetrics(nil))
	p.hear(t.Context(), news{kind: pods.Policies(""), all: true})
	for i := range mostNamespaces {
		if i == mostNamespaces-1 {
			if got := p.namespaces(); len(got) != i || got[policy.EveryNamespace] != "" {
				t.Errorf("%d names", len(got))
			}
		}
		p.take(pods.Policies(""), readObject(t, new(pods.Policy), fmt.Sprintf(`{"metadata":{"namespace":"n%d","name":"p"},"spec":{"podSelector":{},"policyTypes":["Egress"]}}`, i)))
	}
	if got := p.namespaces(); !maps.Equal(got, map[string]string{policy.EveryNamespace: "Egress"}) {
		t.Errorf("%d names", len(got))
	}
}

// The PodNetwork is written within seconds once the API takes writes again, however long it did not.
func TestPoliciesAfterAnOutage(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}, "pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	f.down = errors.New("down")
	runningWhile(t, f, slog.DiscardHandler, func() {
		time.Sleep(130 * time.Second)
		f.mu.Lock()
		f.down = nil
		f.mu.Unlock()
		time.Sleep(networkAgain + sweepAgain)
	}, nil)
	if got := f.network.Status.Policies; !maps.Equal(got, map[string]string{"shop": "Ingress"}) {
		t.Errorf("the PodNetwork says %v", got)
	}
}

// A node that makes up many pods has one Event.
func TestManyForgeries(t *testing.T) {
	objects := map[string][]api.Object{"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}}
	for i := range 100 {
		objects["pods"] = append(objects["pods"], podJSON(t, fmt.Sprint("forged-", i), "b", fmt.Sprint("10.244.1.", i+1), ""))
	}
	f := newGroupAPI(objects)
	runningPolicies(t, f, nil)
	events := slices.DeleteFunc(slices.Clone(f.writes), func(w string) bool { return !strings.HasPrefix(w, "event") })
	if len(events) != 1 {
		t.Errorf("%d events", len(events))
	}
}

// A watch's echo of a version before the last one written is no news.
func TestEcho(t *testing.T) {
	p := newPolicies(newGroupAPI(nil), nil, watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)}).Loop("x"), slog.New(slog.DiscardHandler), newMetrics(nil))
	group := func(version string) *api.PolicyGroup {
		return &api.PolicyGroup{Meta: api.Meta{Name: "000000000000000000000000000000aa-0", UID: "x", ResourceVersion: version}, Spec: api.PolicyGroupSpec{Group: "000000000000000000000000000000aa"}}
	}
	for _, v := range []string{"10", "9", "11"} {
		p.take(api.PolicyGroups(), group(v))
	}
	p.take(api.PolicyGroups(), group("10"))
	if got := p.made["000000000000000000000000000000aa"]["000000000000000000000000000000aa-0"].Meta.ResourceVersion; got != "11" {
		t.Errorf("version %s of an older echo", got)
	}
}
