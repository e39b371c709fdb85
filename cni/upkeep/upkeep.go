// Package upkeep is what the agent does with the plugin's address store: at
// its start, and for status and metrics. It works in the node's network
// namespace and needs no runtime.
package upkeep

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"edgemesh/cni/conf"
	"edgemesh/cni/ipam"
	"edgemesh/cni/overlap"
	"edgemesh/cni/podlink"
)

// Reconcile frees the addresses of pods that vanished without DEL, keeping
// them for the pods' names, and restores lost records of pods that live. It
// stands in for GC, which runtimes with older configurations never call.
func Reconcile(dataDir string) (freed, restored int, err error) {
	err = withStore(dataDir, func(s *ipam.Store) error {
		freed, restored, err = s.Reconcile()
		return err
	})
	return freed, restored, err
}

// Usage tells, per family, how full the node's blocks are. The error wraps
// conf.ErrNoSubnet as long as the node has none.
func Usage(dataDir, runtimeDir string) (usage []ipam.Usage, err error) {
	pools, err := conf.LoadSubnet(runtimeDir)
	if err != nil {
		return nil, err
	}
	usage = ipam.Unused(pools.Blocks)
	err = withStore(dataDir, func(s *ipam.Store) error {
		usage = s.Usage(pools.Blocks, nil)
		return nil
	})
	return usage, err
}

// Overlaps lists addresses and routes of other networks on the node inside
// the pod ranges of runtimeDir's subnet.json.
func Overlaps(runtimeDir string) ([]overlap.Conflict, error) {
	pools, err := conf.LoadSubnet(runtimeDir)
	if err != nil {
		return nil, err
	}
	return overlap.Find(pools.Ranges(), overlap.Ours(conf.DefaultBridge))
}

// Status tells why the plugin's STATUS would fail with the default bridge; nil
// when an ADD could succeed. The error wraps conf.ErrNoSubnet, overlap.ErrOverlap
// or ipam.ErrBusy, or is the file system's.
func Status(dataDir, runtimeDir string) error {
	pools, err := conf.LoadSubnet(runtimeDir)
	if err != nil {
		return err
	}
	var records []ipam.Record
	if err := withStore(dataDir, func(s *ipam.Store) error {
		records = s.Records()
		return nil
	}); err != nil {
		return err
	}
	return FirstPod(conf.DefaultBridge, pools, records)
}

// FirstPod looks, as long as no record is of a pod that runs, for other networks on
// the node that use the pod range. Later it would only punish the pods to come.
// The error wraps overlap.ErrOverlap.
func FirstPod(bridge string, pools conf.Pools, records []ipam.Record) error {
	if slices.ContainsFunc(records, ipam.Record.InUse) {
		return nil
	}
	found, err := overlap.Find(pools.Ranges(), overlap.Ours(bridge))
	if err != nil {
		return err
	}
	return overlap.Err(found)
}

// withStore runs f with the store locked. A node without a store had no pods.
func withStore(dataDir string, f func(*ipam.Store) error) error {
	if _, err := os.Stat(dataDir); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("address store: %w", err)
	}
	store, err := ipam.Open(dataDir, podlink.Host{}, ipam.Policy{})
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}
