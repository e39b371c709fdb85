package read

import (
	"context"
	"encoding/json"
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

	"edgemesh/agent/findings"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/podgroups"
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
	cluster atomic.Bool // there are ClusterNetworkPolicies
	silent  string      // the kind of which new readers hear nothing
	proved  bool
	reads   map[string]bool // what was followed, ever
	on      map[string]func(kube.News)
	kinds   map[string]api.Kind
	local   map[netip.Addr]string
	given   []enforce.Given
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
		return k.Name == "networkpolicies" && (k.Namespace == "" || k.Namespace == o.Meta.Namespace)
	case *podgroups.Namespace:
		return k.Name == "namespaces"
	case *api.PolicyGroup:
		return k.Name == "policygroups" && strings.Contains(k.Selector, o.Spec.Group)
	}
	return false
}

func (w *world) follow(ctx context.Context, k api.Kind, on func(kube.News)) {
	w.mu.Lock()
	key := keyOf(k)
	w.reads[key], w.on[key], w.kinds[key] = true, on, k
	n := kube.News{All: w.missing == nil, Proved: w.proved, Missing: w.missing}
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
	time.Sleep(time.Second) // sleep: in a bubble
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
		l := New(Config{Node: "a", Follow: w.follow, Has: func(context.Context, api.Kind) bool { return w.cluster.Load() }, InForce: w.inForce,
			Local: func() (map[netip.Addr]string, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return maps.Clone(w.local), nil
			},
			Set: func(g enforce.Given) { w.mu.Lock(); defer w.mu.Unlock(); w.given = append(w.given, g) }, SetOff: w.off.Store, Log: slog.New(slog.DiscardHandler)})
		if w.first != nil {
			if rules := l.First(state(*w.first)); len(w.given) == 0 { // as Owner.Expect
				w.given = []enforce.Given{{Rules: rules}}
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
		if got := w.everRead(); !slices.Equal(got, []string{keyOf(podgroups.Policies(""))}) || len(w.last().Namespaces) > 0 {
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

// A group counts by its name of now, else by that of the release before, whichever end was upgraded first; never what states another selector:
// a tenant who finds two selectors with one name opens nothing.
func TestNamesOfAGroup(t *testing.T) {
	w := newWorld()
	parsed, _ := policy.Parse(onlyWeb(t).Written)
	g := policy.Groups([]policy.Policy{parsed})[0]
	group := func(id, selector string, members ...string) *api.PolicyGroup {
		version++
		return &api.PolicyGroup{Meta: api.Meta{Name: id + "-0", UID: id, ResourceVersion: fmt.Sprint(version)}, Spec: api.PolicyGroupSpec{Group: id, Chunks: 1, Members: members, Selector: selector}}
	}
	w.run(t, func(t *testing.T, l *Live) {
		w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
		w.put(pod(t, "db", "a", "", "db"), false)
		w.put(onlyWeb(t), false)
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}}))
		l.PodsChanged()
		time.Sleep(time.Second)
		passes := func(from string) bool { return w.passes(from, "10.244.1.5") }
		w.put(group(policy.Former(g.ID()), "namespace \"tenant\"", "10.244.9.9"), false)
		if passes("10.244.9.9") {
			t.Error("open to another selector's group of the former name")
		}
		w.put(group(policy.Former(g.ID()), "", "10.244.2.5"), false)
		if !passes("10.244.2.5") {
			t.Errorf("closed beside a controller before: %+v", w.last())
		}
		w.put(group(g.ID(), "namespace \"tenant\"", "10.244.9.9"), false)
		if passes("10.244.9.9") || !passes("10.244.2.5") {
			t.Error("another selector's group of the name of now counts")
		}
		w.put(group(g.ID(), g.Selector(), "10.244.2.6"), false)
		if !passes("10.244.2.6") || passes("10.244.2.5") {
			t.Error("the former name counts beside that of now")
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
		want := []string{keyOf(podgroups.Policies("shop")), keyOf(podgroups.Pods("a")), keyOf(api.PolicyGroups(policy.Former(id), id))}
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
	w.given = []enforce.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{"shop": {true, true}}}}}
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
	w.given = []enforce.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{"shop": {true, true}, "other": {true, false}}}}}
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
	if m, _ := g.members("aa", ""); len(g) != 1 || len(m) != 1 || m[0].String() != "10.244.1.5" {
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
		if m, whole := g.members("aa", ""); len(m) != 1 || !whole {
			t.Fatalf("%v, whole %t", m, whole)
		}
		g.take(kube.News{All: true, Proved: true}, needed, "bb") // of other groups
		g.take(kube.News{All: true}, needed, "aa")
		if _, whole := g.members("aa", ""); !whole {
			t.Error("a list that does not count made it a part")
		}
		version += 10
		if e := n.Event.Object; e != nil {
			e.Metadata().ResourceVersion = fmt.Sprint(version)
		}
		g.take(n, needed, "aa")
		if m, whole := g.members("aa", ""); len(m) != 1 || whole {
			t.Errorf("%s: %v, whole %t", what, m, whole)
		}
		again := chunk("aa", 3, 1, "10.244.1.6")
		again.Meta.ResourceVersion = fmt.Sprint(version + 1)
		g.take(kube.News{Event: client.Event{What: client.Added, Object: again}}, needed, "aa")
		if m, whole := g.members("aa", ""); what != "not readable" && (len(m) != 1 || !whole || m[0].String() != "10.244.1.6") {
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
		p := object(t, new(podgroups.Pod), `{"metadata":{"namespace":"kube-system","name":"x","uid":"x","ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"d","uid":"d","controller":true}]},"spec":%s,"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, text)
		own := map[string]*podgroups.Pod{"kube-system/x": p}
		if got, passer := engine(own, nil); got != want || passer != "" {
			t.Errorf("%s: %q, want %q; %q passes for one", text, got, want, passer)
		}
		wantPasser := ""
		if want != "" {
			wantPasser = "kube-system/x"
		}
		if got, passer := engine(own, []string{"net"}); got != "" || passer != wantPasser {
			t.Errorf("%s: in a namespace that nobody named %q enforces, %q passes for one", text, got, passer)
		}
		if p.Daemon = false; want != "" {
			if got, passer := engine(own, nil); got != "" || passer != wantPasser {
				t.Errorf("%s: of no DaemonSet %q enforces, %q passes for one", text, got, passer)
			}
		}
		p.Daemon, p.Ready = true, false
		if got, _ := engine(own, nil); got != "" {
			t.Errorf("%s: %q enforces, and is not ready", text, got)
		}
	}
}

// chunk is a PolicyGroup of one of so many chunks.
func chunk(id string, n, of int, members ...string) *api.PolicyGroup {
	version++
	return &api.PolicyGroup{Meta: api.Meta{Name: fmt.Sprint(id, "-", n), UID: fmt.Sprint("g", n), ResourceVersion: fmt.Sprint(version)},
		Spec: api.PolicyGroupSpec{Group: id, Chunk: n, Chunks: of, Members: members}}
}

// fromTeam is a policy that lets all pods of namespace shop be reached from the namespaces of a team, and the group of these.
func fromTeam(t *testing.T, name, team string) (p *podgroups.Policy, id string) {
	p = object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":%q,"uid":%[1]q},"spec":{"podSelector":{},
		"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":%q}}}]}]}}`, name, team)
	parsed, err := p.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return p, policy.Groups([]policy.Policy{parsed})[0].ID()
}

func space(t *testing.T, name string) *podgroups.Namespace {
	return object(t, new(podgroups.Namespace), `{"metadata":{"name":%q,"uid":%[1]q}}`, name)
}

var shopAlone = mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}, PolicyProved: true}

// fromOps begins tests: node a's pod shop/db is reached from the members of a group alone, which it returns.
func (w *world) fromOps(t *testing.T, l *Live, members ...string) (id string) {
	p, id := fromTeam(t, "p", "ops")
	w.mu.Lock()
	w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
	w.mu.Unlock()
	w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
	w.put(p, false)
	w.put(chunk(id, 0, 1, members...), false)
	l.SetState(state(shopAlone))
	time.Sleep(time.Second) // sleep: in a bubble
	return id
}

// TestClusterPolicies: that there are ClusterNetworkPolicies is a warning once one is made, until the last one is gone; not where another program
// enforces, or nothing shall.
func TestClusterPolicies(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		said := func() bool {
			return slices.ContainsFunc(l.Findings(), func(f findings.Finding) bool {
				return f.Severity == findings.Warning && f.Text == "ClusterNetworkPolicy objects exist; this network does not enforce them" && strings.Contains(f.Remedy, "podDenyCIDRs")
			})
		}
		l.SetState(state(mesh.Policies{}))
		for _, want := range []bool{false, true, false, true} {
			w.cluster.Store(want)
			if time.Sleep(lookEvery + time.Second); said() != want {
				t.Errorf("there are some: %t, and said: %t", want, !want)
			}
		}
		l.SetState(state(mesh.Policies{NetworkPolicy: mesh.PolicyOff}))
		if time.Sleep(time.Second); said() {
			t.Error("said where policies are off")
		}
	})
}

// TestGroupsAreReadOn: while other groups begin to be read, those that are known stay known.
func TestGroupsAreReadOn(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		id := w.fromOps(t, l, "10.244.2.5")
		w.mu.Lock()
		w.silent = api.PolicyGroups().Name // the next reader hears nothing
		w.mu.Unlock()
		more, _ := fromTeam(t, "more", "else")
		w.put(more, false)
		w.put(chunk(id, 0, 1, "10.244.2.6"), false)
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("%+v", w.last())
		}
	})
}

// TestUnreadNamespace: a namespace whose policies are not read keeps no other pod's rules waiting; its pods are closed until they are.
func TestUnreadNamespace(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		id := w.fromOps(t, l, "10.244.2.5")
		w.mu.Lock()
		w.silent = "networkpolicies"
		w.local[netip.MustParseAddr("10.244.1.7")] = "third/y"
		w.mu.Unlock()
		names := maps.Clone(shopAlone.PolicyNamespaces)
		names["third"] = "Ingress"
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: names, PolicyProved: true}))
		l.PodsChanged()
		w.put(chunk(id, 0, 1, "10.244.2.6"), false)
		if time.Sleep(2 * groupPatience); w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.7") {
			t.Errorf("while a namespace is not read: %+v", w.last())
		}
		if err := l.Status().Trouble; err == nil || !strings.Contains(err.Error(), "namespace third") {
			t.Errorf("%v", err)
		}
	})
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
	time.Sleep(time.Second) // sleep: in a bubble
}

// TestRefusedLater: groups that were read before and are refused now are not current, and that is said; their members stay.
func TestRefusedLater(t *testing.T) {
	w := newWorld()
	w.run(t, func(t *testing.T, l *Live) {
		id := w.fromOps(t, l, "10.244.2.5")
		w.tell(api.PolicyGroups().Name, kube.News{Missing: apierrors.NewForbidden(schema.GroupResource{}, "", nil)})
		if time.Sleep(2 * groupPatience); !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.5") || l.Status().Trouble == nil {
			t.Errorf("%+v, %v", w.last(), l.Status().Trouble)
		}
		w.tell(api.PolicyGroups().Name, kube.News{All: true, Proved: true, List: []api.Object{chunk(id, 0, 1, "10.244.2.6")}})
		if w.passes("10.244.2.5", "10.244.1.5") || !w.passes("10.244.2.6", "10.244.1.5") || l.Status().Trouble != nil {
			t.Errorf("read again: %+v, %v", w.last(), l.Status().Trouble)
		}
	})
}

// TestPodsComeBackWithoutTheAPI: after a power cut a cache knows the PodNetwork before a pod is back, and nothing of pods: those that come back have
// what they had. What no namespace has any longer does not stay.
func TestPodsComeBackWithoutTheAPI(t *testing.T) {
	w := newWorld()
	parsed, _ := onlyWeb(t).Parse()
	was := policy.Compile([]policy.Policy{parsed}, []policy.Pod{{Namespace: "shop", Name: "db"}}, func(policy.Group) []policy.Member { return []policy.Member{{Addr: netip.MustParseAddr("10.244.2.5")}} })
	w.given, w.silent, w.proved = []enforce.Given{{Rules: was}}, "pods", false
	w.run(t, func(t *testing.T, l *Live) {
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{"shop": "Ingress"}}))
		time.Sleep(time.Minute)
		synctest.Wait()
		w.local[netip.MustParseAddr("10.244.1.5")] = "shop/db"
		l.PodsChanged()
		time.Sleep(time.Hour)
		if !w.passes("10.244.2.5", "10.244.1.5") || w.passes("10.244.2.6", "10.244.1.5") {
			t.Errorf("%+v", w.last())
		}
		delete(w.local, netip.MustParseAddr("10.244.1.5"))
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}))
		w.put(pod(t, "db", "a", "", "db"), true)
		if time.Sleep(time.Second); len(w.last().Pods) > 0 {
			t.Errorf("no namespace has policies: %+v", w.last())
		}
	})
}

// TestNothingPassesInTheEnd: whatever comes in which order, of policies, parts of groups and readers that hear nothing, what the policies do not
// let pass does not pass once patience is over; and all passes that they let pass, where all is known.
func TestNothingPassesInTheEnd(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newWorld()
		var did []string
		w.run(t, func(t *testing.T, l *Live) {
			to := netip.MustParseAddr("10.244.1.5")
			w.local[to] = "shop/db"
			w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
			teams := map[string]string{} // by group
			for team := range 3 {
				_, id := fromTeam(t, "x", fmt.Sprint("t", team))
				teams[id] = fmt.Sprint("10.244.2.", team)
			}
			whole, heard, all := map[string]bool{}, true, map[string]*podgroups.Policy{}
			l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{}, PolicyProved: true}))
			for range 5 + r.IntN(25) {
				switch what := r.IntN(7); what {
				case 0, 1:
					name, team := fmt.Sprint("p", r.IntN(2)), fmt.Sprint("t", r.IntN(3))
					l.SetState(state(shopAlone))
					all[name], _ = fromTeam(t, name, team)
					w.put(all[name], false)
					did = append(did, "policy "+name+" "+team)
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
					w.mu.Lock()
					w.silent = []string{"", "", "policygroups"}[r.IntN(3)]
					did, heard = append(did, "silent "+w.silent), heard && w.silent == ""
					w.mu.Unlock()
				case 6:
					time.Sleep(time.Duration(r.IntN(20)) * time.Second)
					did = append(did, "time")
				}
			}
			time.Sleep(closePatience + time.Second)
			var parsed []policy.Policy
			for _, p := range all {
				one, err := p.Parse()
				if err != nil {
					t.Fatal(err)
				}
				parsed = append(parsed, one)
			}
			want := policy.Compile(parsed, []policy.Pod{{Namespace: "shop", Name: "db"}}, func(g policy.Group) []policy.Member {
				return []policy.Member{{Addr: netip.MustParseAddr(teams[g.ID()])}}
			}).Place(w.local)
			for from := range 4 {
				p := policy.Packet{Src: netip.MustParseAddr(fmt.Sprint("10.244.2.", from)), Dst: to, Protocol: 6, Port: 80}
				pass, by, _ := want.Verdict(p)
				known := heard && !slices.ContainsFunc(slices.Collect(maps.Keys(teams)), func(id string) bool { return !whole[id] })
				if got := w.passes(p.Src.String(), to.String()); got && !pass || got != pass && known {
					t.Errorf("seed %d: %v passes not as it should, by %v, after %s; in force %+v", seed, p, by, strings.Join(did, "; "), w.last())
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

// TestStartKeepsExcept: what is in force at a start stays whole, namespaces that are left out included, until pods are read.
func TestStartKeepsExcept(t *testing.T) {
	w := newWorld()
	every := map[string][2]bool{policy.EveryNamespace: {true, false}}
	w.given, w.silent, w.proved = []enforce.Given{{Rules: policy.Rules{Namespaces: every, Except: []string{"free"}, Pods: map[string][2]string{"free/x": {}}}}}, "pods", false
	w.run(t, func(t *testing.T, l *Live) {
		if place(w, "free/static") != [2]string{} || place(w, "shop/new") == [2]string{} {
			t.Fatal("before")
		}
		l.SetState(state(mesh.Policies{PolicyController: true, PolicyNamespaces: map[string]string{policy.EveryNamespace: "Ingress"}}))
		if time.Sleep(time.Minute); place(w, "free/static") != [2]string{} {
			t.Errorf("closed for as long as there is no API: %+v", w.last())
		}
	})
}

// TestNameAfterRestart: a pod that was deleted while no agent ran leaves its rules to no other one of its name.
func TestNameAfterRestart(t *testing.T) {
	w := newWorld()
	a := netip.MustParseAddr("10.244.1.5")
	np := object(t, new(podgroups.Policy), `{"metadata":{"namespace":"shop","name":"p","uid":"p"},"spec":{"podSelector":{"matchLabels":{"app":"db"}},"policyTypes":["Ingress"]}}`)
	parsed, _ := np.Parse()
	was := policy.Compile([]policy.Policy{parsed}, []policy.Pod{{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "other"}}}, nil)
	w.given = []enforce.Given{{Rules: was}}
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
			w.put(space(t, "shop"), false)
			w.put(pod(t, "db", "a", "10.244.1.5", "db"), false)
			w.put(shop, false)
			l.SetState(state(x.state))
			if time.Sleep(closePatience + 2*time.Second); w.passes("10.244.2.5", "10.244.1.5") || place(w, "shop/new") == [2]string{} {
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
	w.given = []enforce.Given{{Rules: policy.Rules{Namespaces: map[string][2]bool{"shop": {true, false}}}}}
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
		w.first, w.given = nil, []enforce.Given{{Rules: New(Config{Node: "a", Log: slog.New(slog.DiscardHandler)}).First(state(x.first))}}
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
