package main

import (
	"slices"

	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/overlap"
)

// agentLinks are the agent's own interfaces, which carry addresses and routes
// of the pod range by design.
func agentLinks(bridge string) []string { return []string{bridge, "edgemesh0", "edgemesh.vx"} }

// checkOverlap looks, as long as no pod runs, for other networks on the node
// that use the pod range. Later it would only punish the pods to come.
func checkOverlap(c *call, pools conf.Pools, s *ipam.Store) error {
	if slices.ContainsFunc(s.Records(), ipam.Record.InUse) {
		return nil
	}
	found, err := overlap.Find(slices.Concat(pools.Blocks, pools.Cluster), agentLinks(c.Bridge))
	if err != nil {
		return err
	}
	return overlap.Err(found)
}
