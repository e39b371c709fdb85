package kubeapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	policy "edgemesh/agent/policy/compile"
	"edgemesh/agent/policy/enforce"
	"edgemesh/agent/policy/read"
	"edgemesh/internal/membership/kube"
	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
	"edgemesh/test/tier"
)

const (
	groupsPath      = kubeapi.Group + "policygroups"
	defaultPods     = "/api/v1/namespaces/default/pods"
	defaultPolicies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
)

// enforcer is what a node enforces of policies, as its rules say.
type enforcer struct {
	mu    sync.Mutex
	local map[netip.Addr]string
	rules []policy.Rules // the last ones are in force
	live  *read.Live
}

// enforces has a node compile policies, with a pod at an address; it must be called before the agent starts.
func enforces(t *testing.T, a *agent, addr, pod string) *enforcer {
	e := &enforcer{local: map[netip.Addr]string{netip.MustParseAddr(addr): pod}}
	e.live = read.New(read.Config{
		Node: a.cfg.NodeName, Local: func() (map[netip.Addr]string, error) { return e.local, nil },
		InForce: e.now,
		Set: func(g enforce.Given) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.rules = append(e.rules, g.Rules)
		},
		SetOff: func(bool) {}, Follow: func(ctx context.Context, k api.Kind, on func(kube.News)) { a.source.Follow(ctx, k, on) },
		Has: func(ctx context.Context, k api.Kind) bool { return a.source.Has(ctx, k) },
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	a.also = e.live.SetState
	return e
}

// run compiles until the test ends.
func (e *enforcer) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); e.live.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
}

func (e *enforcer) now() policy.Rules {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.rules) == 0 {
		return policy.Rules{}
	}
	return e.rules[len(e.rules)-1]
}

func (e *enforcer) passes(from, to string) bool { return e.passesBy(e.now(), from, to) }

func (e *enforcer) passesBy(rules policy.Rules, from, to string) bool {
	pass, _, _ := rules.Place(e.local).Verdict(policy.Packet{Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr(to), Protocol: 6, Port: 80})
	return pass
}

// becomes waits until a packet passes, or does not, and returns after how long that is.
func (e *enforcer) becomes(t *testing.T, what, from, to string, pass bool) time.Duration {
	t.Helper()
	began := time.Now()
	fair.Eventually(t, patience, what, fair.True(func() bool { return e.passes(from, to) == pass }))
	return time.Since(began)
}

// clusterOfTwo has the Node a and the member b, and lets pods be made in namespace default.
func clusterOfTwo(t *testing.T) *kubeapi.Cluster {
	t.Helper()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateMember("b", newPeerID(t), "10.244.2.0/24"))
	_ = c.Do(http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", map[string]any{"metadata": map[string]string{"name": "default"}}, nil) // it may be there
	return c
}

// A node enforces what NetworkPolicies say of its pods, by the controller's PolicyGroups: a label that changes counts within a second,
// no node writes groups, an address of another node's block is in none, and what was compiled stays while no controller runs.
func TestPolicies(t *testing.T) {
	t.Parallel()
	c := clusterOfTwo(t)
	s := startControllers(t, c, "one")
	a := tokenAgent(t, c, "a", c.URL)
	e := enforces(t, a, "10.244.1.5", "default/db")
	a.start()
	e.run(t)
	must(t, podIn(c, "default", "db", "a", "db", "10.244.1.5"), podIn(c, "default", "web", "b", "web", "10.244.2.5"))
	must(t, c.Do(http.MethodPost, defaultPolicies, fromApp("p", "web"), nil))
	t.Logf("a new policy: %v", e.becomes(t, "strangers are shut out", "10.244.2.6", "10.244.1.5", false).Round(time.Millisecond))
	if e.becomes(t, "web passes", "10.244.2.5", "10.244.1.5", true); len(e.now().Sets) != 1 {
		t.Errorf("sets: %v", e.now().Sets)
	}
	label := func(app string) {
		must(t, c.Patch(defaultPods+"/web", map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": app}}}))
	}
	for range 3 {
		label("other")
		closed := e.becomes(t, "a pod that lost its label is shut out", "10.244.2.5", "10.244.1.5", false)
		label("web")
		open := e.becomes(t, "its label is there again", "10.244.2.5", "10.244.1.5", true)
		t.Logf("a label that changes: closed after %v, open after %v", closed.Round(time.Millisecond), open.Round(time.Millisecond))
		if tier.IsLong() && max(closed, open) > time.Second {
			t.Errorf("%v, want at most 1s", max(closed, open))
		}
	}

	who := login(t, c, "a", "a.conf")
	var groups struct {
		Items []api.PolicyGroup `json:"items"`
	}
	must(t, c.Do(http.MethodGet, groupsPath, nil, &groups))
	if len(groups.Items) != 2 { // by its name of now and that of the release before
		t.Fatalf("%d PolicyGroups", len(groups.Items))
	}
	own := groupsPath + "/" + groups.Items[0].Meta.Name
	who.wants(t,
		post("a forged PolicyGroup", groupsPath, `{"apiVersion":"network.edgemesh.io/v1alpha1","kind":"PolicyGroup","metadata":{"name":"00000000000000aa-0"},"spec":{"group":"00000000000000aa","chunk":0,"chunks":1,"members":["10.244.9.9"]}}`).refused(forbidden, ""),
		patch("a member into one", own, `{"spec":{"members":["10.244.2.6"]}}`).refused(forbidden, ""),
		remove("one", own).refused(forbidden, ""),
		patch("which namespaces have policies", kubeapi.Group+"podnetworks/cluster/status", `{"status":{"policies":{}}}`).refused(forbidden, ""))

	must(t, podIn(c, "default", "thief", "b", "web", "10.244.1.6"))
	fair.Eventually(t, patience, "an event names the forged address", fair.True(func() bool {
		var events struct {
			Items []struct {
				Reason, Message string
			} `json:"items"`
		}
		must(t, c.Do(http.MethodGet, "/api/v1/namespaces/default/events", nil, &events))
		for _, x := range events.Items {
			if x.Reason == "MeshForgedAddress" && strings.Contains(x.Message, "default/thief of node b") {
				return true
			}
		}
		return false
	}))
	if e.passes("10.244.1.6", "10.244.1.5") {
		t.Error("an address of another node's block passes")
	}

	s.kill("one")
	label("other")
	time.Sleep(time.Second) // sleep: it stays meanwhile
	if !e.passes("10.244.2.5", "10.244.1.5") || e.passes("10.244.2.6", "10.244.1.5") {
		t.Error("what was compiled did not stay without a controller")
	}
	s.start("one")
	t.Logf("a restarted controller: %v", e.becomes(t, "a restarted controller catches up", "10.244.2.5", "10.244.1.5", false).Round(time.Millisecond))
	must(t, c.Delete(defaultPolicies+"/p"))
	e.becomes(t, "a deleted policy opens", "10.244.2.6", "10.244.1.5", true)
}

// While the API comes and goes no rules are in force that let a stranger pass, for no moment; and what changed meanwhile counts then.
func TestPoliciesWhileTheAPIFlaps(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := clusterOfTwo(t)
	startControllers(t, c, "one")
	g := newGate(t, c)
	a := tokenAgent(t, c, "a", g.URL)
	e := enforces(t, a, "10.244.1.5", "default/db")
	a.start()
	e.run(t)
	must(t, podIn(c, "default", "db", "a", "db", "10.244.1.5"), podIn(c, "default", "web", "b", "web", "10.244.2.5"))
	must(t, c.Do(http.MethodPost, defaultPolicies, fromApp("p", "web"), nil))
	e.becomes(t, "strangers are shut out", "10.244.2.6", "10.244.1.5", false)
	e.becomes(t, "web passes", "10.244.2.5", "10.244.1.5", true)
	e.mu.Lock()
	before := len(e.rules)
	e.mu.Unlock()
	for i := range 20 {
		g.Shut()
		time.Sleep(time.Duration(i*13%100) * time.Millisecond) // sleep: another moment each time
		g.Open()
		time.Sleep(time.Duration(i*37%200) * time.Millisecond) // sleep: another moment each time
		must(t, c.Patch(defaultPods+"/web", map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": []string{"other", "web"}[i%2], "turn": fmt.Sprint(i)}}}))
	}
	must(t, c.Patch(defaultPods+"/web", map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": "other"}}}))
	e.becomes(t, "the last label counts", "10.244.2.5", "10.244.1.5", false)
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, rules := range e.rules[before:] {
		if e.passesBy(rules, "10.244.2.6", "10.244.1.5") {
			t.Errorf("rules %d of %d let a stranger pass", i, len(e.rules)-before)
		}
	}
}

// Without a controller a node compiles from all pods itself.
func TestPoliciesWithoutController(t *testing.T) {
	t.Parallel()
	c := clusterOfTwo(t)
	must(t, c.Do(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterroles", map[string]any{"metadata": map[string]string{"name": "alone"},
		"rules": []any{map[string]any{"apiGroups": []string{""}, "resources": []string{"namespaces"}, "verbs": []string{"list", "watch"}}}}, nil),
		c.Do(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", map[string]any{"metadata": map[string]string{"name": "alone"},
			"roleRef":  map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "alone"},
			"subjects": []any{map[string]string{"kind": "ServiceAccount", "name": "edgemesh-agent", "namespace": kubeapi.Namespace}}}, nil))
	t.Cleanup(func() {
		must(t, c.Delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/alone"), c.Delete("/apis/rbac.authorization.k8s.io/v1/clusterroles/alone"))
	})
	a := tokenAgent(t, c, "a", c.URL)
	e := enforces(t, a, "10.244.1.5", "default/db")
	a.start()
	e.run(t)
	must(t, podIn(c, "default", "db", "a", "db", "10.244.1.5"), podIn(c, "default", "web", "b", "web", "10.244.2.5"))
	must(t, c.Do(http.MethodPost, defaultPolicies, fromApp("p", "web"), nil))
	e.becomes(t, "strangers are shut out", "10.244.2.6", "10.244.1.5", false)
	e.becomes(t, "web passes", "10.244.2.5", "10.244.1.5", true)
	must(t, c.Patch(defaultPods+"/web", map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": "other"}}}))
	t.Logf("a label that changes: %v", e.becomes(t, "its label counts", "10.244.2.5", "10.244.1.5", false).Round(time.Millisecond))
}

// What 10,000 pods in 100 namespaces and 1,000 policies take: of the API's bytes at an agent with 30 pods in 3 of these, and of the
// controller's memory.
func TestPolicyScale(t *testing.T) {
	tier.Long(t)
	const spaces, perSpace, policiesOf = 100, 100, 10
	const most = 300 << 10     // bytes at a start: what 30 pods of 3 namespaces need, not 10,000
	c, err := clusters.start() // none that is lent: its namespaces stay
	must(t, err)
	t.Cleanup(c.Stop)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.200.0/24"))
	for i := range spaces {
		must(t, c.CreateMember(fmt.Sprint("b-", i), newPeerID(t), fmt.Sprintf("10.244.%d.0/24", i)))
	}
	g := newGate(t, c)
	s := startControllers(t, c, "one")
	a := tokenAgent(t, c, "a", g.URL)
	e := enforces(t, a, "10.244.200.5", "ns-0/own-0")
	for i := range 30 {
		e.local[netip.AddrFrom4([4]byte{10, 244, 200, byte(5 + i)})] = fmt.Sprintf("ns-%d/own-%d", i%3, i)
	}
	a.start()
	e.run(t)
	idle := g.Received()
	var all sync.WaitGroup
	for i := range spaces {
		space := fmt.Sprint("ns-", i)
		all.Go(func() {
			err := c.Do(http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]string{"name": space}}, nil)
			if err == nil {
				err = c.Do(http.MethodPost, "/api/v1/namespaces/"+space+"/serviceaccounts", map[string]any{"metadata": map[string]string{"name": "default"}}, nil)
			}
			for n := range perSpace {
				if err == nil {
					err = podIn(c, space, fmt.Sprint("pod-", n), fmt.Sprint("b-", i), fmt.Sprint("app-", n%policiesOf), fmt.Sprintf("10.244.%d.%d", i, 2+n))
				}
			}
			for n := range policiesOf {
				if err == nil {
					err = c.Do(http.MethodPost, "/apis/networking.k8s.io/v1/namespaces/"+space+"/networkpolicies", fromApp(fmt.Sprint("p-", n), fmt.Sprint("app-", n)), nil)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
		if i%8 == 7 {
			all.Wait()
		}
	}
	all.Wait()
	for i := range 30 {
		must(t, podIn(c, fmt.Sprint("ns-", i%3), fmt.Sprint("own-", i), "a", "own", fmt.Sprintf("10.244.200.%d", 5+i)))
	}
	fair.Eventually(t, 3*patience, "30 groups of 10 are in force", fair.True(func() bool {
		rules, n := e.now(), 0
		for _, members := range rules.Sets {
			n += len(members)
		}
		return len(rules.Pods) == 30 && len(rules.Sets) == 30 && n == 300
	}))
	made := g.Received() - idle
	before := g.Received()
	again := enforces(t, a, "10.244.200.5", "ns-0/own-0")
	again.local = e.local
	a.mu.Lock()
	again.live.SetState(a.state)
	a.mu.Unlock()
	again.run(t)
	fair.Eventually(t, patience, "a restarted compiler is where the former is", fair.True(func() bool { return len(again.now().Sets) == 30 }))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.all["one"].Process.Pid))
	must(t, err)
	_, rss, _ := strings.Cut(string(status), "VmRSS:")
	rss, _, _ = strings.Cut(rss, "\n")
	if start := g.Received() - before; start > most {
		t.Errorf("an agent received %d kB at a start, want at most %d", start>>10, most>>10)
	}
	t.Logf("%d pods, %d policies: an agent with 30 pods received %d kB while they were made, %d kB at a start; the controller has%s", spaces*perSpace, spaces*policiesOf,
		made>>10, (g.Received()-before)>>10, rss)
}

// podIn makes a pod on a node, with that address in its status.
func podIn(c *kubeapi.Cluster, space, name, node, app, ip string) error {
	path := "/api/v1/namespaces/" + space + "/pods"
	if err := c.Do(http.MethodPost, path, map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "labels": map[string]string{"app": app}},
		"spec": map[string]any{"nodeName": node, "automountServiceAccountToken": false, "containers": []map[string]any{{"name": "c", "image": "x"}}}}, nil); err != nil {
		return err
	}
	return c.Patch(path+"/"+name+"/status", map[string]any{"status": map[string]any{"phase": "Running", "podIP": ip, "podIPs": []map[string]string{{"ip": ip}}}})
}

// fromApp lets pods with that label reach all pods of the namespace.
func fromApp(name, app string) map[string]any {
	return map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"podSelector": map[string]any{}, "policyTypes": []string{"Ingress"}, "ingress": []any{map[string]any{"from": []any{
			map[string]any{"podSelector": map[string]any{"matchLabels": map[string]string{"app": app}}}}}}}}
}

// An agent sees, with the rights of the chart, that there are ClusterNetworkPolicies, which nothing enforces.
func TestClusterPoliciesAreSeen(t *testing.T) {
	t.Parallel()
	c := clusterOfTwo(t)
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	seen := func() bool {
		return a.source.Has(t.Context(), api.Kind{Name: "clusternetworkpolicies", Group: "policy.networking.k8s.io", Version: "v1alpha2"})
	}
	if seen() {
		t.Error("seen without the kind")
	}
	apply := func(text string) func() bool {
		return func() bool { _, err := c.KubectlStdin(text, "apply", "-f", "-"); return err == nil }
	}
	fair.Eventually(t, patience, "the kind is there", fair.True(apply(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"clusternetworkpolicies.policy.networking.k8s.io","annotations":{"api-approved.kubernetes.io":"unapproved, a test"}},
		"spec":{"group":"policy.networking.k8s.io","scope":"Cluster","names":{"plural":"clusternetworkpolicies","kind":"ClusterNetworkPolicy"},
		"versions":[{"name":"v1alpha2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)))
	fair.Eventually(t, patience, "an object is there", fair.True(apply(`{"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{"name":"lan"},"spec":{}}`)))
	fair.Eventually(t, patience, "it is seen", fair.True(seen))
}
