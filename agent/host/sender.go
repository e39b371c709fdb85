package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// sender is an element of one of the guard's sets.
type sender struct{ set, key string }

// wantSenders are the elements for all paths; nil: there is no table. Links that are gone
// are left out.
func wantSenders(fs families, w mesh.Paths, links map[string]int) map[sender]bool {
	g := fs.guard()
	if !g.wanted() {
		return nil
	}
	sets, out := g.sets(), map[sender]bool{}
	add := func(set string, key ...[]byte) {
		if _, ok := sets[set]; ok {
			out[sender{set, string(slices.Concat(key...))}] = true
		}
	}
	for _, s := range w.Senders {
		v6, block := s.Block.Addr().Is6(), s.Block.Addr().AsSlice()
		switch native, inside := nativeSet(v6, s.Block.Bits()), vxlanSet(v6, s.Block.Bits()); {
		case s.Link != "":
			mac := append(s.MAC[:], 0, 0)
			add(native+probing, mac, block)
			if index, ok := links[s.Link]; ok && s.Pods {
				add(native, binaryutil.NativeEndian.PutUint32(uint32(index)), mac, block)
			}
		case s.Underlay.Is6() != g.outer6:
		case s.Pods:
			add(inside, s.Underlay.AsSlice(), block)
		default:
			add(inside+probing, s.Underlay.AsSlice(), block)
		}
	}
	for _, v := range w.VTEPs {
		if v.Underlay.Is6() == g.outer6 {
			add(leaveSet, v.Local.AsSlice(), v.Underlay.AsSlice())
		}
	}
	return out
}

// Traffic counts the packets that came in from peers on the LAN, by where they came in;
// elements that were set anew count from zero. The error wraps ErrNotCounted where the
// kernel does not count them.
func (h *Host) Traffic() (map[mesh.Inlet]uint64, error) {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	g, out := h.lan.fs.guard(), map[mesh.Inlet]uint64{}
	if !g.wanted() {
		return out, nil
	}
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("host: nftables: %w", err)
	}
	names := make(map[uint32]string, len(h.lan.links))
	for name, index := range h.lan.links {
		names[uint32(index)] = name
	}
	t := &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}
	count := func(set string, bits, from int, link func(key []byte) string) error {
		elements, err := c.GetSetElements(&nftables.Set{Table: t, Name: set})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("host: list nftables set %s: %w", set, err)
		}
		for _, e := range elements {
			a, ok := netip.AddrFromSlice(e.Key[from:])
			if e.Counter == nil || !ok {
				return fmt.Errorf("host: nftables set %s: %w", set, ErrNotCounted)
			}
			out[mesh.Inlet{Block: netip.PrefixFrom(a, bits), Link: link(e.Key)}] += e.Counter.Packets
		}
		return nil
	}
	_, outer := sourceAt(g.outer6)
	for _, f := range g.families {
		for _, bits := range f.bits {
			if g.native {
				err = count(nativeSet(f.v6, bits), bits, 12, func(key []byte) string { return names[binaryutil.NativeEndian.Uint32(key[:4])] })
			}
			if g.port != 0 && err == nil {
				err = count(vxlanSet(f.v6, bits), bits, int(outer), func([]byte) string { return "" })
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return out, nil
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
