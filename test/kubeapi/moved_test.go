package kubeapi_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"edgemesh/internal/membership/kube/api"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
	"edgemesh/test/kubeapi"
)

// former are the addresses that an agent keeps on its bridge though they are of none of its blocks.
func (a *agent) former() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, err := mesh.NewPlan(a.state, a.cfg.NodeName)
	if err != nil {
		return nil // the last good plan stays in force
	}
	return p.Host.Former
}

// keeps waits until those are exactly these.
func (a *agent) keeps(want ...string) {
	a.t.Helper()
	fair.Eventually(a.t, changeTime, fmt.Sprintf("%s keeps the former addresses %v", a.cfg.NodeName, want), func() error {
		var got []string
		for _, ip := range a.former() {
			got = append(got, ip.String())
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("they are %v", got)
		}
		return nil
	})
}

// A Node is deleted and registered again while its agent runs, and the cluster gives it another block: the agent and all
// others have the new one. What kubelet reports, an address of the old block, stays on the node until kubelet reports another
// one. Both while agents follow Nodes, and while they follow NodeRecords.
func TestBlockChanges(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	must(t, c.StartControllers("garbage-collector-controller"))
	defer c.StopControllers()
	network(t, c, nil)
	reports := func(ip string) error {
		return c.Patch(nodesPath+"/a/status", map[string]any{"status": map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": ip}}}})
	}
	must(t, c.CreateNode("a", "10.244.1.0/24"), c.CreateNode("b", "10.244.2.0/24"), reports("10.244.1.1"))
	a, b := certAgent(t, c, "a", c.URL), tokenAgent(t, c, "b", c.URL)
	log, others := a.listens(), b.listens()
	a.start()
	b.start()
	a.sees("a=10.244.1.0/24 b=10.244.2.0/24")
	b.sees("a=10.244.1.0/24 b=10.244.2.0/24")
	a.keeps()

	moves := func(block, before, after string) {
		t.Helper()
		must(t, c.Delete(nodesPath+"/a"))
		b.sees("b=10.244.2.0/24")
		// kubelet registers, with what it is told to report; the allocator comes after that.
		must(t, c.CreateNode("a"), reports(before))
		must(t, c.Patch(nodesPath+"/a", map[string]any{"spec": map[string]any{"podCIDR": block, "podCIDRs": []string{block}}}))
		a.sees("a=" + block + " b=10.244.2.0/24")
		b.sees("a=" + block + " b=10.244.2.0/24")
		a.keeps(before)
		var node struct {
			Metadata api.Meta `json:"metadata"`
		}
		must(t, c.Do("GET", nodesPath+"/a", nil, &node))
		fair.Eventually(t, patience, "the MeshNode is the new Node's, with its block", func() error {
			var m api.MeshNode
			if err := c.Do("GET", kubeapi.Group+"meshnodes/a", nil, &m); err != nil {
				return err
			}
			if o := m.Meta.OwnerReferences; len(o) != 1 || o[0].UID != node.Metadata.UID || !slices.Equal(m.Status.PodCIDRs, []string{block}) {
				return fmt.Errorf("owner %+v of Node %s, podCIDRs %v", o, node.Metadata.UID, m.Status.PodCIDRs)
			}
			return nil
		})
		must(t, reports(after))
		a.keeps()
		if b.blip("b") || a.blip("b") {
			t.Error("the other member was gone for a moment")
		}
	}
	moves("10.244.9.0/24", "10.244.1.1", "10.244.9.1")

	s := startControllers(t, c, "one")
	s.leader("")
	log.from(t, "noderecords")
	others.from(t, "noderecords")
	moves("10.244.12.0/24", "10.244.9.1", "10.244.12.1")
}
