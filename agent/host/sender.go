package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"edgemesh/agent/mesh"
)

// sender is an element of one of the guard's sets.
type sender struct{ set, key string }

// wantSenders are the elements for all paths; nil: there is no table.
func wantSenders(fs families, w mesh.Paths) map[sender]bool {
	g := fs.guard()
	if !g.wanted() {
		return nil
	}
	sets, out := g.sets(), map[sender]bool{}
	add := func(set string, from []byte, block netip.Prefix) {
		if _, ok := sets[set]; ok {
			out[sender{set, string(append(from, block.Addr().AsSlice()...))}] = true
		}
	}
	for _, s := range w.Senders {
		add(nativeSet(s.Block.Addr().Is6(), s.Block.Bits()), append(s.MAC[:], 0, 0), s.Block) // filled up to eight bytes
	}
	for _, v := range w.VTEPs {
		if v.Underlay.Is6() != g.outer6 {
			continue
		}
		if _, ok := sets[leaveSet]; ok {
			out[sender{leaveSet, string(append(v.Local.AsSlice(), v.Underlay.AsSlice()...))}] = true
		}
		for _, b := range v.Blocks {
			add(vxlanSet(b.Addr().Is6(), b.Bits()), v.Underlay.AsSlice(), b)
		}
	}
	return out
}

// listSenders returns the elements of all sets of g that exist.
func listSenders(g guard) (map[sender]bool, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t, err := findTable(c, guardTable)
	if t == nil || err != nil {
		return nil, err
	}
	out := map[sender]bool{}
	for name, kind := range g.sets() {
		set, err := c.GetSetByName(t, name)
		if err != nil || set.KeyType.Bytes != kind.Bytes {
			continue // the next Set makes it
		}
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, fmt.Errorf("list nftables set %s: %w", name, err)
		}
		for _, e := range elements {
			out[sender{name, string(e.Key)}] = true
		}
	}
	return out, nil
}

// batch is how many elements go into one message, whose attributes have at most 64 KiB.
const batch = 500

// eachBatch calls f with the elements of each set, some at a time.
func eachBatch(all map[sender]bool, f func(*nftables.Set, []nftables.SetElement) error) error {
	t := &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}
	of := map[string][]nftables.SetElement{}
	for s := range all {
		of[s.set] = append(of[s.set], nftables.SetElement{Key: []byte(s.key)})
	}
	for name, elements := range of {
		for part := range slices.Chunk(elements, batch) {
			if err := f(&nftables.Set{Table: t, Name: name}, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// diffSenders compares the sets' elements; all change in one transaction.
func diffSenders(have, want map[sender]bool) []change {
	add, gone := map[sender]bool{}, map[sender]bool{}
	for s := range want {
		if !have[s] {
			add[s] = true
		}
	}
	for s := range have {
		if !want[s] {
			gone[s] = true
		}
	}
	if want == nil || len(add)+len(gone) == 0 {
		return nil
	}
	return []change{{fmt.Sprintf("add %d elements to sets of nftables table %s, delete %d", len(add), guardTable, len(gone)), func() error {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		if err := errors.Join(eachBatch(gone, c.SetDeleteElements), eachBatch(add, c.SetAddElements)); err != nil {
			return err
		}
		if err := c.Flush(); err != nil { // nothing of it is done; the kernel is looked at anew the next time
			return fmt.Errorf("nftables sets of who sends which pods' packets: %w", err)
		}
		return nil
	}}}
}
