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

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pods "edgemesh/agent/podgroups"
	"edgemesh/agent/policy"
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
	fail    string                   // writes to this path fail
	lacks   bool                     // it has no PolicyGroups
	cluster error                    // what lists of ClusterNetworkPolicies are answered with
	asked   int                      // how many there were
	down    error                    // what writes are answered with
	slow    map[string]time.Duration // how long lists take, by kind
}

var _ cluster = (*groupAPI)(nil)

func (f *groupAPI) List(_ context.Context, k api.Kind, _ func(api.Object)) (out []api.Object, rv string, err error) {
	time.Sleep(f.slow[k.Name])
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.Name == "clusternetworkpolicies" {
		f.asked++
	}
	if f.lacks && k.Name == "policygroups" {
		return nil, "", apierrors.NewNotFound(schema.GroupResource{}, k.Name)
	}
	if f.cluster != nil && k.Name == "clusternetworkpolicies" {
		return nil, "", f.cluster
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
	f.writes = append(f.writes, "create "+fmt.Sprint(g.Spec.Chunk))
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
	f.writes = append(f.writes, "patch "+fmt.Sprint(g.Spec.Chunk))
	*out.(*api.PolicyGroup) = g
	return nil
}

func (f *groupAPI) Remove(_ context.Context, path, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := path[strings.LastIndex(path, "/")+1:]
	f.writes = append(f.writes, "delete "+fmt.Sprint(f.groups[name].Spec.Chunk))
	delete(f.groups, name)
	return nil
}

// members are all that groups have.
func (f *groupAPI) members() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.groups {
		out = append(out, g.Spec.Members...)
	}
	slices.Sort(out)
	return out
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
func twoNodes(ctx context.Context, out chan<- mesh.State) {
	out <- mesh.State{Nodes: []mesh.Node{{Name: "a", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		{Name: "b", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}}}
	<-ctx.Done()
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
		p := newPolicies(f, twoNodes, dog.Loop("NetworkPolicies"), slog.New(log), newMetrics(nil))
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
	if got := f.members(); !slices.Equal(got, []string{"10.244.1.5", "10.244.2.5"}) || len(f.groups) != 1 {
		t.Errorf("members %v in %d groups", got, len(f.groups))
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
	f.groups["00000000000000aa-0"] = &api.PolicyGroup{Meta: api.Meta{Name: "00000000000000aa-0", UID: "x"}, Spec: api.PolicyGroupSpec{Group: "00000000000000aa", Chunks: 1}}
	runningPolicies(t, f, func(p *policies) {
		if got := f.members(); !slices.Equal(got, []string{"10.244.1.5"}) || len(f.groups) != 2 {
			t.Errorf("members %v in %d groups", got, len(f.groups))
		}
		for id := range p.idle {
			p.idle[id] = time.Now().Add(-idleGroup)
		}
		if err := p.round(t.Context()); err != nil || len(f.groups) != 1 {
			t.Errorf("%d groups, %v", len(f.groups), err)
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
		for _, k := range []api.Kind{pods.Policies(""), pods.Namespaces(""), pods.Pods(""), api.PolicyGroups()} {
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
	if w := step(10_000); len(f.groups) != 16 {
		t.Errorf("10,000: %d chunks, %v", len(f.groups), w)
	}
	if w := step(9_999); len(w) != 1 {
		t.Errorf("one less: %v", w)
	}
	if w := step(100); len(f.groups) != 1 || !slices.Contains(w[:1], "patch 0") {
		t.Errorf("shrunk: %d chunks, %v", len(f.groups), w)
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
		p.take(o, false)
	}
	last := p.peers.Groups()[7] // by its name the eighth
	f.fail = last + "-0"
	runningPolicies(t, f, func(p *policies) {
		if len(f.groups) != 7 || !maps.Equal(f.network.Status.Policies, map[string]string{"shop": "Ingress"}) {
			t.Errorf("%d groups, the PodNetwork says %v", len(f.groups), f.network.Status.Policies)
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

func clusterJSON(t *testing.T, subject string) api.Object {
	t.Helper()
	o := pods.ClusterPolicies().New()
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"c","uid":"c"},"spec":{"tier":"Admin","priority":1,"subject":`+subject+`,
		"egress":[{"action":"Deny","to":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"web"}}}}]}]}}`), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// A ClusterNetworkPolicy's peers become a PolicyGroup, and the PodNetwork says that there is one, whatever it selects.
func TestClusterPolicies(t *testing.T) {
	for _, subject := range []string{`{"namespaces":{}}`, `{"namespaces":{"matchLabels":{"none":"x"}}}`} {
		f := newGroupAPI(map[string][]api.Object{"clusternetworkpolicies": {clusterJSON(t, subject)}, "namespaces": {shop(t)},
			"pods": {podJSON(t, "web-1", "a", "10.244.1.5", ""), podJSON(t, "web-2", "b", "10.244.2.5", "")}})
		runningPolicies(t, f, nil)
		if got := f.network.Status.Policies; !maps.Equal(got, map[string]string{policy.ClusterKind: "Egress"}) {
			t.Errorf("%s: the PodNetwork says %v", subject, got)
		}
		if got := f.members(); !slices.Equal(got, []string{"10.244.1.5", "10.244.2.5"}) {
			t.Errorf("members %v", got)
		}
	}
}

// NetworkPolicies are compiled where ClusterNetworkPolicies cannot be read: the cluster does not have the kind, or the chart is of a release that
// did not read it. What the PodNetwork says of these stays, and groups are marked as not whole, until a list says that there are none.
func TestNoClusterPolicies(t *testing.T) {
	for _, why := range []error{apierrors.NewNotFound(schema.GroupResource{}, ""), apierrors.NewForbidden(schema.GroupResource{}, "", nil)} {
		f := newGroupAPI(map[string][]api.Object{"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}, "pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
		f.cluster = why
		runningPolicies(t, f, nil)
		if got := f.network.Status.Policies; !maps.Equal(got, map[string]string{"shop": "Ingress"}) || len(f.members()) != 1 {
			t.Errorf("%v: the PodNetwork says %v, members %v", why, got, f.members())
		}
		f.network.Status.Policies = map[string]string{policy.ClusterKind: "Egress", "gone": "Ingress"}
		f.groups["00000000000000aa-0"] = &api.PolicyGroup{Meta: api.Meta{Name: "00000000000000aa-0", UID: "x"}, Spec: api.PolicyGroupSpec{Group: "00000000000000aa", Chunks: 2, Members: []string{"10.244.1.7"}}}
		f.groups["00000000000000aa-1"] = &api.PolicyGroup{Meta: api.Meta{Name: "00000000000000aa-1", UID: "y"}, Spec: api.PolicyGroupSpec{Group: "00000000000000aa", Chunk: 1, Chunks: 2, Members: []string{"10.244.1.8"}}}
		f.writes = nil
		var said strings.Builder
		runningWhile(t, f, slog.NewTextHandler(&said, nil), func() { time.Sleep(10 * time.Minute) }, func(p *policies) {
			p.idle["00000000000000aa"] = time.Now().Add(-idleGroup)
			if err := p.round(t.Context()); err != nil || f.groups["00000000000000aa-0"] == nil {
				t.Errorf("%v: a group of policies that cannot be read is deleted: %v", why, err)
			}
		})
		// The first write ends the group's being whole, and nothing is written twice.
		if g := f.groups["00000000000000aa-0"]; !slices.Equal(f.writes, []string{"delete 1", "patch 0"}) || g.Spec.Chunks != 2 || len(g.Spec.Members) > 0 || len(f.groups) != 2 {
			t.Errorf("%v: %v; chunks %d, members %v", why, f.writes, g.Spec.Chunks, g.Spec.Members)
		}
		if n := strings.Count(said.String(), "level=ERROR"); n < 1 || n > 11 || !strings.Contains(said.String(), "apply it again") {
			t.Errorf("%v: said %s", why, said.String())
		}
		if got := f.network.Status.Policies; !maps.Equal(got, map[string]string{policy.ClusterKind: "Egress", "shop": "Ingress"}) {
			t.Errorf("%v, after a restart: the PodNetwork says %v", why, got)
		}
		f.cluster = nil
		runningPolicies(t, f, nil)
		if got := f.network.Status.Policies; !maps.Equal(got, map[string]string{"shop": "Ingress"}) {
			t.Errorf("proved to be gone: the PodNetwork says %v", got)
		}
	}
}

// A kind that may not be read, and never was, is no failure, is named seldom, and is tried again seldom.
func TestForbiddenClusterPolicies(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}})
	f.cluster = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	var said strings.Builder
	runningWhile(t, f, slog.NewTextHandler(&said, nil), func() { time.Sleep(10 * time.Minute) }, func(p *policies) {
		if n := testutil.ToFloat64(p.metrics.failures); n > 0 {
			t.Errorf("%v failures", n)
		}
	})
	if n := strings.Count(said.String(), "are not read"); n < 1 || n > 11 || f.asked > 40 || strings.Contains(said.String(), "stay as they were compiled") {
		t.Errorf("asked %d times, said %s", f.asked, said.String())
	}
}

// What a ClusterNetworkPolicy needs is written within seconds once the API takes writes again, however long it did not.
func TestClusterPoliciesAfterAnOutage(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{"clusternetworkpolicies": {clusterJSON(t, `{"namespaces":{}}`)}, "namespaces": {shop(t)},
		"pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	f.down = errors.New("down")
	runningWhile(t, f, slog.DiscardHandler, func() {
		time.Sleep(130 * time.Second)
		f.mu.Lock()
		f.down = nil
		f.mu.Unlock()
		time.Sleep(decidesAgain + sweepAgain)
	}, func(p *policies) {
		if len(f.members()) != 1 || f.network.Status.Policies[policy.ClusterKind] == "" {
			t.Errorf("members %v, the PodNetwork says %v", f.members(), f.network.Status.Policies)
		}
		id := p.peers.Groups()[0]
		p.peers.Changed[id], p.later[id] = true, later{time.Now().Add(longestAgain), longestAgain} // a NetworkPolicy needed it before
		if err := p.round(t.Context()); err != nil || len(p.later) > 0 {
			t.Errorf("waits: %v, %v", p.later, err)
		}
	})
}

// Groups are not written before the pods are known, whatever else happens: they would be empty, and whole.
func TestFirstPolicyWaitsForPods(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{"clusternetworkpolicies": {clusterJSON(t, `{"namespaces":{}}`)}, "namespaces": {shop(t)},
		"pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	f.cluster = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	f.slow = map[string]time.Duration{"policygroups": minBackoff - soon/2, "pods": time.Second} // a round is due just after the policy is read
	runningWhile(t, f, slog.DiscardHandler, func() {
		time.Sleep(minBackoff / 2)
		f.mu.Lock()
		f.cluster = nil
		f.mu.Unlock()
		time.Sleep(2 * time.Second)
	}, nil)
	if len(f.members()) != 1 || !slices.Equal(f.writes, []string{"create 0"}) {
		t.Errorf("members %v after %v", f.members(), f.writes)
	}
}

// A group that is not whole is so until all of it is written.
func TestWholeAgain(t *testing.T) {
	f := newGroupAPI(nil)
	p := newPolicies(f, nil, nil, slog.New(slog.DiscardHandler), newMetrics(nil))
	var members []policy.Member
	for i := range api.MaxChunk {
		members = append(members, policy.Member{Addr: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})})
	}
	made := map[string]*api.PolicyGroup{}
	for _, step := range []struct {
		want   []*api.PolicyGroup
		writes []string
	}{{part("00000000000000aa"), []string{"create 0"}}, {pods.Chunks("00000000000000aa", members, 1), []string{"patch 0", "create 1"}},
		{part("00000000000000aa"), []string{"delete 1", "patch 0"}}} {
		f.writes = nil
		if err := p.agree(t.Context(), step.want, made); err != nil || !slices.Equal(f.writes, step.writes) {
			t.Errorf("%v: %v", f.writes, err)
		}
	}
}

// The kind's 404 ends no policy that was read.
func TestClusterKindGone(t *testing.T) {
	p := newPolicies(newGroupAPI(nil), nil, watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)}).Loop("x"), slog.New(slog.DiscardHandler), newMetrics(nil))
	for _, k := range []api.Kind{pods.Policies(""), api.PolicyGroups()} {
		p.hear(t.Context(), news{kind: k, all: true})
	}
	p.hear(t.Context(), news{kind: pods.ClusterPolicies(), all: true, list: []api.Object{clusterJSON(t, `{"namespaces":{}}`)}})
	p.hear(t.Context(), news{kind: pods.ClusterPolicies(), err: apierrors.NewNotFound(schema.GroupResource{}, "")})
	if got := p.namespaces(); !maps.Equal(got, map[string]string{policy.ClusterKind: "Egress"}) {
		t.Errorf("%v", got)
	}
	p.hear(t.Context(), news{kind: pods.ClusterPolicies(), all: true})
	if got := p.namespaces(); len(got) > 0 {
		t.Errorf("proved to be gone: %v", got)
	}
}

// More namespaces than the PodNetwork can name are any namespace.
func TestManyNamespaces(t *testing.T) {
	p := newPolicies(newGroupAPI(nil), nil, watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)}).Loop("x"), slog.New(slog.DiscardHandler), newMetrics(nil))
	for _, k := range []api.Kind{pods.Policies(""), pods.ClusterPolicies()} {
		p.hear(t.Context(), news{kind: k, all: true})
	}
	for i := range mostNamespaces {
		if i == mostNamespaces-1 {
			if got := p.namespaces(); len(got) != i || got[policy.EveryNamespace] != "" {
				t.Errorf("%d names", len(got))
			}
		}
		p.take(readObject(t, new(pods.Policy), fmt.Sprintf(`{"metadata":{"namespace":"n%d","name":"p"},"spec":{"podSelector":{},"policyTypes":["Egress"]}}`, i)), false)
	}
	if got := p.namespaces(); !maps.Equal(got, map[string]string{policy.EveryNamespace: "Egress"}) {
		t.Errorf("%d names", len(got))
	}
}

// A group of which not all members fit is marked as such: nodes deny what a rule would decide by it.
func TestGroupOverItsBound(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{"clusternetworkpolicies": {clusterJSON(t, `{"namespaces":{}}`)}, "namespaces": {shop(t)},
		"pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	runningPolicies(t, f, func(p *policies) {
		p.peers.Owner = func(netip.Addr) string { return "a" }
		many := policy.Pod{Namespace: "shop", Name: "many", Labels: map[string]string{"app": "web"}}
		for i := range pods.MaxMembers {
			many.Addrs = append(many.Addrs, netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}))
		}
		p.peers.SetPod("shop/many", &pods.Pod{Node: "a", As: many})
		if err := p.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	for name, g := range f.groups {
		if len(f.groups) != 1 || g.Spec.Chunks != 2 || len(g.Spec.Members) > 0 {
			t.Errorf("%d groups; %s has %d chunks and %d members", len(f.groups), name, g.Spec.Chunks, len(g.Spec.Members))
		}
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
		return &api.PolicyGroup{Meta: api.Meta{Name: "00000000000000aa-0", UID: "x", ResourceVersion: version}, Spec: api.PolicyGroupSpec{Group: "00000000000000aa"}}
	}
	for _, v := range []string{"10", "9", "11"} {
		p.take(group(v), false)
	}
	p.take(group("10"), false)
	if got := p.made["00000000000000aa"]["00000000000000aa-0"].Meta.ResourceVersion; got != "11" {
		t.Errorf("version %s of an older echo", got)
	}
}

// TestClusterKindDeleted: the CustomResourceDefinition is deleted: its objects are reported as deleted, and then the API has no such kind.
func TestClusterKindDeleted(t *testing.T) {
	f := newGroupAPI(nil)
	p := newPolicies(f, nil, watchdog.New(watchdog.Config{Log: slog.New(slog.DiscardHandler)}).Loop("x"), slog.New(slog.DiscardHandler), newMetrics(nil))
	for _, k := range []api.Kind{pods.Policies(""), api.PolicyGroups()} {
		p.hear(t.Context(), news{kind: k, all: true})
	}
	c := clusterJSON(t, `{"namespaces":{}}`)
	p.hear(t.Context(), news{kind: pods.ClusterPolicies(), all: true, list: []api.Object{c}})
	if err := p.say(t.Context(), p.namespaces()); err != nil || f.network.Status.Policies[policy.ClusterKind] == "" {
		t.Fatal(err, f.network.Status.Policies)
	}
	p.hear(t.Context(), news{kind: pods.ClusterPolicies(), event: client.Event{What: client.Deleted, Object: c}})
	p.hear(t.Context(), news{kind: pods.ClusterPolicies(), err: apierrors.NewNotFound(schema.GroupResource{}, "")})
	if err := p.say(t.Context(), p.namespaces()); err != nil || f.network.Status.Policies[policy.ClusterKind] != "" {
		t.Errorf("all policies were reported as deleted, and the PodNetwork keeps saying that there are some: %v, still %v, %v", f.network.Status.Policies, p.still, err)
	}
}

// TestBlindGrowth: while ClusterNetworkPolicies cannot be read, groups of NetworkPolicies that come and go are deleted.
func TestBlindGrowth(t *testing.T) {
	f := newGroupAPI(map[string][]api.Object{"networkpolicies": {policyJSON(t, "one")}, "namespaces": {shop(t)}, "pods": {podJSON(t, "web-1", "a", "10.244.1.5", "")}})
	f.cluster = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	f.network.Status.Policies = map[string]string{policy.ClusterKind: "Egress"}
	runningPolicies(t, f, func(p *policies) {
		for i := range 200 {
			n := readObject(t, new(pods.Policy), fmt.Sprintf(`{"metadata":{"namespace":"shop","name":"churn","uid":"u%d"},"spec":{"podSelector":{},"policyTypes":["Ingress"],
				"ingress":[{"from":[{"podSelector":{"matchLabels":{"x":"y%d"}}}]}]}}`, i, i))
			p.take(n, false)
			if err := p.round(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.take(n, true)
			time.Sleep(2 * idleGroup)
			if err := p.round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if len(f.groups) > 10 {
			t.Errorf("%d PolicyGroups", len(f.groups))
		}
	})
}
