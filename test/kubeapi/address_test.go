package kubeapi_test

import (
	"fmt"
	"testing"

	"edgemesh/agent/diagnose"
	"edgemesh/internal/membership/mesh"
	"edgemesh/test/fair"
)

// A Node whose kubelet reports no address any longer is told, by what doctor and status ask for, until it has one again.
func TestNodeWithoutAddress(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t)
	network(t, c, nil)
	must(t, c.CreateNode("edge", "10.244.1.0/24"))
	edge := certAgent(t, c, "edge", c.URL)
	var plan mesh.Plan // as the daemon's, each is made from the one before
	for i, reported := range []string{"10.244.1.1", "", "10.244.1.1", ""} {
		addresses := []map[string]string{{"type": "Hostname", "address": "edge"}}
		if reported != "" {
			addresses = append(addresses, map[string]string{"type": "InternalIP", "address": reported})
		}
		must(t, c.Patch("/api/v1/nodes/edge/status", map[string]any{"status": map[string]any{"addresses": addresses}}))
		if i == 0 {
			edge.start()
		}
		fair.Eventually(t, patience, fmt.Sprintf("%d: what is found of the address %q is right", i, reported), fair.True(func() bool {
			edge.mu.Lock()
			state := edge.state
			edge.mu.Unlock()
			next, err := plan.Next(state, "edge")
			must(t, err)
			plan = next
			found := diagnose.NodeIPMissing(plan)
			return len(plan.Self.NodeIPs) == 1 && plan.Self.NodeIPs[0].String() == "10.244.1.1" && (len(found) == 1 && found[0].Remedy != "") == (reported == "")
		}))
	}
}
