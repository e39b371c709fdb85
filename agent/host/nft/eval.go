package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/verdict"
)

// reader translates the rules of one table.
type reader struct {
	conn  *nftables.Conn
	table *nftables.Table
	sets  map[string]*set
	named []netip.Prefix // in rules
}

// set is one that was read; its elements are in order if they are intervals.
type set struct {
	interval bool
	elements []nftables.SetElement
}

// read returns a base chain and those it leads to, and the prefixes that their rules name. A table of kube-proxy's has
// thousands of others.
func (t *reader) read(base *nftables.Chain, all []*nftables.Chain) (verdict.Chains, []netip.Prefix) {
	out := verdict.Chains{}
	for next := []string{base.Name}; len(next) > 0; next = next[1:] {
		i := slices.IndexFunc(all, func(c *nftables.Chain) bool {
			return c.Name == next[0] && c.Table.Name == t.table.Name && c.Table.Family == t.table.Family
		})
		if _, known := out[next[0]]; known || i < 0 {
			continue
		}
		chain := all[i]
		c := verdict.Chain{Name: "chain " + chain.Name, Drops: chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop}
		rules, err := t.conn.GetRules(chain.Table, chain)
		if err != nil {
			continue
		}
		for _, r := range rules {
			exprs := r.Exprs
			next = append(next, t.note(exprs)...)
			c.Rules = append(c.Rules, verdict.Rule{
				Text: fmt.Sprintf("chain %s, handle %d", chain.Name, r.Handle),
				Ask:  func(p verdict.Packet) (verdict.Match, verdict.Action, bool) { return t.ask(exprs, p) },
			})
		}
		out[chain.Name] = c
	}
	slices.SortFunc(t.named, func(a, b netip.Prefix) int { return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits()) })
	return out, slices.Compact(t.named)
}

// load returns a set of the table.
func (t *reader) load(name string) *set {
	if s, ok := t.sets[name]; ok {
		return s
	}
	t.sets[name] = nil
	meta, err := t.conn.GetSetByName(t.table, name)
	if err != nil {
		return nil
	}
	meta.Table = t.table
	elements, err := t.conn.GetSetElements(meta)
	if err != nil {
		return nil
	}
	s := &set{interval: meta.Interval && !meta.Concatenation, elements: elements}
	if s.interval { // where one ends and the next begins, the beginning counts
		slices.SortStableFunc(s.elements, func(a, b nftables.SetElement) int {
			return cmp.Or(bytes.Compare(a.Key, b.Key), map[bool]int{true: -1}[a.IntervalEnd]-map[bool]int{true: -1}[b.IntervalEnd])
		})
	}
	t.sets[name] = s
	return s
}

// find returns the element that holds a key.
func (s *set) find(key []byte) (e nftables.SetElement, found bool) {
	for _, x := range s.elements {
		switch {
		case s.interval:
			if bytes.Compare(x.Key, key) <= 0 {
				e, found = x, !x.IntervalEnd
			}
		case len(x.KeyEnd) == len(x.Key) && len(x.Key) > 0:
			if within(x.Key, x.KeyEnd, key) {
				return x, true
			}
		case bytes.Equal(x.Key, key):
			return x, true
		}
	}
	return e, found
}

// verdictOf returns the verdict of a map's element, nil for other elements. The library leaves it as attributes
// (NFTA_VERDICT_CODE, NFTA_VERDICT_CHAIN).
func verdictOf(e nftables.SetElement) *expr.Verdict {
	if e.VerdictData != nil {
		return e.VerdictData
	}
	padded := append(slices.Clone(e.Val), make([]byte, -len(e.Val)&3)...) // as the parser takes it for granted
	all, err := nl.ParseRouteAttr(padded)
	if err != nil {
		return nil
	}
	var v *expr.Verdict
	for _, a := range all {
		switch {
		case a.Attr.Type == unix.NFTA_VERDICT_CODE && len(a.Value) == 4:
			v = &expr.Verdict{Kind: expr.VerdictKind(int32(binary.BigEndian.Uint32(a.Value)))}
		case a.Attr.Type == unix.NFTA_VERDICT_CHAIN && v != nil:
			v.Chain = string(bytes.TrimRight(a.Value, "\x00"))
		}
	}
	return v
}

// within compares each word of a concatenation.
func within(from, to, key []byte) bool {
	for i := 0; i < len(key); i += 4 {
		end := min(i+4, len(key))
		if bytes.Compare(key[i:end], from[i:end]) < 0 || bytes.Compare(key[i:end], to[i:end]) > 0 {
			return false
		}
	}
	return true
}

// note keeps the prefixes that a rule names, and returns the chains it leads to.
func (t *reader) note(exprs []expr.Any) (chains []string) {
	bits := 0 // of an address in a register, 0 for none
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Payload:
			bits = 0
			if _, size := addressAt(e); size > 0 {
				bits = int(e.Len) * 8
			}
		case *expr.Bitwise:
			if bits > 0 {
				ones, _ := net.IPMask(e.Mask).Size()
				bits = ones
			}
		case *expr.Cmp:
			if bits > 0 {
				t.addPrefix(e.Data, bits)
			}
		case *expr.Verdict:
			chains = append(chains, e.Chain)
		case *expr.Lookup:
			chains = append(chains, t.noteSet(e.SetName, bits > 0)...)
		}
	}
	return chains
}

// noteSet is note for the elements of a set.
func (t *reader) noteSet(name string, addresses bool) (chains []string) {
	s := t.load(name)
	if s == nil {
		return nil
	}
	for i, e := range s.elements {
		if v := verdictOf(e); v != nil {
			chains = append(chains, v.Chain)
		}
		if addresses && s.interval && !e.IntervalEnd && i+1 < len(s.elements) {
			t.addPrefix(e.Key, same(e.Key, s.elements[i+1].Key))
		}
	}
	return chains
}

// same says how many bits the addresses from one up to another have in common, if they are a prefix.
func same(from, to []byte) int {
	a, okA := netip.AddrFromSlice(from)
	b, okB := netip.AddrFromSlice(to)
	if !okA || !okB {
		return 0
	}
	b = b.Prev()
	for bits := range a.BitLen() {
		if p, err := a.Prefix(bits); err == nil && p.Contains(b) && p.Addr() == a {
			if next, err := a.Prefix(bits + 1); err != nil || !next.Contains(b) {
				return bits
			}
		}
	}
	return a.BitLen()
}

func (t *reader) addPrefix(data []byte, bits int) {
	size := 4
	if len(data) > 4 || t.table.Family == nftables.TableFamilyIPv6 {
		size = 16
	}
	if a, ok := netip.AddrFromSlice(append(slices.Clone(data), make([]byte, max(size-len(data), 0))...)); ok && len(t.named) < 1000 {
		if p, err := a.Prefix(bits); err == nil {
			t.named = append(t.named, p)
		}
	}
}

// Offsets in the headers of IPv4 (RFC 791) and IPv6 (RFC 8200).
const (
	v4Proto, v4Src, v4Dst = 9, 12, 16
	v6Proto, v6Src, v6Dst = 6, 8, 24
)

// addressAt says which IP version's address a payload expression reads, by its size, 0 for none.
func addressAt(e *expr.Payload) (offset, size int) {
	if e.Base != expr.PayloadBaseNetworkHeader || e.OperationType != expr.PayloadLoad {
		return 0, 0
	}
	switch {
	case (e.Offset == v4Src || e.Offset == v4Dst) && e.Len <= 4:
		return int(e.Offset), 4
	case (e.Offset == v6Src || e.Offset == v6Dst) && e.Len <= 16:
		return int(e.Offset), 16
	}
	return 0, 0
}

// headers are the bytes of a packet that are known.
func headers(p verdict.Packet) (network, transport []known) {
	put := func(h []known, at int, b ...byte) {
		for i, x := range b {
			h[at+i] = known{value: x, yes: true}
		}
	}
	network, transport = make([]known, 40), make([]known, 20)
	if p.Src.Is4() {
		network = network[:20]
		put(network, 0, 0x45)
		put(network, v4Proto, p.Proto)
		put(network, v4Src, p.Src.AsSlice()...)
		put(network, v4Dst, p.Dst.AsSlice()...)
	} else {
		put(network, v6Proto, p.Proto)
		put(network, v6Src, p.Src.AsSlice()...)
		put(network, v6Dst, p.Dst.AsSlice()...)
	}
	if p.Proto == unix.IPPROTO_TCP || p.Proto == unix.IPPROTO_UDP {
		put(transport, 2, binary.BigEndian.AppendUint16(nil, p.Port)...)
	}
	return network, transport
}
