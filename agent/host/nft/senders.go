package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// WantSenders returns the elements of the guard's sets for all paths, nil if there is no
// guard. Links that are gone are left out. hops are where the paths' routes lead. onLink lists the links on which VXLAN to an address of
// ours comes in: two that are on one LAN both answer for it.
func WantSenders(s plan.State, w mesh.Paths, links map[string]int, hops []plan.Hop, onLink func(netip.Addr) []int) Senders {
	g := guardOf(s)
	if !g.sources() {
		return nil
	}
	sets, out := g.sets(), Senders{}
	g.addHops(out, hops)
	index := func(i int) []byte { return bytesOf(host(i)) }
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
			if i, ok := links[s.Link]; ok && s.Pods {
				add(native, index(i), mac, block)
			}
		case s.Underlay.Is6() != g.outer6:
		default:
			var mac []byte
			if s.MAC != [6]byte{} {
				inside += bound
				mac = append(s.MAC[:], 0, 0)
			}
			for _, i := range onLink(s.Local) {
				add(inside+probing, index(i), mac, s.Underlay.AsSlice(), s.Local.AsSlice(), block)
				if s.Pods {
					add(inside, index(i), mac, s.Underlay.AsSlice(), s.Local.AsSlice(), block)
				}
			}
		}
	}
	for n, link := range w.Links() {
		if i, ok := links[link]; ok {
			add(backSet(n), index(i))
		}
	}
	for _, a := range w.Probers {
		add(proberSet(a.Is6()), a.AsSlice())
	}
	for _, v := range w.VTEPs {
		if v.Underlay.Is6() == g.outer6 {
			set := linkSet
			if v.Routed {
				set = leaveSet
			}
			add(set, v.Local.AsSlice(), v.Underlay.AsSlice())
		}
	}
	return out
}

// Traffic counts the packets and bytes that came in from peers on the LAN, by where they came in;
// links are interfaces' indexes by name. Elements that were set again count from
// zero. The error wraps ErrNotCounted where the kernel does not count them.
func Traffic(s plan.State, links map[string]int) (map[mesh.Inlet]mesh.Count, error) {
	g, out := guardOf(s), map[mesh.Inlet]mesh.Count{}
	if !g.sources() {
		return out, nil
	}
	c := conn()
	names := make(map[uint32]string, len(links))
	for name, index := range links {
		names[uint32(index)] = name
	}
	t := &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}
	for _, f := range g.families {
		for _, bits := range f.LAN.Bits {
			sent, _ := c.GetSetElements(&nftables.Set{Table: t, Name: sentSet(f.V6, bits)})
			for _, e := range sent {
				if a, ok := netip.AddrFromSlice(e.Key); ok {
					out[mesh.Inlet{Block: netip.PrefixFrom(a, bits), Out: true}] = mesh.Count{}
				}
			}
			outer := 4 + 2*addrSize(g.outer6)
			for set, at := range map[string]uint32{nativeSet(f.V6, bits): 12, vxlanSet(f.V6, bits): outer, vxlanSet(f.V6, bits) + bound: 8 + outer} { // where the block is
				elements, err := c.GetSetElements(&nftables.Set{Table: t, Name: set})
				if err != nil && !errors.Is(err, unix.ENOENT) {
					return nil, fmt.Errorf("list nftables set %s: %w", set, err)
				}
				for _, e := range elements {
					a, ok := netip.AddrFromSlice(e.Key[at:])
					if e.Counter == nil || !ok {
						return nil, fmt.Errorf("nftables set %s: %w", set, ErrNotCounted)
					}
					in := mesh.Inlet{Block: netip.PrefixFrom(a, bits)}
					if set == nativeSet(f.V6, bits) {
						in.Link = names[binaryutil.NativeEndian.Uint32(e.Key)]
					}
					n := out[in]
					out[in] = mesh.Count{Packets: n.Packets + e.Counter.Packets, Bytes: n.Bytes + e.Counter.Bytes}
				}
			}
		}
	}
	return out, nil
}

// ReadSenders returns the elements of all sets of the guard that exist.
func ReadSenders(s plan.State) (Senders, error) {
	if g := guardOf(s); g.sources() {
		return g.senders()
	}
	return nil, nil
}

func (g guard) senders() (Senders, error) {
	c, done, err := reading()
	if err != nil {
		return nil, err
	}
	defer done()
	t, err := find(c, guardTable)
	if t == nil || err != nil {
		return nil, err
	}
	all, err := c.GetSets(t)
	if err != nil {
		if t, gone := find(conn(), guardTable); t == nil && gone == nil { // meanwhile
			return nil, nil
		}
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	out, wanted := Senders{}, g.sets()
	for _, set := range all {
		name := set.Name
		kind, is := wanted[name]
		if !is || kind.stays > 0 || set.KeyType.Bytes != kind.key.Bytes {
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

// Diff returns the changes from have to want, one transaction each: before the routes of paths change, and after. What lets
// packets leave stands before the route, and goes after it.
func (want Senders) Diff(have Senders) (before, after []plan.Change) {
	gone, add := plan.Diff(have, want)
	if want == nil {
		return nil, nil
	}
	var late []sender
	gone = slices.DeleteFunc(gone, func(s sender) bool {
		if s.isHop() {
			late = append(late, s)
		}
		return s.isHop()
	})
	return changeSenders(add, gone), changeSenders(nil, late)
}

func changeSenders(add, gone []sender) []plan.Change {
	if len(add)+len(gone) == 0 {
		return nil
	}
	return []plan.Change{{What: fmt.Sprintf("add %d elements to sets of nftables table %s, delete %d", len(add), guardTable, len(gone)), Do: func() error {
		c := conn()
		err := errors.Join(inBatches(guardTable, gone, c.SetDeleteElements), inBatches(guardTable, add, c.SetAddElements))
		if err == nil {
			err = c.Flush()
		}
		if err != nil { // nothing was changed; the kernel is read again next time
			return fmt.Errorf("nftables sets of who sends which pods' packets: %w", err)
		}
		return nil
	}}}
}

// addHops adds the elements for where packets may leave.
func (g guard) addHops(to Senders, hops []plan.Hop) {
	sets := g.sets()
	for _, h := range hops {
		v6, via := h.Dst.Addr().Is6(), h.Via
		if !via.IsValid() || via.Is6() != v6 { // the kernel then shows the destination as the next hop
			via = h.Dst.Addr()
		}
		name := hopSet(v6, h.Dst.Bits())
		if h.Probe {
			name = hopPrefix(v6) + probing
		}
		if _, ok := sets[name]; ok {
			to[sender{name, string(slices.Concat(bytesOf(host(h.Link)), h.Dst.Addr().AsSlice(), via.AsSlice()))}] = true
		}
	}
}

// isHop reports whether the element lets packets leave. Its route has to be gone before it.
func (s sender) isHop() bool { return strings.HasPrefix(s.set, "hops") }

// Strays lists what was dropped lately instead of leaving in clear.
func Strays(s plan.State) (out []plan.Stray, err error) {
	c := conn()
	for _, f := range guardOf(s).outs {
		set := &nftables.Set{Table: &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}, Name: straySet(f.V6)}
		elements, err := c.GetSetElements(set)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("list nftables set %s: %w", set.Name, err)
		}
		for _, e := range elements {
			size := int(addrSize(f.V6))
			if len(e.Key) != 8+2*size {
				continue
			}
			src, _ := netip.AddrFromSlice(e.Key[8 : 8+size])
			dst, _ := netip.AddrFromSlice(e.Key[8+size:])
			out = append(out, plan.Stray{Link: int(binaryutil.NativeEndian.Uint32(e.Key)), Mark: binaryutil.NativeEndian.Uint32(e.Key[4:]), Src: src, Dst: dst})
		}
	}
	return out, nil
}
