package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"edgemesh/test/kube/cluster"
)

// What the suites with an edge cache have in common.

// cachePromise is how old membership through a cache that is online may be, and how soon after the cache's reconnection an
// agent is up to date.
const cachePromise = 10 * time.Second

// platform is the flavour as people write it.
func platform() string {
	return map[string]string{"kubeedge": "KubeEdge", "openyurt": "OpenYurt"}[flavour()]
}

// figure prints what the installation took.
func (i *installation) figure(t *testing.T, all []pod) {
	t.Helper()
	if i.apply.IsZero() {
		return // by an earlier run
	}
	figure(t, "%s: apply → nodes Ready %s, pods ready %s, all %d ordered pairs reachable with the source kept %s: %s after the pods' start (promised: 30 s)",
		platform(), seconds(i.nodes), seconds(i.workload), len(all)*(len(all)-1), seconds(i.reachable), seconds(i.reachable-i.workload))
}

// online wants the agents of all edges to know a member soon after its objects are there, and to forget it soon after its
// Node is deleted.
func online(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	const name = "short"
	all := func(want bool) time.Duration {
		return eventually(t, cachePromise, func(ctx context.Context) error {
			var errs []error
			for _, n := range edges() {
				errs = append(errs, knows(ctx, c, n, name, want))
			}
			return errors.Join(errs...)
		})
	}
	paperNode(t, c, name)
	known := all(true)
	kubectl(t, "delete", "node", name)
	forgotten := all(false)
	kubectl(t, "delete", "meshnode", name, "--ignore-not-found") // the next one has its key
	figure(t, "%s: online, the agents of all edges know a new member after %s, and forget it %s after its Node is deleted (promised: 10 s)",
		platform(), seconds(known), seconds(forgotten))
}

// joins has a new edge join until the test ends, and returns its pod.
func joins(t *testing.T, c *cluster.Cluster, node string) (newcomer pod) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = c.Cut(ctx, node)
		ok(t, os.RemoveAll(filepath.Join(c.Dir, "nodes", node, "disk"))) // it is new to the next run
		_, err := c.Kubectl(ctx, "delete", "node", node, "--ignore-not-found")
		_, podErr := c.Kubectl(ctx, "delete", "pods", "-A", "--field-selector", "spec.nodeName="+node, "--force")
		if err := errors.Join(err, podErr); err != nil {
			t.Error(err)
		}
	})
	start := time.Now()
	ok(t, c.Start(t.Context(), node))
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		return errors.Join(nodeReady(ctx, c, node), knows(ctx, c, "cloud", node, true))
	})
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		web, err := pods(ctx, c, "default", "app=web")
		for _, p := range web {
			if p.node == node {
				newcomer = p
			}
		}
		if newcomer.name == "" {
			return errors.Join(err, fmt.Errorf("no pod on %s", node))
		}
		return nil
	})
	t.Logf("%s is Ready, a member, and has a pod %s after power-on", node, seconds(time.Since(start)))
	return newcomer
}

// containers counts how often the agent of each of its pods was started again.
func containers(t *testing.T, c *cluster.Cluster) map[string]int32 {
	t.Helper()
	var list corev1.PodList
	ok(t, c.API().Get(t.Context(), agentPods, &list))
	starts := map[string]int32{}
	for _, p := range list.Items {
		for _, s := range p.Status.ContainerStatuses {
			starts[p.Name] += s.RestartCount
		}
	}
	return starts
}

// startedOnce wants the same pods of the agent, each started again at most once since before: by the power cut.
func startedOnce(t *testing.T, before, after map[string]int32) {
	t.Helper()
	for name, n := range after {
		if had, was := before[name]; !was {
			t.Errorf("%s is a new pod of the agent", name)
		} else if n > had+1 {
			t.Errorf("%s was started %d times, was %d before the power cut", name, n, had)
		}
	}
}

// moment is when something was so.
type moment struct {
	at  time.Time
	err error
}

// when says when something is so; the error says that it was not for minutes.
func when(ctx context.Context, so func() bool) <-chan moment {
	out := make(chan moment, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		for !so() && ctx.Err() == nil {
			time.Sleep(200 * time.Millisecond) // sleep: between looks, until the limit
		}
		out <- moment{time.Now(), ctx.Err()}
	}()
	return out
}

// paperNode makes a member that is only objects, until the test ends.
func paperNode(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	kubectlIn(t, fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDR: 10.244.200.0/24, podCIDRs: [10.244.200.0/24]}\n", name), "create", "-f", "-")
	uid := kubectl(t, "get", "node", name, "-o", "jsonpath={.metadata.uid}")
	kubectlIn(t, fmt.Sprintf("apiVersion: network.edgemesh.io/v1alpha1\nkind: MeshNode\nmetadata: {name: %s, ownerReferences: [{apiVersion: v1, kind: Node, name: %[1]s, uid: %s}]}\n"+
		"spec: {peerID: 12D3KooWGRUaYYqUqDcDuWPSRJUJ2ZxpjBnWwvDBXyjGX5CWyNL8}\n", name, uid), "create", "-f", "-")
	t.Cleanup(func() {
		_, _ = c.Kubectl(context.WithoutCancel(t.Context()), "delete", "node,meshnode", name, "--ignore-not-found")
	})
}

// nodeReady wants one node Ready.
func nodeReady(ctx context.Context, c *cluster.Cluster, node string) error {
	var n corev1.Node
	if err := c.API().Get(ctx, "/api/v1/nodes/"+node, &n); err != nil {
		return err
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s is not Ready", node)
}

// restarts has an edge's cache start again and again while its agent runs: no peer is lost, the agent is not started again,
// and what changes afterwards is known in time.
func restarts(t *testing.T, c *cluster.Cluster, service string) {
	t.Helper()
	const node, times, pause = "edge-b1", 5, 8 * time.Second
	all, agents := workload(t), containers(t, c)
	want, err := peersOf(t.Context(), c, node)
	ok(t, err)
	end := watchPeers(t, c, node, func(got []string) error {
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s has the peers %v, had %v", node, got, want)
		}
		return nil
	})
	start := time.Now()
	for range times {
		// While it ends in its own time, there is none to end.
		eventually(t, time.Minute, func(ctx context.Context) error { return c.Service(ctx, "restart", node, service) })
		time.Sleep(pause) // sleep: long enough for it to answer again, or just not
	}
	took := time.Since(start)
	n := end()
	eventually(t, time.Minute, func(ctx context.Context) error { return nodeReady(ctx, c, node) })
	ok(t, allPairs(t.Context(), c, all))
	if after := containers(t, c); !maps.Equal(after, agents) {
		t.Errorf("agents were started %v times, %v before", after, agents)
	}
	online(t, c)
	figure(t, "%s: %s of %s started %d times within %s: all %d peers there in each of %d looks", platform(), service, node, times,
		seconds(took), len(want), n)
}

// watchPeers looks at the peers of a node's agent until the returned function is called, which says how many looks it were and ends the
// test if the agent could not be asked, or one was wrong.
func watchPeers(t *testing.T, c *cluster.Cluster, node string, right func([]string) error) (end func() int) {
	t.Helper()
	ended, stop := make(chan error, 1), make(chan struct{})
	n := 0
	go func() {
		for {
			got, err := peersOf(t.Context(), c, node)
			n++
			if err == nil {
				err = right(got)
			}
			if err != nil {
				ended <- err
				return
			}
			select {
			case <-stop:
				ended <- nil
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() int {
		t.Helper()
		close(stop)
		ok(t, <-ended)
		return n
	}
}

// soak has an edge's cache end, lose its uplink, aloud and silently, and both together, EDGEMESH_SOAK times (once), while its agent runs and a
// member comes or goes: the edge never loses another member, its agent is not started again, and soon it knows who came and who went.
func soak(t *testing.T, c *cluster.Cluster, service string) {
	t.Helper()
	const node, site, name = "edge-b1", "b", "passing"
	rounds := 1
	if text := os.Getenv("EDGEMESH_SOAK"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		ok(t, err)
	}
	all, agents := workload(t), containers(t, c)
	stay, err := peersOf(t.Context(), c, node)
	ok(t, err)
	end := watchPeers(t, c, node, func(got []string) error {
		for _, n := range stay {
			if !slices.Contains(got, n) {
				return fmt.Errorf("%s has lost %s: %v", node, n, got)
			}
		}
		return nil
	})
	wan := func(up bool) { ok(t, c.WAN(context.WithoutCancel(t.Context()), site, up)) }
	silent := func(on bool) { ok(t, c.Silence(context.WithoutCancel(t.Context()), site, on)) }
	cut := map[string]func(bool){"uplink down": func(on bool) { wan(!on) }, "silent cut": silent, "": func(bool) {}}
	is := false // whether the passing member is one
	var late []string
	for range rounds {
		for _, restart := range []bool{true, false} {
			for _, how := range []string{"uplink down", "silent cut", ""} {
				if !restart && how == "" {
					continue
				}
				cut[how](true)
				undo := sync.OnceFunc(func() { cut[how](false) })
				t.Cleanup(undo)
				if restart {
					eventually(t, time.Minute, func(ctx context.Context) error { return c.Service(ctx, "restart", node, service) })
				}
				if is = !is; is {
					paperNode(t, c, name)
				} else {
					kubectl(t, "delete", "node,meshnode", name, "--ignore-not-found")
				}
				if how != "" {
					time.Sleep(25 * time.Second) // sleep: a request through MetaServer takes 10 s of these, and YurtHub notices after 20
					if knows(t.Context(), c, node, name, !is) != nil {
						t.Errorf("%s, restart %v: the edge knows of %s while it is cut off: this shows nothing", how, restart, name)
					}
				}
				undo()
				took := eventually(t, 3*time.Minute, func(ctx context.Context) error { return knows(ctx, c, node, name, is) })
				what := map[bool]string{true: "restart", false: ""}[restart]
				late = append(late, strings.Trim(what+", "+how, ", ")+" "+seconds(took))
				t.Logf("%s: %s known: %v", late[len(late)-1], name, is)
			}
		}
	}
	n := end()
	eventually(t, 2*time.Minute, func(ctx context.Context) error { return errors.Join(nodeReady(ctx, c, node), allPairs(ctx, c, all)) })
	if after := containers(t, c); !maps.Equal(after, agents) {
		t.Errorf("agents were started %v times, %v before", after, agents)
	}
	figure(t, "%s: %s fails while a member comes or goes: known after %s; all %d others there in each of %d looks", platform(), service,
		strings.Join(late, ", "), len(stay), n)
}

// peersOf are the names of the peers of a node's agent, sorted.
func peersOf(ctx context.Context, c *cluster.Cluster, node string) (names []string, err error) {
	out, err := c.On(ctx, node, "curl", "-sSfm2", "--unix-socket", "/run/edgemesh/agent.sock", "http://agent/v1/status")
	if err != nil {
		return nil, err
	}
	var s struct{ Peers []struct{ Node string } }
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return nil, err
	}
	for _, p := range s.Peers {
		names = append(names, p.Node)
	}
	slices.Sort(names)
	return names, nil
}

// knows wants a node's agent to have a peer of that name, or not to.
func knows(ctx context.Context, c *cluster.Cluster, node, peer string, want bool) error {
	names, err := peersOf(ctx, c, node)
	if err == nil && slices.Contains(names, peer) != want {
		err = fmt.Errorf("%s knows %s: %v, want %v", node, peer, !want, want)
	}
	return err
}

// shopOnly lets none but each other reach the shop's pods.
const shopOnly = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shop-only, namespace: default}
spec:
  podSelector: {matchLabels: {app: shop}}
  ingress: [{from: [{podSelector: {matchLabels: {app: shop}}}]}]
`

// powerCuts is how often policyOverPowerCut cuts the power: EDGEMESH_CUTS, or once.
func powerCuts(t *testing.T) int {
	t.Helper()
	text := os.Getenv("EDGEMESH_CUTS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("EDGEMESH_CUTS=%s: want a number of power cuts", text)
	}
	return n
}

// policyOverPowerCut has a site with a NetworkPolicy lose its uplink, and its power, again and again: what the policy closes is never
// reached, from the same node and from the other one, and what it allows is reached again. Back online the policy's removal opens it.
func policyOverPowerCut(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	const short = "500ms" // what is dropped is not waited for
	shop, web := waitPods(t, "app=shop", 2, time.Minute), waitPods(t, "app=web", 4, 2*time.Minute)
	guests := []pod{on(t, web, shop[0].node), on(t, web, shop[1].node)}
	pairs := func(ctx context.Context, of []pod) error {
		return errors.Join(reach(ctx, c, of[0], of[1]), reach(ctx, c, of[1], of[0]))
	}
	drop := func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "delete", "networkpolicy", "shop-only", "--ignore-not-found")
		return err
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() { // as it is before the uplink comes back
			autopsy(t, c, shop[0].node, shop[1].node)
		}
		if err := errors.Join(c.WAN(ctx, "b", true), drop(ctx)); err != nil {
			t.Error(err)
		}
	})
	// ask has each guest ask both of the shop: how many requests left a guest, and which were answered.
	ask := func(ctx context.Context) (sent int, answered []string) {
		var mu sync.Mutex
		var tasks []func() error
		for _, from := range guests {
			for _, to := range shop {
				tasks = append(tasks, func() error {
					_, err := c.Exec(ctx, from.node, from.name, "get", "--timeout", short, podURL(to.ip))
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						answered = append(answered, from.name+" → "+to.name)
					}
					if err == nil || strings.Contains(err.Error(), `Get "`) { // else the guest does not run
						sent++
					}
					return nil
				})
			}
		}
		_ = parallel(4, tasks...)
		return sent, answered
	}
	ok(t, allPairs(t.Context(), c, append(guests, shop...))) // without a policy
	kubectlIn(t, shopOnly, "apply", "-f", "-")
	took := eventually(t, cachePromise, func(ctx context.Context) error {
		if sent, answered := ask(ctx); len(answered) != 0 || sent != 4 {
			return fmt.Errorf("%d requests left, answered against the policy: %v", sent, answered)
		}
		return pairs(ctx, shop)
	})
	figure(t, "%s: a NetworkPolicy is in force on the edges of a site after %s", platform(), seconds(took))

	ok(t, c.WAN(t.Context(), "b", false))
	var back []time.Duration
	sent, answered := 0, 0
	for n := range powerCuts(t) {
		for _, p := range shop {
			ok(t, c.Cut(t.Context(), p.node))
		}
		start := time.Now()
		ok(t, parallel(2, func() error { return c.Start(t.Context(), shop[0].node) }, func() error { return c.Start(t.Context(), shop[1].node) }))
		end := repeatedly(t, ask)
		eventually(t, 90*time.Second, func(ctx context.Context) error { return errors.Join(pairs(ctx, shop), pairs(ctx, guests)) })
		back = append(back, time.Since(start))
		time.Sleep(5 * time.Second) // sleep: requests continue
		left, against := end()
		t.Logf("power cut %d: pods reach each other after %s; %d requests left the guests, %d were answered", n+1, seconds(back[n]), left, len(against))
		if len(against) != 0 || left < 20 {
			t.Errorf("offline, after power cut %d: %d requests left the guests (want 20 at least), answered against the policy: %v", n+1, left, against)
		}
		sent, answered = sent+left, answered+len(against)
	}
	slices.Sort(back)
	figure(t, "%s: a site with a NetworkPolicy, without uplink, is power-cycled %d times: its pods reach each other after %s (median; %s to %s); "+
		"of %d requests that the policy closes %d were answered", platform(), len(back), seconds(back[len(back)/2]), seconds(back[0]),
		seconds(back[len(back)-1]), sent, answered)

	ok(t, c.WAN(t.Context(), "b", true))
	eventually(t, 3*time.Minute, func(ctx context.Context) error {
		return errors.Join(nodeReady(ctx, c, shop[0].node), nodeReady(ctx, c, shop[1].node))
	})
	ok(t, drop(t.Context()))
	took = eventually(t, time.Minute, func(ctx context.Context) error {
		now, err := pods(ctx, c, "default", "app=shop") // others, if the site was unreachable for 5 minutes: they are evicted
		if err == nil && len(now) != len(shop) {
			err = fmt.Errorf("%d pods of the shop are ready, want %d", len(now), len(shop))
		}
		return errors.Join(err, allPairs(ctx, c, append(now, guests...)))
	})
	figure(t, "%s: … the policy is deleted: open after %s", platform(), seconds(took))
}

// repeatedly calls ask until the test ends, or what it returns is called, which returns the sums.
func repeatedly(t *testing.T, ask func(context.Context) (int, []string)) (end func() (int, []string)) {
	stop, done := make(chan struct{}), make(chan struct{})
	sent, answered := 0, []string(nil)
	go func() {
		defer close(done)
		for {
			n, a := ask(t.Context())
			sent, answered = sent+n, append(answered, a...)
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	end = sync.OnceValues(func() (int, []string) { close(stop); <-done; return sent, answered })
	t.Cleanup(func() { end() })
	return end
}

// autopsy writes what nodes are doing to autopsy.log beside their services' logs, which are kept.
func autopsy(t *testing.T, c *cluster.Cluster, nodes ...string) {
	t.Helper()
	const look = `date; ps axo pid,ppid,etimes,stat,args; ctr -n k8s.io containers ls; ctr -n k8s.io tasks ls; ip -br addr; ip rule; ip route show table all
ip neigh; nft list ruleset; ls -lR /run/edgemesh /var/lib/edgemesh /var/lib/cni /etc/cni/net.d /etc/kubernetes/cache/kubelet
curl -sm5 --unix-socket /run/edgemesh/agent.sock http://agent/v1/status; curl -sm5 http://127.0.0.1:10267/v1/healthz
curl -sm5 http://127.0.0.1:10261/api/v1/pods -H 'User-Agent: kubelet'`
	for _, n := range nodes {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		out, err := c.On(ctx, n, "sh", "-xc", "{ "+look+"\n} 2>&1")
		log := filepath.Join(c.Dir, "nodes", n, "log", "autopsy.log")
		if err = errors.Join(err, os.WriteFile(log, []byte(out), 0o644)); err != nil {
			t.Logf("%s: %v", log, err)
		}
	}
}
