// Package upkeep is what the agent does with the plugin's address store, at its start and
// for status and metrics. It works in the node's network namespace and needs no runtime.
package upkeep

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
	"edgemesh/internal/cni/overlap"
	"edgemesh/internal/cni/podlink"
)

// Policy says which addresses the configuration c keeps for deleted pods.
func Policy(c *conf.NetConf) ipam.Policy {
	return ipam.Policy{For: c.Keep, Keep: func(o ipam.Owner) bool { return c.Keeps(o.Pod) }}
}

// Reconcile frees the addresses of pods that vanished without DEL, keeps them for the
// pods' names as c says, and restores missing records of living pods. It replaces GC,
// which runtimes that do not know version 1.1.0 never call.
func Reconcile(c *conf.NetConf) (freed, restored int, err error) {
	err = withStore(c, func(s *ipam.Store) error {
		freed, restored, err = s.Reconcile()
		return err
	})
	return freed, restored, err
}

// look reads the node's blocks and, without the lock, the store.
func look(c *conf.NetConf) (conf.Pools, *ipam.Store, error) {
	pools, err := conf.LoadSubnet(c.RuntimeDir)
	if err != nil {
		return pools, nil, err
	}
	store, err := ipam.Peek(c.DataDir, podlink.Host{Store: c.DataDir})
	return pools, store, err
}

// Usage returns how full the node's blocks are, per family. It does not wait for calls in
// progress, since status and every scrape of the metrics call it. The error wraps
// conf.ErrNoSubnet as long as the node has no block.
func Usage(c *conf.NetConf) ([]ipam.Usage, error) {
	pools, store, err := look(c)
	if err != nil {
		return nil, err
	}
	return store.Usage(pools.Blocks, slices.Concat(c.Excluded, pools.Reserved)), nil
}

// Strays lists the addresses of existing pods that are not in this node's blocks: it has got others since. The error wraps
// conf.ErrNoSubnet as long as the node has no block.
func Strays(c *conf.NetConf) ([]ipam.Record, error) {
	pools, store, err := look(c)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(store.Records(), func(r ipam.Record) bool {
		_, inside := pools.Block(r.IP)
		return inside || !r.InUse() || r.Torn() || store.Abandoned(r)
	}), nil
}

// Aside lists the addresses of pods that another network leads to the cluster: they were made by a plugin that did not do it for a
// further interface, which this network's is.
func Aside(c *conf.NetConf) ([]ipam.Record, error) {
	store, err := ipam.Peek(c.DataDir, podlink.Host{Store: c.DataDir})
	if err != nil {
		return nil, err
	}
	all := store.Records()
	return slices.DeleteFunc(slices.Clone(all), func(r ipam.Record) bool {
		first := func(o ipam.Record) bool { return o.ContainerID == r.ContainerID && o.IfName == "eth0" }
		return r.Ranged || !r.InUse() || r.Torn() || store.Abandoned(r) || slices.ContainsFunc(all, first)
	}), nil
}

// HasPod reports whether a pod of this node has the address.
func HasPod(c *conf.NetConf, ip netip.Addr) (bool, error) {
	store, err := ipam.Peek(c.DataDir, podlink.Host{Store: c.DataDir})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(store.Records(), func(r ipam.Record) bool {
		return r.IP == ip && r.InUse() && !store.Abandoned(r)
	}), nil
}

// Overlaps lists addresses and routes of other networks on the node inside
// the pod ranges of subnet.json.
func Overlaps(c *conf.NetConf) ([]overlap.Conflict, error) {
	pools, err := conf.LoadSubnet(c.RuntimeDir)
	if err != nil {
		return nil, err
	}
	return overlap.Find(pools.Ranges(), overlap.Ours(c.Bridge))
}

// Status says why the plugin's STATUS would fail; it returns nil if an ADD could succeed.
// Like an ADD it creates the store. It neither waits for calls in progress nor fails
// because of them. The error wraps conf.ErrNoSubnet or overlap.ErrOverlap, or is the file
// system's.
func Status(c *conf.NetConf) error {
	pools, err := conf.LoadSubnet(c.RuntimeDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return fmt.Errorf("create the address store: %w", err)
	}
	records, err := ipam.Look(c.DataDir)
	if err != nil {
		return err
	}
	return FirstPod(c.Bridge, pools, records)
}

// FirstPod looks for other networks on the node that use the pod range, as long as the
// node has had no pod of ours. Later a check would only refuse new pods, including those
// that come back after a reboot. The error wraps overlap.ErrOverlap.
func FirstPod(bridge string, pools conf.Pools, records []ipam.Record) error {
	if slices.ContainsFunc(records, func(r ipam.Record) bool { return r.InUse() || hadPod(r, pools) }) {
		return nil
	}
	found, err := overlap.Find(pools.Ranges(), overlap.Ours(bridge))
	if err != nil {
		return err
	}
	return overlap.Err(found)
}

// hadPod reports whether r shows that we gave a pod one of the node's present addresses.
// A torn record shows it too, since a power cut took only its content. Another plugin's
// record does not: the conflicting network may be a leftover of that plugin.
func hadPod(r ipam.Record, pools conf.Pools) bool {
	_, inside := pools.Block(r.IP)
	return inside && (r.Torn() || r.Network != "" && r.Boot != "")
}

// withStore runs f with the store locked. A node without a store had no pods.
func withStore(c *conf.NetConf, f func(*ipam.Store) error) error {
	if _, err := os.Stat(c.DataDir); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("address store: %w", err)
	}
	store, err := ipam.Open(c.DataDir, podlink.Host{Store: c.DataDir}, Policy(c))
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}
