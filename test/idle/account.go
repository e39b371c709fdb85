package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// account is what a node has counted so far, in IP bytes.
type account struct {
	at              time.Time
	upkeep, carried uint64
	purposes        map[string]uint64
}

// count has a state's node counted at both ends of its time.
func (b *bench) count(ctx context.Context, began time.Time, s *state) {
	if pause(ctx, time.Until(began.Add(s.from))) == nil {
		s.before = b.account(ctx, s.node)
	}
	if pause(ctx, time.Until(began.Add(s.to))) == nil {
		s.after = b.account(ctx, s.node)
	}
}

// account is one node's; the zero one where its agent does not count.
func (b *bench) account(ctx context.Context, node string) account {
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
		return account{}
	}
	u := s.Upkeep
	a := account{time.Now(), u.TxBytes + u.RxBytes, u.Carried.TxBytes + u.Carried.RxBytes, map[string]uint64{}}
	for p, n := range u.Purposes {
		a.purposes[p] = n.TxBytes + n.RxBytes
	}
	return a
}

// compare prints what each state's node has counted beside what its router has carried in that time. Bare is what the router saw that
// carried no packet of a pod's: what went to relays, and segments between peers too short for one, each second one with an acknowledgement.
func (b *bench) compare() error {
	fmt.Printf("\n%-55s %10s %8s %8s %9s %8s   %s\n", "state, B/s", "router", "bare", "upkeep", "carried", "missed", "upkeep by purpose")
	for _, s := range b.states {
		from, to := s.before, s.after
		if to.at.IsZero() || from.at.IsZero() {
			continue
		}
		ps, err := b.read(b.capture(s.node))
		if err != nil {
			return err
		}
		seen, short := 0, 0
		for _, p := range ps {
			if p.at.Before(from.at) || p.at.After(to.at) {
				continue
			}
			seen += p.size
			switch {
			case strings.HasPrefix(p.kind, "relay"):
				short += p.size
			case p.kind == "peers TCP data" && p.size < bare:
				short += p.size + 52/2
			}
		}
		took := to.at.Sub(from.at).Seconds()
		upkeep, carried := float64(to.upkeep-from.upkeep), float64(to.carried-from.carried)
		missed := 100 * (1 - (upkeep+carried)/float64(seen))
		fmt.Printf("%-55s %10.1f %8.1f %8.1f %9.1f %7.2f%%  ", s.name, float64(seen)/took, float64(short)/took, upkeep/took, carried/took, missed)
		for _, p := range slices.Sorted(maps.Keys(to.purposes)) {
			fmt.Printf(" %s %.1f", p, float64(to.purposes[p]-from.purposes[p])/took)
		}
		fmt.Println()
	}
	return nil
}
