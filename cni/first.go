package main

import (
	"slices"

	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/overlap"
)

// checkOverlap looks, as long as no pod runs, for other networks on the node
// that use the pod range. Later it would only punish the pods to come.
func checkOverlap(c *call, pools conf.Pools, s *ipam.Store) error {
	if slices.ContainsFunc(s.Records(), ipam.Record.InUse) {
		return nil
	}
	found, err := overlap.Find(pools.Ranges(), overlap.Ours(c.Bridge))
	if err != nil {
		return err
	}
	return overlap.Err(found)
}
