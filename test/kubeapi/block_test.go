package kubeapi_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// podBlocks are NODE=CIDR, sorted, as administrator.
func podBlocks(t *testing.T, c *kubeapi.Cluster) []string {
	t.Helper()
	var list struct {
		Items []api.PodBlock `json:"items"`
	}
	must(t, c.Do(http.MethodGet, kubeapi.Group+"podblocks", nil, &list))
	var out []string
	for _, b := range list.Items {
		out = append(out, b.Spec.NodeName+"="+b.Spec.CIDR)
	}
	slices.Sort(out)
	return out
}

// Agents that start at the same time, in both families: no two get one block, and they get
// the lowest ones.
func TestBlocksAreRacedFor(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, map[string]any{"podCIDRs": []string{"10.244.0.0/16", "fd00:10:244::/48"}, "blockSize": 26})
	names := []string{"n1", "n2", "n3", "n4"}
	var agents []*agent
	for _, n := range names {
		must(t, c.CreateNode(n))
		agents = append(agents, tokenAgent(t, c, n, c.URL))
	}
	errs := make(chan error)
	for _, a := range agents {
		t.Cleanup(a.stop)
		go func() { errs <- a.tryStart(patience) }()
	}
	for range agents {
		must(t, <-errs)
	}
	var cidrs []string
	for _, b := range podBlocks(t, c) {
		cidrs = append(cidrs, strings.Split(b, "=")[1])
	}
	slices.Sort(cidrs)
	want := []string{"10.244.0.0/26", "10.244.0.128/26", "10.244.0.192/26", "10.244.0.64/26",
		"fd00:10:244:1::/64", "fd00:10:244:2::/64", "fd00:10:244:3::/64", "fd00:10:244::/64"}
	if !slices.Equal(cidrs, want) {
		t.Fatalf("claimed %v, want %v", cidrs, want)
	}
	for _, a := range agents {
		fair.Eventually(t, patience, a.cfg.NodeName+" sees all blocks", fair.True(func() bool { return strings.Count(a.members(), "=") == 8 }))
	}
}

// With two blocks and three nodes one waits, says so, and gets what is given back
// when a Node is deleted: by the garbage collector, as in any cluster.
func TestExhaustionAndRelease(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	must(t, c.StartControllers("garbage-collector-controller"))
	defer c.StopControllers()
	network(t, c, map[string]any{"podCIDRs": []string{"10.244.0.0/23"}})
	must(t, c.CreateNode("a"), c.CreateNode("b"))
	a, b := certAgent(t, c, "a", c.URL), tokenAgent(t, c, "b", c.URL)
	a.start()
	b.start()
	a.sees("a=10.244.0.0/24 b=10.244.1.0/24")

	must(t, c.CreateNode("late"))
	late := tokenAgent(t, c, "late", c.URL)
	t.Cleanup(late.stop)
	started := make(chan error)
	go func() { started <- late.tryStart(2 * patience) }()
	fair.Eventually(t, patience, "the MeshNode says that blocks are exhausted", fair.True(func() bool {
		var m api.MeshNode
		if c.Do(http.MethodGet, kubeapi.Group+"meshnodes/late", nil, &m) != nil {
			return false
		}
		cond := api.FindCondition(m.Status.Conditions, "BlockAllocated")
		return cond != nil && cond.Status == "False" && cond.Reason == "Exhausted"
	}))
	var events struct {
		Items []struct {
			Reason         string            `json:"reason"`
			InvolvedObject map[string]string `json:"involvedObject"`
		} `json:"items"`
	}
	fair.Eventually(t, patience, "there is an event", fair.True(func() bool {
		must(t, c.Do(http.MethodGet, "/api/v1/namespaces/default/events", nil, &events))
		return len(events.Items) > 0
	}))
	if e := events.Items[0]; len(events.Items) != 1 || e.Reason != "PodBlocksExhausted" ||
		e.InvolvedObject["name"] != "late" {
		t.Errorf("events %+v, want one PodBlocksExhausted of late", events.Items)
	}

	b.stop()
	must(t, c.Delete("/api/v1/nodes/b"))
	began := time.Now()
	fair.Eventually(t, patience, "a does not see b", fair.True(func() bool { return !strings.Contains(a.members(), "b=") }))
	t.Logf("cut off after %v", time.Since(began).Round(time.Millisecond))
	must(t, <-started)
	a.sees("a=10.244.0.0/24 late=10.244.1.0/24")
	fair.Eventually(t, patience, "b's MeshNode is collected", fair.True(func() bool {
		return c.Do(http.MethodGet, kubeapi.Group+"meshnodes/b", nil, nil) != nil
	}))
}

// The Node is deleted and made again while its agent runs: everything the garbage
// collector takes comes back, with the same block. An agent with a token becomes what the new
// Node owns; a certificate names no Node's UID, so its agent creates all again once it is collected.
func TestNodeIsMadeAgain(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, identity := range []string{"token", "certificate"} {
		t.Run(identity, func(t *testing.T) { nodeIsMadeAgain(t, identity == "token") })
	}
}

func nodeIsMadeAgain(t *testing.T, token bool) {
	t.Parallel()
	c := emptyCluster(t)
	must(t, c.StartControllers("garbage-collector-controller"))
	defer c.StopControllers()
	network(t, c, nil)
	must(t, c.CreateNode("a"), c.CreateMember("b", newPeerID(t), "10.244.0.0/24"))
	a := certAgent(t, c, "a", c.URL)
	if token {
		a = tokenAgent(t, c, "a", c.URL)
	}
	a.start()
	a.sees("a=10.244.1.0/24 b=10.244.0.0/24")
	must(t, c.Delete("/api/v1/nodes/a"))
	fair.Eventually(t, patience, "the agent says that its Node is gone", fair.True(func() bool { return a.told("no Node a") }))
	// Without the Node its token is no longer good; a real kubelet renews it.
	must(t, c.CreateNode("a"))
	if token {
		must(t, c.Delete("/api/v1/namespaces/"+kubeapi.Namespace+"/pods/agent-a?gracePeriodSeconds=0"))
		must(t, c.AgentToken("a", strings.TrimSuffix(a.cfg.Kubeconfig, ".conf")+".token", 3600))
	}
	var node struct {
		Metadata api.Meta `json:"metadata"`
	}
	must(t, c.Do(http.MethodGet, "/api/v1/nodes/a", nil, &node))
	fair.Eventually(t, patience, "MeshNode and PodBlock belong to the new Node", fair.True(func() bool {
		var m, b api.MeshNode
		return c.Do(http.MethodGet, kubeapi.Group+"meshnodes/a", nil, &m) == nil &&
			c.Do(http.MethodGet, kubeapi.Group+"podblocks/10-244-1-0-24", nil, &b) == nil &&
			len(m.Meta.OwnerReferences) == 1 && m.Meta.OwnerReferences[0].UID == node.Metadata.UID &&
			len(b.Meta.OwnerReferences) == 1 && b.Meta.OwnerReferences[0].UID == node.Metadata.UID
	}))
	a.sees("a=10.244.1.0/24 b=10.244.0.0/24")
}

// What an allocator with another range gave does not count: the node claims a block,
// and its MeshNode says so.
func TestForeignPodCIDRs(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "192.168.7.0/24"), c.CreateNode("b", "10.244.5.0/24"))
	a, b := certAgent(t, c, "a", c.URL), tokenAgent(t, c, "b", c.URL)
	a.start()
	b.start()
	a.sees("a=10.244.0.0/24 b=10.244.5.0/24")
	b.sees("a=10.244.0.0/24 b=10.244.5.0/24")
	var cond *api.Condition
	fair.Eventually(t, patience, "the MeshNode has a block", fair.True(func() bool {
		cond = api.FindCondition(meshNode(t, c, "a").Status.Conditions, "BlockAllocated")
		return cond != nil && cond.Status == "True"
	}))
	if cond.Reason != "Claimed" || !strings.Contains(cond.Message, "192.168.7.0/24") ||
		!strings.Contains(cond.Message, "do not count") {
		t.Errorf("condition %+v does not say what became of the Node's podCIDRs", cond)
	}
}

// A Node that gets its own blocks gives the claimed one back.
func TestNodeGetsItsOwnBlocks(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a"))
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	a.sees("a=10.244.0.0/24")
	must(t, c.Patch("/api/v1/nodes/a",
		map[string]any{"spec": map[string]any{"podCIDR": "10.244.8.0/24", "podCIDRs": []string{"10.244.8.0/24"}}}))
	a.sees("a=10.244.8.0/24")
	fair.Eventually(t, patience, "the block is given back", fair.True(func() bool { return len(podBlocks(t, c)) == 0 }))
}

// Deleting a MeshNode cuts the node off within 2 s, everywhere; it comes back later.
func TestKick(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateNode("b", "10.244.2.0/24"))
	a, b := tokenAgent(t, c, "a", c.URL), tokenAgent(t, c, "b", c.URL)
	a.start()
	b.start()
	both := "a=10.244.1.0/24 b=10.244.2.0/24"
	a.sees(both)
	must(t, c.Delete(kubeapi.Group+"meshnodes/b"))
	began := time.Now()
	a.sees("a=10.244.1.0/24")
	t.Logf("cut off after %v", time.Since(began).Round(time.Millisecond))
	a.sees(both)
}

// A cloud's route controller and the agent disagree on the Node's condition.
func TestConditionIsKept(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("a", "10.244.1.0/24"))
	unavailable := func() (string, string) {
		var n struct {
			Status struct {
				Conditions []api.Condition `json:"conditions"`
			} `json:"status"`
		}
		must(t, c.Do(http.MethodGet, "/api/v1/nodes/a", nil, &n))
		if x := api.FindCondition(n.Status.Conditions, "NetworkUnavailable"); x != nil {
			return x.Status, x.Reason
		}
		return "", ""
	}
	route := json.RawMessage(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated","message":"x"}]}}`)
	must(t, c.Patch("/api/v1/nodes/a/status", route)) // as a cloud makes a Node
	a := tokenAgent(t, c, "a", c.URL)
	a.start()
	fair.Eventually(t, patience, "the network is available", fair.True(func() bool { s, _ := unavailable(); return s == "False" }))
	must(t, c.Patch("/api/v1/nodes/a/status", route))
	fair.Eventually(t, patience, "it is available again", fair.True(func() bool { s, _ := unavailable(); return s == "False" }))
	a.source.SetServing(errNoBridge{})
	fair.Eventually(t, patience, "it is unavailable, by us", fair.True(func() bool {
		s, r := unavailable()
		return s == "True" &&
			r == "EdgeMeshIsDown"
	}))
	fair.Eventually(t, patience, "the MeshNode says why", fair.True(func() bool {
		x := api.FindCondition(meshNode(t, c, "a").Status.Conditions, "Ready")
		return x != nil && x.Status == "False" && strings.Contains(x.Message, "no bridge")
	}))
}

type errNoBridge struct{}

func (errNoBridge) Error() string { return "no bridge" }
