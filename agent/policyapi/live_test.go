package policyapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"edgemesh/agent/podgroups"
	"edgemesh/agent/policies"
	"edgemesh/agent/policy"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/kube/client"
	"edgemesh/internal/membership/mesh"
)

// world is an API that a Live reads, and what it brings into force.
type world struct {
	mu      sync.Mutex
	objects map[string]api.Object // by kind and key
	missing error
	cluster error  // likewise, of ClusterNetworkPolicies
	silent  string // the kind of which new readers hear nothing
	proved  bool
	reads   map[string]bool // what was followed, ever
	on      map[string]func(kube.News)
	kinds   map[string]api.Kind
	local   map[netip.Addr]string
	given   []policies.Given
	off     atomic.Bool
	first   *mesh.Policies // the membership of a first start
}

func newWorld() *world {
	return &world{objects: map[string]api.Object{}, proved: true, reads: map[string]bool{}, on: map[string]func(kube.News){}, kinds: map[string]api.Kind{}, local: map[netip.Addr]string{}}
}

func (w *world) selects(k api.Kind, o api.Object) bool {
	switch o := o.(type) {
	case *podgroups.Pod:
		return k.Name == "pods" && (k.Fields == "" || k.Fields == "spec.nodeName="+o.Node)
	case *podgroups.Policy:
		return o.Cluster == nil && k.Name == "networkpolicies" && (k.Namespace == "" || k.Namespace == o.Meta.Namespace) ||
			o.Cluster != nil && k.Name == podgroups.ClusterPolicies().Name
	case *podgroups.Namespace:
		return k.Name == "namespaces" && (k.Fields == "" || k.Fields == "metadata.name="+o.Meta.Name)
	case *api.PolicyGroup:
		return k.Name == "policygroups" && strings.Contains(k.Selector, o.Spec.Group)
	}
	return false
}

func (w *world) follow(ctx context.Context, k api.Kind, on func(kube.News)) {
	w.mu.Lock()
	key := keyOf(k)
	w.reads[key], w.on[key], w.kinds[key] = true, on, k
	n := kube.News{All: true, Proved: w.proved, Missing: w.missing}
	if k.Name == podgroups.ClusterPolicies().Name && w.cluster != nil {
		n.Missing = w.cluster
	}
	n.All = n.Missing == nil
	for _, o := range w.objects {
		if w.selects(k, o) {
			n.List = append(n.List, o)
		}
	}
	silent := w.silent == k.Name
	if silent {
		delete(w.on, key)
	}
	w.mu.Unlock()
	if !silent {
		on(n)
	}
	<-ctx.Done()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.on, key)
}

// put changes an object, or deletes it.
func (w *world) put(o api.Object, gone bool) {
	w.mu.Lock()
	what, key := client.Modified, fmt.Sprintf("%T %s", o, podgroups.Key(o))
	if w.objects[key] = o; gone {
		delete(w.objects, key)
		what = client.Deleted
	}
	var tell []func(kube.News)
	for k, on := range w.on {
		if w.selects(w.kinds[k], o) {
			tell = append(tell, on)
		}
	}
	w.mu.Unlock()
	for _, on := range tell {
		on(kube.News{Event: client.Event{What: what, Object: o}})
	}
	synctest.Wait()
	time.Sleep(time.Second)
}

// everRead are the kinds that were followed.
func (w *world) everRead() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.reads))
}

// last are the rules in force, once all goroutines rest.
func (w *world) last() policy.Rules {
	synctest.Wait()
	return w.inForce()
}

func (w *world) inForce() policy.Rules {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.given) == 0 {
		return policy.Rules{}
	}
	return w.given[len(w.given)-1].Rules
}

// passes reports whether b is reached from a.
func (w *world) passes(a, b string) bool {
	pass, _, _ := w.last().Place(w.local).Verdict(policy.Packet{Src: netip.MustParseAddr(a), Dst: netip.MustParseAddr(b), Protocol: 6, Port: 80})
	return pass
}

var version int

func object[T api.Object](t *testing.T, out T, text string, args ...any) T {
	t.Helper()
	if err := json.Unmarshal(fmt.Appendf(nil, text, args...), out); err != nil {
		t.Fatal(err)
	}
	version++
	out.Metadata().ResourceVersion = fmt.Sprint(version)
	return out
}

func pod(t *testing.T, name, node, ip, app string) *podgroups.Pod {
	return object(t, new(podgroups.Pod), `{"metadata":{"namespace":"shop","name":%q,"uid":%[1]q,"labels":{"app":%q}},"spec":{"nodeName":%q},"status":{"podIPs":[{"ip":%q}]}}`, name, app, node, ip)
}

// onlyWeb lets pods with app=web of the namespace reach all of its pods.
func onlyWeb(t *testing.T) *podgroups.Policy {
	return object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":"p","uid":"p"},"spec":{"podSelector":{},"policyTypes":["Ingress"],
		"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"web"}}}]}]}}`)
}

func (w *world) run(t *testing.T, do func(t *testing.T, l *Live)) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Node: "a", Follow: w.follow, InForce: w.inForce,
			Local: func() (map[netip.Addr]string, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return maps.Clone(w.local), nil
			},
			Set: func(g policies.Given) { w.mu.Lock(); defer w.mu.Unlock(); w.given = append(w.given, g) }, SetOff: w.off.Store, Log: slog.New(slog.DiscardHandler)})
		if w.first != nil {
			if rules := l.First(state(*w.first)); len(w.given) == 0 { // as Owner.Expect
				w.given = []policies.Given{{Rules: rules}}
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		do(t, l)
		cancel()
		<-ended
	})
}

// state is one in which node a has 10.244.1.0/24, and b 10.244.2.0/24.
func state(p mesh.Policies) mesh.State {
	return mesh.State{Policies: p, Nodes: []mesh.Node{{Name: "a", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}},
		{Name: "b", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}}}
}

// Without a controller a node follows policies, and pods and namespaces once there is one; a changed label counts.
func TestAlone(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s"}}`), false)
		w.put(pod(t, "db", "a", "", "db"), false) // its address has not reached the cloud
		w.put(pod(t, "far", "b", "10.244.2.5", "web"), false)
		l.SetState(state(mesh.Policies{}))
		time.Sleep(time.Second)
		if got := w.everRead(); !slices.Equal(got, []string{keyOf(podgroups.Policies("")), keyOf(podgroups.ClusterPolicies())}) || len(w.last().Namespaces) > 0 {
			t.Errorf("without policies it reads %v, in force: %v", got, w.last())
		}
		w.put(onlyWeb(t), false)
		if !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("not as the policy says: %+v", w.last())
		}
		w.put(pod(t, "far", "b", "10.244.2.5", "other"), false)
		if w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("a changed label changed nothing")
		}
		w.put(onlyWeb(t), true)
		if !w.passes("10.244.2.6", "10.244.1.5") {
			t.Error("a deleted policy still holds")
		}
	})
}

// With a controller a node reads nothing while no namespace of its pods has policies, and then these, its pods and the groups that they
// need; nothing takes away the last chunk of a group.
func TestWithController(t *testing.T) {
	w := newWorld()
	parsed, _ := policy.Parse(onlyWeb(t).Written)
	id := policy.Groups([]policy.Policy{parsed})[0].ID()
	group := func(members ...string) *api.PolicyGroup {
		version++
		return &api.PolicyGroup{Meta: api.Meta{Name: id + "-0", UID: "g", ResourceVersion: fmt.Sprint(version)}, Spec: api.PolicyGroupSpec{Group: id, Chunks: 1, Members: members}}
	}
	w.run(t, func(t *testing.T, l *Live) {
		w.put(pod(t, "db", "a", "", "db"), false)
		w.put(pod(t, "far", "b", "10.244.2.5", "web"), false)
		w.put(onlyWeb(t), false)
		compiled := mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}}
		l.SetState(state(compiled))
		time.Sleep(time.Second)
		if len(w.everRead()) > 0 || w.last().Namespaces["shop"] != [2]bool{true, false} {
			t.Errorf("without pods it reads %v; namespaces %v", w.everRead(), w.last().Namespaces)
		}
		w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
		l.PodsChanged()
		time.Sleep(time.Second)
		if w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("open before the group is known")
		}
		w.put(group("10.244.2.5"), false)
		if !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("not as the policy says: %+v", w.last())
		}
		want := []string{keyOf(podgroups.Policies("shop")), keyOf(podgroups.Pods("a")), keyOf(api.PolicyGroups(id))}
		slices.Sort(want)
		if got := w.everRead(); !slices.Equal(got, want) {
			t.Errorf("it reads %v, want %v", got, want)
		}
		w.put(group("10.244.2.6"), false)
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
			t.Error("a changed group changed nothing")
		}
		w.put(group("10.244.2.6"), true)
		if !w.passes("10.244.2.6", "10.244.1.5") {
			t.Error("a group that a policy needs is gone")
		}
		// What the PodNetwork lacks ends a policy only where the policy's own kind says so.
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}}))
		time.Sleep(time.Second)
		if w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("opened by the word of the PodNetwork")
		}
		w.put(onlyWeb(t), true)
		if !w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("a deleted policy still holds")
		}
	})
}

// Lists that nothing proves open nothing; a kind that cannot be read leaves what was in force, and closes no node.
func TestUnproved(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.given = []policies.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{"shop": {true, true}}}}}
	w.proved = false // an empty cache
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{}))
		time.Sleep(2 * unprovedPatience)
		if len(w.given) > 1 {
			t.Errorf("an empty list opened the node: %+v", w.last())
		}
	})
	w = newWorld()
	w.missing = fmt.Errorf("forbidden")
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{}))
		time.Sleep(time.Minute)
		if len(w.given) > 0 || w.off.Load() || l.Status().Trouble == nil || !strings.Contains(l.Status().Trouble.Error(), "upgrade the chart") {
			t.Errorf("%+v, trouble %v", w.given, l.Status().Trouble)
		}
	})
}

// After a restart rules stay in force whatever the PodNetwork lacks: until their namespaces' own NetworkPolicies are proved to be gone,
// and, where this node has no pods, until the PodNetwork is.
func TestRestart(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.given = []policies.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{"shop": {true, true}, "other": {true, false}}}}}
	w.proved = false // a cache that lacks them
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}}))
		time.Sleep(2 * unprovedPatience)
		if w.passes("10.244.2.6", "10.244.1.5") {
			t.Error("opened by the word of the PodNetwork")
		}
		if time.Sleep(2 * lasting); l.Status().Trouble == nil {
			t.Error("nothing says that this lasts")
		}
	})
	w.proved = true
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}}))
		time.Sleep(time.Second)
		if got := w.last().Namespaces; len(got) != 1 || !got["other"][0] {
			t.Errorf("its own NetworkPolicies are proved to be gone; in force: %v", got)
		}
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}))
		time.Sleep(time.Second)
		if got := w.last().Namespaces; len(got) > 0 {
			t.Errorf("proved to be gone, and in force: %v", got)
		}
	})
}

// A policy that was deleted while policies were off is gone when they are not; pods that ended while there was no policy are in no group.
func TestOffAndBack(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s"}}`), false)
		w.put(pod(t, "db", "a", "", "db"), false)
		far := pod(t, "far", "b", "10.244.2.5", "web")
		w.put(far, false)
		w.put(onlyWeb(t), false)
		l.SetState(state(mesh.Policies{}))
		time.Sleep(time.Second)
		if w.passes("10.244.2.6", "10.244.1.5") {
			t.Fatal("the policy is not in force")
		}
		l.SetState(state(mesh.Policies{NetworkPolicy: mesh.PolicyOff}))
		time.Sleep(time.Second)
		w.put(onlyWeb(t), true)
		l.SetState(state(mesh.Policies{}))
		time.Sleep(time.Second)
		if !w.passes("10.244.2.6", "10.244.1.5") {
			t.Error("a policy that was deleted meanwhile holds")
		}
		w.put(onlyWeb(t), false)
		w.put(onlyWeb(t), true)
		w.put(far, true)
		w.put(onlyWeb(t), false)
		if w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("a pod that ended while there was no policy is a member")
		}
		if got := len(l.peers.Groups()); got != 1 {
			t.Errorf("%d groups are kept up to date", got)
		}
	})
}

// A policy whose PolicyGroup is missing delays no other; its pods keep their former rules for a moment.
func TestMissingGroupDelaysNoOther(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")], w.local[netip.MustParseAddr("10.244.1.6")] = "shop/db", "shop/api"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(pod(t, "db", "a", "", "db"), false)
		w.put(pod(t, "api", "a", "", "api"), false)
		closed := func(name, more string) *podgroups.Policy {
			return object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":%q,"uid":%[1]q},"spec":{"podSelector":{"matchLabels":{"app":%[1]q}},"policyTypes":["Ingress"]%s}}`, name, more)
		}
		w.put(closed("none", ""), false)
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}}))
		time.Sleep(time.Second)
		if !w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.5", "10.244.1.6") {
			t.Fatal("pods without policies are closed")
		}
		on := w.on[keyOf(podgroups.Policies("shop"))]
		on(kube.News{Event: client.Event{What: client.Modified, Object: closed("api", `,"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"x"}}}]}]`)}})
		on(kube.News{Event: client.Event{What: client.Modified, Object: closed("db", "")}})
		time.Sleep(200 * time.Millisecond)
		if db, api := w.passes("10.244.2.5", "10.244.1.5"), w.passes("10.244.2.5", "10.244.1.6"); db || !api {
			t.Errorf("db open: %v, api open: %v; %+v", db, api, w.last())
		}
		if time.Sleep(groupPatience); w.passes("10.244.2.5", "10.244.1.6") {
			t.Error("open without its group")
		}
	})
}

// Changes that never end delay nothing.
func TestStorm(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(pod(t, "db", "a", "", "db"), false)
		w.put(onlyWeb(t), false)
		for range 100 {
			l.SetState(state(mesh.Policies{}))
			l.PodsChanged()
			time.Sleep(together / 2)
		}
		if w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("never compiled")
		}
	})
}

// A right that is taken later is trouble, and what was compiled stays.
func TestRightTaken(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{}))
		time.Sleep(time.Second)
		for _, on := range maps.Clone(w.on) {
			on(kube.News{Missing: fmt.Errorf("forbidden")})
		}
		if time.Sleep(time.Second); l.Status().Trouble == nil {
			t.Error("nothing says that policies cannot be read any longer")
		}
	})
}

// A cache that lags behind, or ignores selectors, changes no group.
func TestGroupsOfACache(t *testing.T) {
	group := func(id, version, member string) *api.PolicyGroup {
		return &api.PolicyGroup{Meta: api.Meta{Name: id + "-0", UID: "g", ResourceVersion: version}, Spec: api.PolicyGroupSpec{Group: id, Chunks: 1, Members: []string{member}}}
	}
	g, needed := groups{}, map[string]bool{"aa": true}
	g.take(kube.News{All: true, List: []api.Object{group("aa", "10", "10.244.1.5"), group("bb", "10", "10.244.1.5")}}, needed, "aa")
	g.take(kube.News{All: true, List: []api.Object{group("aa", "9", "10.244.1.6")}}, needed, "aa")
	if m, _ := g.members("aa"); len(g) != 1 || len(m) != 1 || m[0].String() != "10.244.1.5" {
		t.Errorf("%v of %d groups", m, len(g))
	}
}

// TestPartOfAGroup: a group is not known as a whole where its last chunk is gone, or a list lacks it, or a member cannot be read; the members that
// were stay.
func TestPartOfAGroup(t *testing.T) {
	needed := map[string]bool{"aa": true}
	for what, n := range map[string]kube.News{
		"deleted":      {Event: client.Event{What: client.Deleted, Object: chunk("aa", 0, 1, "10.244.1.5")}},
		"not listed":   {All: true, Proved: true},
		"not readable": {Event: client.Event{What: client.Modified, Object: chunk("aa", 0, 1, "10.244.1.5", "10.244.1.x")}},
	} {
		g := groups{}
		g.take(kube.News{All: true, Proved: true, List: []api.Object{chunk("aa", 0, 1, "10.244.1.5")}}, needed, "aa")
		if m, whole := g.members("aa"); len(m) != 1 || !whole {
			t.Fatalf("%v, whole %t", m, whole)
		}
		g.take(kube.News{All: true, Proved: true}, needed, "bb") // of other groups
		g.take(kube.News{All: true}, needed, "aa")
		if _, whole := g.members("aa"); !whole {
			t.Error("a list that does not count made it a part")
		}
		version += 10
		if e := n.Event.Object; e != nil {
			e.Metadata().ResourceVersion = fmt.Sprint(version)
		}
		g.take(n, needed, "aa")
		if m, whole := g.members("aa"); len(m) != 1 || whole {
			t.Errorf("%s: %v, whole %t", what, m, whole)
		}
		again := chunk("aa", 3, 1, "10.244.1.6")
		again.Meta.ResourceVersion = fmt.Sprint(version + 1)
		g.take(kube.News{Event: client.Event{What: client.Added, Object: again}}, needed, "aa")
		if m, whole := g.members("aa"); what != "not readable" && (len(m) != 1 || !whole || m[0].String() != "10.244.1.6") {
			t.Errorf("%s, and made again: %v, whole %t", what, m, whole)
		}
	}
}

// Another program that enforces is known by its own pod, ready in the host's network of this node.
func TestEngine(t *testing.T) {
	for text, want := range map[string]string{
		`{"hostNetwork":true,"containers":[{"image":"docker.io/cloudnativelabs/kube-router:v2.6.3"}]}`:                                                   "kube-router (pod kube-system/x)",
		`{"hostNetwork":true,"containers":[{"image":"docker.io/cloudnativelabs/kube-router:v2.6.3","args":["--run-firewall=false"]}]}`:                   "",
		`{"hostNetwork":true,"containers":[{"image":"cloudnativelabs/kube-router:v2","command":["/usr/local/bin/kube-router","--run-firewall=false"]}]}`: "",
		`{"hostNetwork":true,"containers":[{"image":"cloudnativelabs/kube-router:v2","args":["--run-firewall=False"]}]}`:                                 "",
		`{"hostNetwork":true,"containers":[{"image":"cloudnativelabs/kube-router:v2","command":["sh","-c","exec kube-router --run-firewall='0'"]}]}`:     "",
		`{"hostNetwork":true,"containers":[{"image":"quay.io/calico/node:v3.30"}]}`:                                                                      "", // it judges its own interfaces
		`{"containers":[{"image":"cloudnativelabs/kube-router:v2"}]}`:                                                                                    "", // anybody's pod
		`{"hostNetwork":true,"containers":[{"image":"registry.k8s.io/networking/kube-network-policies:v1@sha256:0123456789abcdef"}]}`:                    "kube-network-policies (pod kube-system/x)",
	} {
		p := object(t, new(podgroups.Pod), `{"metadata":{"namespace":"kube-system","name":"x","uid":"x"},"spec":%s,"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, text)
		if got := engine(map[string]*podgroups.Pod{"kube-system/x": p}); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		p.Ready = false
		if got := engine(map[string]*podgroups.Pod{"kube-system/x": p}); got != "" {
			t.Errorf("%s: %q enforces, and is not ready", text, got)
		}
	}
}

// denyOps denies what pods of namespace ops send to all pods.
func denyOps(t *testing.T) *podgroups.Policy {
	return object(t, podgroups.ClusterPolicies().New().(*podgroups.Policy), `{"metadata":{"name":"c","uid":"c"},"spec":{"tier":"Admin","priority":1,
		"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"team":"ops"}}}]}]}}`)
}

func notFound() error { return apierrors.NewNotFound(schema.GroupResource{}, "clusternetworkpolicies") }

// TestClusterAlone: without the kind, or the right to read it, NetworkPolicies hold; when the kind comes its policies do, and a
// namespace's new label counts.
func TestClusterAlone(t *testing.T) {
	for _, why := range []error{notFound(), apierrors.NewForbidden(schema.GroupResource{}, "", nil)} {
		w := newWorld()
		w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
		w.cluster = why
		w.run(t, func(t *testing.T, l *Live) {
			w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s","labels":{"team":"shop"}}}`), false)
			w.put(pod(t, "db", "a", "", "db"), false)
			w.put(pod(t, "far", "b", "10.244.2.5", "web"), false)
			w.put(onlyWeb(t), false)
			l.SetState(state(mesh.Policies{}))
			time.Sleep(time.Second)
			if !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.5") {
				t.Errorf("%v: %+v", why, w.last())
			}
			if (l.Status().Trouble != nil) == apierrors.IsNotFound(why) {
				t.Errorf("%v: %v", why, l.Status().Trouble)
			}
			w.mu.Lock()
			w.cluster = nil
			on := w.on[keyOf(podgroups.ClusterPolicies())]
			w.mu.Unlock()
			on(kube.News{All: true, Proved: true})
			w.put(denyOps(t), false)
			if !w.passes("10.244.2.5", "10.244.1.5") || l.Status().Trouble != nil {
				t.Errorf("%+v, %v", w.last(), l.Status().Trouble)
			}
			w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s","labels":{"team":"ops"}}}`), false)
			if w.passes("10.244.2.5", "10.244.1.5") {
				t.Errorf("denied, and passes: %+v", w.last())
			}
			on(kube.News{Missing: notFound()}) // an outage looks the same as a kind that was removed
			synctest.Wait()
			time.Sleep(time.Second)
			if w.passes("10.244.2.5", "10.244.1.5") || l.Status().Trouble == nil || !strings.Contains(l.Status().Trouble.Error(), "CustomResourceDefinition") {
				t.Errorf("opened by a missing kind: %+v, %v", w.last(), l.Status().Trouble)
			}
			w.put(onlyWeb(t), true) // which is no trouble of others
			on(kube.News{All: true, Proved: true})
			time.Sleep(time.Second)
			if !w.passes("10.244.2.5", "10.244.1.5") || len(w.last().Namespaces) > 0 {
				t.Errorf("proved to be gone: %+v", w.last())
			}
			on(kube.News{Missing: notFound()})
			if time.Sleep(time.Second); l.Status().Trouble != nil {
				t.Errorf("a kind without policies is removed: %v", l.Status().Trouble)
			}
		})
	}
	// Nor does a missing kind open what was in force before a restart.
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.cluster = notFound()
	w.given = []policies.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{policy.ClusterKind: {true, false}, policy.EveryNamespace: {true, false}}}}}
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{}))
		if time.Sleep(time.Hour); w.passes("10.244.2.5", "10.244.1.5") || l.Status().Trouble == nil {
			t.Errorf("%+v, %v", w.last(), l.Status().Trouble)
		}
	})
}

// TestClusterWithController: a node reads ClusterNetworkPolicies, the labels of its pods' namespaces and the groups where the controller says
// that there are some; what it was denies while a group is missing, and in the end all; only its own reading ends a policy.
func TestClusterWithController(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	parsed, _ := denyOps(t).Parse()
	id := policy.Groups([]policy.Policy{parsed})[0].ID()
	some := mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{policy.ClusterKind: "Ingress"}, PolicyProved: true}
	none := mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s","labels":{"team":"shop"}}}`), false)
		w.put(pod(t, "db", "a", "", "db"), false)
		l.SetState(state(none))
		time.Sleep(time.Second)
		if len(w.everRead()) > 0 {
			t.Errorf("without policies it reads %v", w.everRead())
		}
		w.put(denyOps(t), false)
		l.SetState(state(some))
		time.Sleep(100 * time.Millisecond)
		if w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("open before the group is known")
		}
		group := &api.PolicyGroup{Meta: api.Meta{Name: id + "-0", UID: "g", ResourceVersion: "1"}, Spec: api.PolicyGroupSpec{Group: id, Chunks: 1, Members: []string{"10.244.2.5"}}}
		w.put(group, false)
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("not as the policy says: %+v", w.last())
		}
		want := []string{keyOf(podgroups.ClusterPolicies()), keyOf(podgroups.Namespaces("shop")), keyOf(podgroups.Pods("a")), keyOf(api.PolicyGroups(id))}
		slices.Sort(want)
		if got := w.everRead(); !slices.Equal(got, want) {
			t.Errorf("it reads %v, want %v", got, want)
		}
		split := *group // another chunk is on its way
		split.Spec.Chunks, split.Meta.ResourceVersion = 2, "2"
		w.put(&split, false)
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("while a group is read: %+v", w.last())
		}
		split.Spec.Chunks, split.Meta.ResourceVersion = 1, "3"
		w.put(&split, false)
		more := denyOps(t)
		more.Cluster.Spec.Ingress[0].From[0].Namespaces.MatchLabels["team"] = "other"
		w.put(more, false) // its group is not there
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("what was is not in force while a group is missing: %+v", w.last())
		}
		if time.Sleep(2 * denyPatience); w.passes("10.244.2.6", "10.244.1.5") || l.Status().Trouble == nil {
			t.Errorf("what is denied is not known, and passes: %+v", w.last())
		}
		w.put(denyOps(t), false)
		l.SetState(state(none))
		time.Sleep(time.Second)
		if w.passes("10.244.2.5", "10.244.1.5") {
			t.Error("opened by the word of the PodNetwork")
		}
		w.put(denyOps(t), true)
		if !w.passes("10.244.2.5", "10.244.1.5") || len(w.last().Namespaces) > 0 {
			t.Errorf("a deleted policy still holds: %+v", w.last())
		}
	})
	// After a restart an empty cache, and a PodNetwork that lacks them, open nothing.
	w = newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	was := map[string][2]bool{policy.ClusterKind: {true, false}, policy.EveryNamespace: {true, false}}
	w.given = []policies.Given{{Rules: policy.Rules{Namespaces: was}}}
	w.proved = false
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(none))
		time.Sleep(2 * unprovedPatience)
		if len(w.given) > 1 {
			t.Errorf("opened: %+v", w.last())
		}
	})
}

// chunk is a PolicyGroup of one of so many chunks.
func chunk(id string, n, of int, members ...string) *api.PolicyGroup {
	version++
	return &api.PolicyGroup{Meta: api.Meta{Name: fmt.Sprint(id, "-", n), UID: fmt.Sprint("g", n), ResourceVersion: fmt.Sprint(version)},
		Spec: api.PolicyGroupSpec{Group: id, Chunk: n, Chunks: of, Members: members}}
}

// deny denies what pods of a team's namespaces send to pods with app=db, or to all with none.
func deny(t *testing.T, team string) (p *podgroups.Policy, id string) {
	p = object(t, podgroups.ClusterPolicies().New().(*podgroups.Policy), `{"metadata":{"name":"c","uid":"c"},"spec":{"tier":"Admin","priority":1,
		"subject":{"namespaces":{"matchLabels":{"denied":"yes"}}},"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"team":%q}}}]}]}}`, team)
	parsed, err := p.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return p, policy.Groups([]policy.Policy{parsed})[0].ID()
}

var someCluster = mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{policy.ClusterKind: "Ingress"}, PolicyProved: true}

func space(t *testing.T, name, denied string) *podgroups.Namespace {
	return object(t, new(podgroups.Namespace), `{"metadata":{"name":%q,"uid":%[1]q,"labels":{"denied":%q}}}`, name, denied)
}

// denyOps begins tests: of node a's pod shop/db, whose namespace a policy selects or not, it denies what members of a group send. It returns the group.
func (w *world) denyOps(t *testing.T, l *Live, denied string, members ...string) (id string) {
	p, id := deny(t, "ops")
	w.mu.Lock()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.mu.Unlock()
	w.put(space(t, "shop", denied), false)
	w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
	w.put(p, false)
	if len(members) > 0 {
		w.put(chunk(id, 0, 1, members...), false)
	}
	l.SetState(state(someCluster))
	time.Sleep(time.Second)
	return id
}

// TestDenyUnderChurn: a new Deny rule waits for its group no longer than its patience, from when it was first needed, whatever is rewritten
// meanwhile; a group that was known and is being rewritten has its former members and those that were added; one that stays incomplete denies all.
func TestDenyUnderChurn(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		first := w.denyOps(t, l, "yes", "10.244.2.5")
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
			t.Fatalf("not as the policy says: %+v", w.last())
		}
		w.put(chunk(first, 0, 2), false) // its members move to a chunk that is not there yet
		w.put(chunk(first, 2, 4, "10.244.2.7"), false)
		for from, want := range map[string]bool{"10.244.2.5": false, "10.244.2.6": true, "10.244.2.7": false} {
			if w.passes(from, "10.244.1.5") != want {
				t.Errorf("while its group is rewritten, from %s: %+v", from, w.last())
			}
		}
		if time.Sleep(denyPatience); w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("its group stays incomplete: %+v", w.last())
		}
		w.put(chunk(first, 0, 1, "10.244.2.5"), false)
		w.put(chunk(first, 2, 4), true)
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
			t.Fatalf("its group is whole again: %+v", w.last())
		}
		began := time.Now()
		for i := 0; time.Since(began) < denyPatience+3*time.Second; i++ { // w.put takes a second
			p, id := deny(t, fmt.Sprint("team-", i%2))
			w.put(p, false)
			w.put(chunk(id, i%3, 4), false)
			if early := time.Since(began) < 5*time.Second; early && !w.passes("10.244.2.6", "10.244.1.5") {
				t.Errorf("denied after %v", time.Since(began))
			}
		}
		if w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("a new Deny is kept out by what is rewritten: %+v", w.last())
		}
	})
}

// TestGroupsAreReadOn: while other groups begin to be read, those that are known stay known.
func TestGroupsAreReadOn(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		id := w.denyOps(t, l, "yes", "10.244.2.5")
		w.mu.Lock()
		w.silent = api.PolicyGroups().Name // the next reader hears nothing
		w.mu.Unlock()
		more, _ := deny(t, "ops")
		more.Cluster.Spec.Ingress = append(more.Cluster.Spec.Ingress, more.Cluster.Spec.Ingress[0])
		more.Cluster.Spec.Ingress[1].From = []policy.ClusterPeer{{Pods: &policy.NamespacedPods{}}}
		w.put(more, false)
		w.put(chunk(id, 0, 1, "10.244.2.6"), false)
		if !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("%+v", w.last())
		}
	})
}

// TestUnreadNamespace: a namespace whose labels are not read keeps no other pod's rules waiting, and its own pods have their former rules for as
// long as there is patience; a new pod is closed until they are read, and its namespace is not among those that are known.
func TestUnreadNamespace(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.6")] = "other/x"
	w.run(t, func(t *testing.T, l *Live) {
		w.denyOps(t, l, "yes", "10.244.2.5")
		other := pod(t, "x", "a", "10.244.1.6", "x")
		other.Meta.Namespace, other.As.Namespace = "other", "other"
		w.put(other, false)
		w.put(space(t, "other", "no"), false)
		place := func(namespace string) [2]string {
			a := netip.MustParseAddr("10.244.1.9")
			return w.last().Place(map[netip.Addr]string{a: namespace + "/new"}).At[a].Chains
		}
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.5", "10.244.1.6") || place("other") != [2]string{} || place("to-come") != [2]string{policy.Closed, ""} {
			t.Fatalf("not as the policy says: %+v", w.last())
		}
		w.mu.Lock()
		w.silent = "namespaces"
		w.local[netip.MustParseAddr("10.244.1.7")] = "third/y"
		w.mu.Unlock()
		l.PodsChanged()
		more, team := deny(t, "else")
		w.put(chunk(team, 0, 1, "10.244.2.6"), false)
		w.put(more, false)
		if w.passes("10.244.2.6", "10.244.1.5") || !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.7") || place("third") != [2]string{policy.Closed, ""} {
			t.Errorf("while a namespace is not read: %+v", w.last())
		}
		// The labels of one that was read cannot be forgotten, but it may be gone.
		w.put(space(t, "other", "no"), true)
		if !w.passes("10.244.2.6", "10.244.1.6") {
			t.Errorf("immediately: %+v", w.last())
		}
		if time.Sleep(denyPatience); w.passes("10.244.2.6", "10.244.1.6") || w.passes("10.244.2.6", "10.244.1.5") || !w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("without labels for long: %+v", w.last())
		}
	})
}

// TestClusterUnread: where the controller says that there are ClusterNetworkPolicies, and a node that has none in force cannot read them, pods are
// closed in the end, until the controller says that they are gone.
func TestClusterUnread(t *testing.T) {
	for _, why := range []error{notFound(), apierrors.NewForbidden(schema.GroupResource{}, "", nil)} {
		w := newWorld()
		w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
		w.cluster = why
		w.run(t, func(t *testing.T, l *Live) {
			w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
			l.SetState(state(someCluster))
			if time.Sleep(time.Second); !w.passes("10.244.2.5", "10.244.1.5") || l.Status().Trouble == nil {
				t.Errorf("%v, immediately: %+v", why, w.last())
			}
			if time.Sleep(denyPatience + time.Second); w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.1.5", "10.244.2.5") {
				t.Errorf("%v: %+v", why, w.last())
			}
			l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}))
			if time.Sleep(time.Second); !w.passes("10.244.2.5", "10.244.1.5") {
				t.Errorf("%v, gone: %+v", why, w.last())
			}
		})
	}
}

// TestSavedGuess: that pods are closed for ClusterNetworkPolicies which nobody could read ends after a restart, too, once the PodNetwork is proved to
// name none, whether the kind is refused or never answers; what was compiled of one ends only by a list.
func TestSavedGuess(t *testing.T) {
	for _, silent := range []string{"", podgroups.ClusterPolicies().Name} {
		for _, guess := range []bool{true, false} {
			w := newWorld()
			w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
			w.cluster, w.silent = apierrors.NewForbidden(schema.GroupResource{}, "", nil), silent
			rules := policy.Rules{Namespaces: map[string][2]bool{policy.ClusterKind: {true, false}, policy.EveryNamespace: {true, false}}}
			if !guess {
				parsed, _ := denyOps(t).Parse()
				rules = policy.Compile([]policy.Policy{parsed}, map[string]map[string]string{"shop": {}}, []policy.Pod{{Namespace: "shop", Name: "db"}},
					func(policy.Group) []policy.Member { return []policy.Member{{Addr: netip.MustParseAddr("10.244.2.5")}} })
			}
			w.given = []policies.Given{{Rules: rules}}
			w.run(t, func(t *testing.T, l *Live) {
				w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
				for _, proved := range []bool{false, true} {
					l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: proved}))
					if time.Sleep(time.Hour); w.passes("10.244.2.5", "10.244.1.5") != (guess && proved) {
						t.Errorf("silent %q, a guess %t, proved %t: %+v", silent, guess, proved, w.last())
					}
				}
			})
		}
	}
}

// TestAloneUnread: where pods cannot be read, a ClusterNetworkPolicy closes those that were never judged in the end, until it is gone.
func TestAloneUnread(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.silent = "pods"
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{}))
		w.put(denyOps(t), false)
		if time.Sleep(time.Second); !w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("immediately: %+v", w.last())
		}
		if time.Sleep(denyPatience); w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("%+v", w.last())
		}
		if w.put(denyOps(t), true); !w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("gone: %+v", w.last())
		}
	})
}

// TestClusterEmptyCache: an empty list that nothing proves does not count against the PodNetwork, though no rule is in force.
func TestClusterEmptyCache(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.proved = false
	w.run(t, func(t *testing.T, l *Live) {
		w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
		w.put(space(t, "shop", "yes"), false)
		l.SetState(state(someCluster))
		if time.Sleep(time.Hour); w.passes("10.244.2.5", "10.244.1.5") || l.Status().Trouble == nil {
			t.Errorf("%+v, %v", w.last(), l.Status().Trouble)
		}
	})
}

// TestClusterKindRemoved: with a controller policies end where the API does not have the kind, and the controller, which keeps their name until it
// has read an empty list, does not name them: neither is enough alone.
func TestClusterKindRemoved(t *testing.T) {
	w := newWorld()
	none := mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}
	w.run(t, func(t *testing.T, l *Live) {
		w.denyOps(t, l, "yes", "10.244.2.5")
		step := func(what string, s mesh.Policies, missing, want bool) {
			t.Helper()
			l.SetState(state(s))
			time.Sleep(time.Second)
			if missing {
				w.mu.Lock()
				on := w.on[keyOf(podgroups.ClusterPolicies())]
				w.mu.Unlock()
				on(kube.News{Missing: notFound()})
			}
			if time.Sleep(time.Hour); w.passes("10.244.2.5", "10.244.1.5") != want {
				t.Errorf("%s: %+v", what, w.last())
			}
		}
		step("in force", someCluster, false, false)
		step("not named", none, false, false)
		step("named, and no kind", someCluster, true, false)
		unproved := none
		unproved.PolicyProved = false
		step("neither, by a cache", unproved, true, false)
		step("neither", none, false, true)
	})
}

// TestClusterUndecodable: a policy that cannot be decoded any longer stays what it was.
func TestClusterUndecodable(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s","labels":{"team":"ops"}}}`), false)
		w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
		w.put(pod(t, "far", "b", "10.244.2.5", "web"), false)
		broken := func() *podgroups.Policy {
			return object(t, podgroups.ClusterPolicies().New().(*podgroups.Policy), `{"metadata":{"name":"c","uid":"c"},"spec":{"tier":"Admin","priority":"high","subject":{"namespaces":{}}}}`)
		}
		w.put(denyOps(t), false)
		l.SetState(state(mesh.Policies{}))
		time.Sleep(time.Second)
		for range 2 {
			w.put(broken(), false)
			if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
				t.Errorf("%+v", w.last())
			}
		}
		if why := l.Status().Invalid["ClusterNetworkPolicy/c"]; why == nil || !strings.Contains(why.Error(), "spec.priority") {
			t.Errorf("%v", why)
		}
	})
}

// TestEngineBesideCluster: another engine does not know ClusterNetworkPolicies, and a finding says so.
func TestEngineBesideCluster(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Pod), `{"metadata":{"namespace":"kube-system","name":"r","uid":"r"},"spec":{"nodeName":"a","hostNetwork":true,"containers":[{"image":"cloudnativelabs/kube-router:v2"}]},
			"status":{"conditions":[{"type":"Ready","status":"True"}]}}`), false)
		w.put(onlyWeb(t), false)
		l.SetState(state(mesh.Policies{}))
		says := func() bool {
			time.Sleep(time.Second)
			return strings.Contains(fmt.Sprint(l.Findings()), "ClusterNetworkPolicies are not enforced on this node: kube-router")
		}
		if !w.off.Load() && says() {
			t.Error("said without any")
		}
		w.put(denyOps(t), false)
		if !w.off.Load() || !says() {
			t.Errorf("off %t: %v", w.off.Load(), l.Findings())
		}
	})
}

// TestKeptVersion: what is followed keeps a policy as it was where it cannot be decoded any longer.
func TestKeptVersion(t *testing.T) {
	f := &followed{items: map[string]api.Object{}, changed: map[string]bool{}}
	f.put(denyOps(t))
	f.put(object(t, podgroups.ClusterPolicies().New().(*podgroups.Policy), `{"metadata":{"name":"c","uid":"c"},"spec":{"priority":"x"}}`))
	if p, err := f.items["c"].(*podgroups.Policy).Parse(); err == nil || len(policy.Groups([]policy.Policy{p})) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestManyNamespaces: where the PodNetwork says that any namespace may have policies, a node reads those of its pods' namespaces, and new pods of
// others are closed.
func TestManyNamespaces(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")], w.local[netip.MustParseAddr("10.244.1.6")] = "shop/db", "free/x"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":"p","uid":"p"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`), false)
		w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{policy.EveryNamespace: "Ingress"}, PolicyProved: true}))
		time.Sleep(time.Second)
		for namespace, want := range map[string][2]string{"shop": {policy.Closed, ""}, "free": {}, "third": {policy.Closed, ""}} {
			a := netip.MustParseAddr("10.244.1.9")
			if got := w.last().Place(map[netip.Addr]string{a: namespace + "/new"}).At[a].Chains; got != want {
				t.Errorf("a new pod of namespace %s: %v; %+v", namespace, got, w.last())
			}
		}
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.5", "10.244.1.6") {
			t.Errorf("not as the policy says: %+v", w.last())
		}
	})
}

// TestNameComesBack: a pod that was deleted leaves nothing to the next one of its name.
func TestNameComesBack(t *testing.T) {
	w := newWorld()
	a := netip.MustParseAddr("10.244.1.5")
	w.local[a] = "shop/db"
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":"p","uid":"p"},"spec":{"podSelector":{"matchLabels":{"app":"db"}},"policyTypes":["Ingress"]}}`), false)
		db := pod(t, "db", "a", "10.244.1.5", "other")
		w.put(db, false)
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}, PolicyProved: true}))
		if time.Sleep(time.Second); !w.passes("10.244.2.5", "10.244.1.5") {
			t.Fatalf("%+v", w.last())
		}
		delete(w.local, a)
		l.PodsChanged()
		w.put(db, true)
		w.mu.Lock()
		w.silent, w.local[a] = "pods", "shop/db"
		w.mu.Unlock()
		l.PodsChanged()
		if time.Sleep(time.Second); w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("a pod that nothing is known of has its predecessor's rules: %+v", w.last())
		}
	})
}

// tell gives news to what reads a kind.
func (w *world) tell(kind string, n kube.News) {
	w.mu.Lock()
	var tell []func(kube.News)
	for k, on := range w.on {
		if w.kinds[k].Name == kind {
			tell = append(tell, on)
		}
	}
	w.mu.Unlock()
	for _, on := range tell {
		on(n)
	}
	synctest.Wait()
	time.Sleep(time.Second)
}

// TestRefusedLater: what was read before and is refused now is not current: in the end what may be denied is, until it is read again.
func TestRefusedLater(t *testing.T) {
	for _, kind := range []string{"namespaces", api.PolicyGroups().Name} {
		w := newWorld()
		w.run(t, func(t *testing.T, l *Live) {
			id := w.denyOps(t, l, "yes", "10.244.2.5")
			w.tell(kind, kube.News{Missing: apierrors.NewForbidden(schema.GroupResource{}, "", nil)})
			if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
				t.Fatalf("%s, immediately: %+v", kind, w.last())
			}
			if time.Sleep(denyPatience); w.passes("10.244.2.6", "10.244.1.5") || l.Status().Trouble == nil {
				t.Errorf("%s may have changed, and all passes: %+v, %v", kind, w.last(), l.Status().Trouble)
			}
			again := map[string]api.Object{"namespaces": space(t, "shop", "yes"), api.PolicyGroups().Name: chunk(id, 0, 1, "10.244.2.5")}[kind]
			w.tell(kind, kube.News{All: true, Proved: true, List: []api.Object{again}})
			if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") || l.Status().Trouble != nil {
				t.Errorf("%s, read again: %+v, %v", kind, w.last(), l.Status().Trouble)
			}
		})
	}
}

// TestStartWithoutGroups: PolicyGroups that nobody can read after a start hold up no rule forever.
func TestStartWithoutGroups(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.given = []policies.Given{{Rules: policy.Rules{Pods: map[string][2]string{"shop/db": {}}, Namespaces: map[string][2]bool{policy.ClusterKind: {true, false}}}}}
	w.silent = api.PolicyGroups().Name
	w.run(t, func(t *testing.T, l *Live) {
		p, _ := deny(t, "ops")
		w.put(space(t, "shop", "yes"), false)
		w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
		w.put(p, false)
		time.Sleep(time.Hour) // the API comes back
		l.SetState(state(someCluster))
		if time.Sleep(time.Second); !w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("immediately: %+v", w.last())
		}
		if time.Sleep(denyPatience + time.Second); w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("%+v", w.last())
		}
	})
}

// TestFirstClusterPolicyUnread: namespaces of which all was known are not known any longer where the first ClusterNetworkPolicy cannot be read.
func TestFirstClusterPolicyUnread(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.6")] = "free/x"
	w.run(t, func(t *testing.T, l *Live) {
		free := pod(t, "x", "a", "10.244.1.6", "x")
		free.Meta.Namespace, free.As.Namespace = "free", "free"
		w.put(free, false)
		many := mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{policy.EveryNamespace: "Ingress,Egress"}, PolicyProved: true}
		l.SetState(state(many))
		time.Sleep(time.Second)
		closed := func() bool {
			a := netip.MustParseAddr("10.244.1.9")
			return w.last().Place(map[netip.Addr]string{a: "free/new"}).At[a].Chains[0] == policy.Closed
		}
		if closed() {
			t.Fatalf("%+v", w.last())
		}
		w.mu.Lock()
		w.cluster = apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		w.mu.Unlock()
		many.PolicyNamespaces = map[string]string{policy.EveryNamespace: "Ingress,Egress", policy.ClusterKind: "Ingress"}
		l.SetState(state(many))
		if time.Sleep(denyPatience + 2*time.Second); !closed() {
			t.Errorf("a new pod is open: %+v", w.last())
		}
	})
}

// TestClusterKindTroubled: without a controller NetworkPolicies do not wait forever for a kind that nobody knew, whatever the API answers;
// and what a right that is given later says of it ends the finding.
func TestClusterKindTroubled(t *testing.T) {
	w := newWorld()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.silent = podgroups.ClusterPolicies().Name
	w.given = []policies.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{"shop": {true, false}}}}}
	w.run(t, func(t *testing.T, l *Live) {
		w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s"}}`), false)
		w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
		w.put(pod(t, "far", "b", "10.244.2.5", "web"), false)
		w.put(onlyWeb(t), false)
		l.SetState(state(mesh.Policies{}))
		time.Sleep(time.Second)
		synctest.Wait()
		for _, f := range l.follows {
			if f.kind.Name == podgroups.ClusterPolicies().Name {
				l.in <- message{f, kube.News{Err: errors.New("bad gateway")}}
			}
		}
		if time.Sleep(unprovedPatience + time.Second); !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("%+v, %v", w.last(), l.Status())
		}
		for _, n := range []kube.News{{Missing: apierrors.NewForbidden(schema.GroupResource{}, "", nil)}, {Missing: notFound()}} {
			for _, f := range l.follows {
				if f.kind.Name == podgroups.ClusterPolicies().Name {
					l.in <- message{f, n}
				}
			}
			time.Sleep(time.Second)
		}
		if err := l.Status().Trouble; err != nil {
			t.Errorf("the API does not have the kind, and there is trouble: %v", err)
		}
	})
}

// TestPodsComeBackWithoutTheAPI: after a power cut a cache knows the PodNetwork before a pod is back, and nothing of pods: those that come back have
// what they had. What no namespace has any longer does not stay.
func TestPodsComeBackWithoutTheAPI(t *testing.T) {
	for _, names := range []map[string]string{{"shop": "Ingress"}, {policy.ClusterKind: "Ingress"}} {
		w := newWorld()
		own := []policy.Pod{{Namespace: "shop", Name: "db"}}
		parsed, _ := onlyWeb(t).Parse()
		all := []policy.Policy{parsed}
		if names[policy.ClusterKind] != "" {
			parsed, _ = denyOps(t).Parse()
			all = []policy.Policy{parsed}
		}
		was := policy.Compile(all, map[string]map[string]string{"shop": {}}, own, func(policy.Group) []policy.Member { return []policy.Member{{Addr: netip.MustParseAddr("10.244.2.5")}} })
		w.given, w.silent, w.proved = []policies.Given{{Rules: was}}, "pods", false
		w.run(t, func(t *testing.T, l *Live) {
			l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: names}))
			time.Sleep(time.Minute)
			synctest.Wait()
			w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
			l.PodsChanged()
			time.Sleep(time.Hour)
			for from, want := range map[string]bool{"10.244.2.5": names["shop"] != "", "10.244.2.6": names["shop"] == ""} {
				if w.passes(from, "10.244.1.5") != want {
					t.Errorf("%v, from %s: %+v", names, from, w.last())
				}
			}
			delete(w.local, netip.MustParseAddr("10.244.1.5"))
			l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}))
			w.put(pod(t, "db", "a", "", "db"), true)
			if time.Sleep(time.Second); len(w.last().Pods) > 0 && names["shop"] != "" {
				t.Errorf("no namespace has policies: %+v", w.last())
			}
		})
	}
}

// TestStartWithoutGroup: after a start no former rules are left to a pod while the group of a Deny rule is not known: agents that start again and
// again would keep the rule out.
func TestStartWithoutGroup(t *testing.T) {
	w := newWorld()
	w.given = []policies.Given{{Rules: policy.Rules{Pods: map[string][2]string{"shop/db": {}}, Namespaces: map[string][2]bool{"far": {true, false}}}}}
	w.run(t, func(t *testing.T, l *Live) {
		if w.denyOps(t, l, "yes"); w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("%+v", w.last())
		}
	})
}

// TestNothingPassesInTheEnd: whatever comes in which order, of policies, labels, parts of groups and readers that hear nothing, what the policies
// deny does not pass once patience is over; and all passes that they let pass, where all is known.
func TestNothingPassesInTheEnd(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newWorld()
		truth := map[string]map[string]string{"shop": {}, "other": {}}
		var did []string
		w.run(t, func(t *testing.T, l *Live) {
			spaceOf := func(name string) *podgroups.Namespace {
				l := map[string]string{"denied": []string{"yes", "no"}[r.IntN(2)]}
				truth[name] = l
				return object(t, new(podgroups.Namespace), `{"metadata":{"name":%q,"uid":%[1]q,"labels":{"denied":%q}}}`, name, l["denied"])
			}
			for i, name := range []string{"shop", "other"} {
				p := pod(t, "x", "a", fmt.Sprint("10.244.1.", i), "x")
				p.Meta.Namespace, p.As.Namespace = name, name
				w.local[netip.MustParseAddr(fmt.Sprint("10.244.1.", i))] = name + "/x"
				w.put(p, false)
				w.put(spaceOf(name), false)
			}
			teams := map[string]string{} // by group
			whole, heard := map[string]bool{}, true
			cluster := map[string]*podgroups.Policy{}
			l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}))
			for range 5 + r.IntN(25) {
				switch what := r.IntN(8); what {
				case 0, 1:
					name, tier := fmt.Sprint("c", r.IntN(2)), []string{"Admin", "Baseline"}[r.IntN(2)]
					var rules []string
					for range 1 + r.IntN(3) {
						rules = append(rules, fmt.Sprintf(`{"action":%q,"from":[{"namespaces":{"matchLabels":{"team":"t%d"}}}]}`, []string{"Deny", "Pass", "Accept"}[r.IntN(3)], r.IntN(3)))
					}
					p := object(t, podgroups.ClusterPolicies().New().(*podgroups.Policy), `{"metadata":{"name":%q,"uid":%[1]q},"spec":{"tier":%q,"priority":%d,
						"subject":{"namespaces":{"matchLabels":{"denied":"yes"}}},"ingress":[%s]}}`, name, tier, r.IntN(3), strings.Join(rules, ","))
					l.SetState(state(someCluster))
					cluster[name] = p
					for team := range 3 {
						_, id := deny(t, fmt.Sprint("t", team))
						teams[id] = fmt.Sprint("10.244.2.", team)
					}
					w.put(p, false)
					did = append(did, "policy "+name+" "+tier+strings.Join(rules, ","))
				case 2, 3, 4:
					for id, member := range teams {
						if r.IntN(2) == 0 {
							continue
						}
						for n := 1; n < 3; n++ {
							w.put(chunk(id, n, 9), r.IntN(2) == 0)
						}
						if whole[id] = what < 4; whole[id] {
							for n := 1; n < 3; n++ {
								w.put(chunk(id, n, 9), true)
							}
							w.put(chunk(id, 0, 1, member), false)
							did = append(did, "whole "+member)
						} else {
							w.put(chunk(id, 0, 9), false)
							did = append(did, "part "+member)
						}
					}
				case 5:
					name := []string{"shop", "other"}[r.IntN(2)]
					w.put(spaceOf(name), false)
					did = append(did, fmt.Sprint("labels of ", name, truth[name]))
				case 6:
					w.mu.Lock()
					w.silent = []string{"", "", "policygroups", "namespaces"}[r.IntN(4)]
					did, heard = append(did, "silent "+w.silent), heard && w.silent == ""
					w.mu.Unlock()
				case 7:
					time.Sleep(time.Duration(r.IntN(20)) * time.Second)
					did = append(did, "time")
				}
			}
			time.Sleep(denyPatience + time.Second)
			var all []policy.Policy
			for _, p := range cluster {
				parsed, err := p.Parse()
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, parsed)
			}
			var own []policy.Pod
			for _, name := range w.local {
				namespace, _, _ := strings.Cut(name, "/")
				own = append(own, policy.Pod{Namespace: namespace, Name: "x", Labels: map[string]string{"app": "x"}})
			}
			want := policy.Compile(all, truth, own, func(g policy.Group) []policy.Member {
				return []policy.Member{{Addr: netip.MustParseAddr(teams[g.ID()])}}
			}).Place(w.local)
			for from := range 4 {
				for to := range w.local {
					p := policy.Packet{Src: netip.MustParseAddr(fmt.Sprint("10.244.2.", from)), Dst: to, Protocol: 6, Port: 80}
					pass, by, _ := want.Verdict(p)
					known := heard && !slices.ContainsFunc(slices.Collect(maps.Keys(teams)), func(id string) bool { return !whole[id] })
					if got := w.passes(p.Src.String(), to.String()); got && !pass || got != pass && known {
						t.Errorf("seed %d: %v passes not as it should, by %v, after %s; in force %+v", seed, p, by, strings.Join(did, "; "), w.last())
					}
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// place are the chains of a pod of this name that starts now.
func place(w *world, pod string) [2]string {
	a := netip.MustParseAddr("10.244.1.99")
	return w.last().Place(map[netip.Addr]string{a: pod}).At[a].Chains
}

// TestRefusedUnselected: a namespace that was not selected, and whose labels are refused later, is closed after a time: they may have changed.
func TestRefusedUnselected(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		w.denyOps(t, l, "no", "10.244.2.5")
		w.tell("namespaces", kube.News{Missing: apierrors.NewForbidden(schema.GroupResource{}, "", nil)})
		time.Sleep(denyPatience + time.Second)
		if w.passes("10.244.2.5", "10.244.1.5") || place(w, "shop/new") == [2]string{} {
			t.Errorf("labels may have changed, and all passes: %+v", w.last())
		}
	})
}

// TestUnprovedLabels: a new pod is not open by labels of its namespace that nothing proves.
func TestUnprovedLabels(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		w.denyOps(t, l, "yes", "10.244.2.5")
		w.put(space(t, "y", "no"), false) // what a stale cache has
		w.mu.Lock()
		w.proved = false
		w.local[netip.MustParseAddr("10.244.1.7")] = "y/static"
		w.mu.Unlock()
		l.PodsChanged()
		time.Sleep(2 * denyPatience)
		if w.passes("10.244.2.5", "10.244.1.7") {
			t.Errorf("a new pod is open by labels that nothing proves: %+v", w.last())
		}
	})
}

// TestStartKeepsExcept: what is in force at a start stays whole, namespaces that are left out included, until pods are read.
func TestStartKeepsExcept(t *testing.T) {
	w := newWorld()
	own := []policy.Pod{{Namespace: "shop", Name: "db"}, {Namespace: "free", Name: "x"}}
	parsed, _, _ := func() (policy.Policy, string, error) { p, id := deny(t, "ops"); x, err := p.Parse(); return x, id, err }()
	was := policy.Compile([]policy.Policy{parsed}, map[string]map[string]string{"shop": {"denied": "yes"}, "free": {"denied": "no"}}, own, func(policy.Group) []policy.Member { return nil })
	w.given, w.silent, w.proved = []policies.Given{{Rules: was}}, "pods", false
	w.run(t, func(t *testing.T, l *Live) {
		if place(w, "free/static") != [2]string{} {
			t.Fatal("before")
		}
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{policy.ClusterKind: "Ingress"}}))
		time.Sleep(time.Minute)
		if place(w, "free/static") != [2]string{} {
			t.Errorf("closed for as long as there is no API: was except %v, is %v", was.Except, w.last().Except)
		}
	})
}

// TestNameAfterRestart: a pod that was deleted while no agent ran leaves its rules to no other one of its name.
func TestNameAfterRestart(t *testing.T) {
	w := newWorld()
	a := netip.MustParseAddr("10.244.1.5")
	np := object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":"p","uid":"p"},"spec":{"podSelector":{"matchLabels":{"app":"db"}},"policyTypes":["Ingress"]}}`)
	parsed, _ := np.Parse()
	was := policy.Compile([]policy.Policy{parsed}, nil, []policy.Pod{{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "other"}}}, nil)
	w.given = []policies.Given{{Rules: was}}
	w.run(t, func(t *testing.T, l *Live) {
		w.put(np, false)
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}, PolicyProved: true}))
		time.Sleep(7 * 24 * time.Hour) // the API answers all the time
		w.mu.Lock()
		w.silent, w.local[a] = "pods", "shop/db"
		w.mu.Unlock()
		l.PodsChanged()
		if time.Sleep(time.Second); w.passes("10.244.2.5", "10.244.1.5") {
			t.Errorf("a week after the start a pod that nothing is known of has its predecessor's rules: %+v", w.last().Pods)
		}
	})
}

// TestAloneRefusedLater: pods or namespaces that cannot be read any longer, without a controller, leave no Deny open.
func TestAloneRefusedLater(t *testing.T) {
	for _, kind := range []string{"pods", "namespaces"} {
		w := newWorld()
		w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
		w.run(t, func(t *testing.T, l *Live) {
			w.put(object(t, new(podgroups.Namespace), `{"metadata":{"name":"shop","uid":"s","labels":{"team":"ops"}}}`), false)
			w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
			w.put(pod(t, "far", "b", "10.244.2.5", "web"), false)
			w.put(denyOps(t), false)
			l.SetState(state(mesh.Policies{}))
			time.Sleep(time.Second)
			if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
				t.Fatalf("%+v", w.last())
			}
			w.tell(kind, kube.News{Missing: apierrors.NewForbidden(schema.GroupResource{}, "", nil)})
			time.Sleep(time.Hour)
			if w.passes("10.244.2.6", "10.244.1.5") {
				t.Errorf("%s may have changed an hour ago, and all passes", kind)
			}
		})
	}
}

// TestStartUnread: after a start without saved rules pods of namespaces that have NetworkPolicies are closed after a time where these cannot
// be compiled, with a controller and without one; where a right is missing nothing changes.
func TestStartUnread(t *testing.T) {
	shop := object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":"p","uid":"p"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`)
	for name, x := range map[string]struct {
		silent string
		state  mesh.Policies
	}{
		"pods":                           {"pods", mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}, PolicyProved: true}},
		"policies":                       {"networkpolicies", mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}, PolicyProved: true}},
		"pods, without a controller":     {"pods", mesh.Policies{}},
		"namespaces, without controller": {"namespaces", mesh.Policies{}},
	} {
		w := newWorld()
		w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
		w.silent = x.silent
		w.run(t, func(t *testing.T, l *Live) {
			w.put(space(t, "shop", "no"), false)
			w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
			w.put(shop, false)
			l.SetState(state(x.state))
			if time.Sleep(denyPatience + 2*time.Second); w.passes("10.244.2.5", "10.244.1.5") || place(w, "shop/new") == [2]string{} {
				t.Errorf("%s: %+v, %v", name, w.last(), l.Status().Trouble)
			}
		})
	}
}

// TestFirst: on a node that has never known policies pods are closed until these are compiled, never opened by a timer: where the PodNetwork names
// namespaces these, and without a controller all. Where this release's policies cannot be in force they are open.
func TestFirst(t *testing.T) {
	controller, forbidden := mesh.Policies{PolicyController: true}, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	named := mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}, PolicyProved: true}
	for name, x := range map[string]firstStart{
		"no policy":                       {after: time.Second},
		"no answer":                       {silent: "networkpolicies", after: time.Hour, closed: []string{"shop", "free"}},
		"a cache that proves nothing yet": {unproved: true, after: unprovedPatience - time.Second, closed: []string{"shop", "free"}},
		"a cache that proves nothing":     {unproved: true, after: unprovedPatience + time.Second},
		"a chart without the right":       {missing: forbidden, after: time.Second},
		"a controller comes":              {silent: "networkpolicies", then: named, after: time.Second, closed: []string{"shop"}},
		"an old controller comes":         {silent: "networkpolicies", then: controller, after: time.Second},
		"a controller":                    {first: named, then: named, silent: "networkpolicies", after: time.Hour, closed: []string{"shop"}},
		"a controller that says nothing":  {first: controller, then: controller, after: time.Second},
		"a controller behind a cache":     {unproved: true, then: named, after: time.Minute, closed: []string{"shop"}},
	} {
		for _, restarted := range []bool{false, true} {
			first(t, name, restarted, x)
		}
	}
	w := newWorld()
	w.first, w.missing = new(mesh.Policies), forbidden
	w.given = []policies.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{"shop": {true, false}}}}}
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{}))
		if time.Sleep(time.Hour); place(w, "shop/new")[0] != policy.Closed {
			t.Errorf("a refusal ends what was saved: %+v", w.last())
		}
	})
}

// firstStart is what a cluster says to a node that has never run.
type firstStart struct {
	first, then mesh.Policies
	silent      string
	unproved    bool
	missing     error
	after       time.Duration
	closed      []string // then
}

// first starts a node that has never run, or starts it again before it knew anything.
func first(t *testing.T, name string, restarted bool, x firstStart) {
	t.Helper()
	w := newWorld()
	w.first, w.silent, w.proved, w.missing = &x.first, x.silent, !x.unproved, x.missing
	if restarted {
		w.first, w.given = nil, []policies.Given{{Rules: New(Config{Node: "a", Log: slog.New(slog.DiscardHandler)}).First(state(x.first))}}
	}
	w.run(t, func(t *testing.T, l *Live) {
		closed := func() (out []string) {
			for _, namespace := range []string{"shop", "free"} {
				if place(w, namespace+"/new") != [2]string{} {
					out = append(out, namespace)
				}
			}
			return out
		}
		want := map[bool][]string{false: {"shop", "free"}, true: x.closed}[x.first.PolicyController]
		if got := closed(); !slices.Equal(got, want) {
			t.Errorf("%s (restarted: %v): closed before a list: %v, want %v", name, restarted, got, want)
		}
		l.SetState(state(x.then))
		if time.Sleep(x.after); !slices.Equal(closed(), x.closed) {
			t.Errorf("%s (restarted: %v): closed after %v: %v, want %v; %v", name, restarted, x.after, closed(), x.closed, l.Status().Trouble)
		}
	})
}
