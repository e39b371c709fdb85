package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// account is what a node has counted so far, in IP bytes.
type account struct {
	at              time.Time
	upkeep, carried uint64
	purposes        map[string]uint64
}

// accounts are those of all nodes that are watched.
func (b *bench) accounts(ctx context.Context) map[string]account {
	out := map[string]account{}
	for _, s := range b.states {
		if _, done := out[s.node]; done {
			continue
		}
		if a, ok := b.account(ctx, s.node); ok {
			out[s.node] = a
		}
	}
	return out
}

// account is one node's; false where its agent does not count.
func (b *bench) account(ctx context.Context, node string) (account, bool) {
	n := b.nodes[node]
	type both struct{ TxBytes, RxBytes uint64 }
	var s struct {
		Upkeep *struct {
			both
			Carried  both
			Purposes map[string]both
		}
	}
	out, _, err := n.AgentCommand(ctx, "status", "--json", "--runtime-dir", n.Config.RuntimeDir)
	if err != nil || json.Unmarshal([]byte(out), &s) != nil || s.Upkeep == nil {
		return account{}, false
	}
	u := s.Upkeep
	a := account{time.Now(), u.TxBytes + u.RxBytes, u.Carried.TxBytes + u.Carried.RxBytes, map[string]uint64{}}
	for p, n := range u.Purposes {
		a.purposes[p] = n.TxBytes + n.RxBytes
	}
	return a, true
}

// compare prints, for each node, what it has counted between two moments beside what its router has carried then.
func (b *bench) compare(before, after map[string]account) error {
	fmt.Printf("\n%-12s %12s %12s %12s %8s   %s\n", "node", "seen, B/s", "upkeep", "carried", "missed", "upkeep by purpose")
	for _, node := range slices.Sorted(maps.Keys(after)) {
		from, to := before[node], after[node]
		ps, err := b.read(b.capture(node))
		if err != nil {
			return err
		}
		seen := 0
		for _, p := range ps {
			if p.at.After(from.at) && p.at.Before(to.at) {
				seen += p.size
			}
		}
		took := to.at.Sub(from.at).Seconds()
		upkeep, carried := float64(to.upkeep-from.upkeep), float64(to.carried-from.carried)
		missed := 100 * (1 - (upkeep+carried)/float64(seen))
		fmt.Printf("%-12s %12.1f %12.1f %12.1f %7.2f%%  ", node, float64(seen)/took, upkeep/took, carried/took, missed)
		for _, p := range slices.Sorted(maps.Keys(to.purposes)) {
			fmt.Printf(" %s %.1f", p, float64(to.purposes[p]-from.purposes[p])/took)
		}
		fmt.Println()
	}
	return nil
}
