package host

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// A native peer is known by its MAC, too: a host on the LAN that takes a pod's address
// has another one. iptables knows sets of MACs only with a module that many kernels
// lack, so this one check is a table of native nftables, beside either iptables:
//
//	table inet edgemesh {
//		set macs { type ether_addr }
//		chain lan { type filter hook prerouting priority raw
//			ip saddr RANGE iifname != edgemesh-br, edgemesh0, edgemesh.vx, lo ether saddr != @macs drop
//		}
//	}
const (
	macTable = "edgemesh"
	macSet   = "macs"
	macChain = "lan"
)

// missingMACs tells why the kernel cannot check MACs, "" when it can.
func missingMACs() string {
	c, err := nftables.New()
	if err == nil {
		_, err = c.ListTablesOfFamily(nftables.TableFamilyINet)
	}
	if err != nil {
		return fmt.Sprintf("the kernel has no nf_tables, which checks the MACs of native peers (modprobe nf_tables): %v", err)
	}
	return ""
}

// macGuard is the wanted table: one rule per range, whatever the number of peers.
type macGuard struct{ ranges []netip.Prefix }

func (fs families) macGuard() macGuard {
	var g macGuard
	for _, f := range fs.held() {
		if f.lan.on && fs.lan.Native {
			g.ranges = append(g.ranges, f.ranges...)
		}
	}
	return g
}

// print names the content of the table; the first rule carries it.
func (g macGuard) print() []byte {
	h := sha256.Sum256(fmt.Appendf(nil, "1 %v", g.ranges))
	return h[:8]
}

// diffMACTable compares the table but for the set's elements.
func diffMACTable(fs families) ([]change, error) {
	g := fs.macGuard()
	if missingMACs() != "" {
		return nil, nil
	}
	have, err := g.inPlace()
	if err != nil {
		return nil, err
	}
	switch {
	case len(g.ranges) == 0 && have == nil:
		return nil, nil
	case len(g.ranges) == 0:
		return []change{{"delete nftables table inet " + macTable, removeMACTable}}, nil
	case have != nil && *have:
		return nil, nil
	}
	return []change{{"make nftables table inet " + macTable, func() error { return g.make(have != nil) }}}, nil
}

// inPlace reports whether the table is as wanted; nil means that there is none.
func (g macGuard) inPlace() (*bool, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t, err := findMACTable(c)
	if t == nil || err != nil {
		return nil, err
	}
	is := false
	chain, err := c.ListChain(t, macChain)
	if err != nil || chain == nil {
		return &is, nil
	}
	rules, err := c.GetRules(t, chain)
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", err)
	}
	_, err = c.GetSetByName(t, macSet)
	is = err == nil && len(rules) == len(g.ranges) && len(rules) > 0 && bytes.Equal(rules[0].UserData, g.print())
	return &is, nil
}

func findMACTable(c *nftables.Conn) (*nftables.Table, error) { return findTable(c, macTable) }

// findTable returns a table of family inet, nil when there is none.
func findTable(c *nftables.Conn, name string) (*nftables.Table, error) {
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range all {
		if t.Name == name {
			return t, nil
		}
	}
	return nil, nil
}

// make writes the whole table in one transaction. The set's elements are kept.
func (g macGuard) make(replace bool) error {
	elements, err := listMACs()
	if err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Name: macTable, Family: nftables.TableFamilyINet}
	if replace {
		c.DelTable(t)
	}
	c.AddTable(t)
	set := &nftables.Set{Table: t, Name: macSet, KeyType: nftables.TypeEtherAddr}
	if err := c.AddSet(set, macElements(elements)); err != nil {
		return fmt.Errorf("nftables set: %w", err)
	}
	chain := c.AddChain(&nftables.Chain{Name: macChain, Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	for i, r := range g.ranges {
		rule := &nftables.Rule{Table: t, Chain: chain, Exprs: macRule(r, set)}
		if i == 0 {
			rule.UserData = g.print()
		}
		c.AddRule(rule)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// macRule drops what has a source inside r, comes from outside, and not from a
// peer's MAC.
func macRule(r netip.Prefix, set *nftables.Set) []expr.Any {
	out := append(within(r, source),
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: 1}, // native paths are on Ethernet only
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint16(unix.ARPHRD_ETHER)},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
	)
	for _, name := range []string{BridgeName, TUNName, VXLANName, "lo"} {
		padded := make([]byte, unix.IFNAMSIZ)
		copy(padded, name)
		out = append(out, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: padded})
	}
	return append(out,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID, Invert: true},
		&expr.Verdict{Kind: expr.VerdictDrop})
}

// macs are those of native peers. nil: there is no table.
type macs map[[6]byte]bool

func wantMACs(fs families, w mesh.Paths) macs {
	if len(fs.macGuard().ranges) == 0 {
		return nil
	}
	out := macs{}
	for _, m := range w.MACs {
		out[m] = true
	}
	return out
}

// listMACs returns the elements of the set, nil when there is none.
func listMACs() (macs, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t, err := findMACTable(c)
	if t == nil || err != nil {
		return nil, err
	}
	set, err := c.GetSetByName(t, macSet)
	if err != nil {
		return nil, nil // the next Set makes it
	}
	elements, err := c.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("list nftables set: %w", err)
	}
	out := macs{}
	for _, e := range elements {
		if len(e.Key) >= 6 {
			out[[6]byte(e.Key)] = true
		}
	}
	return out, nil
}

func macElements(all macs) []nftables.SetElement {
	var out []nftables.SetElement
	for m := range all {
		out = append(out, nftables.SetElement{Key: m[:]})
	}
	return out
}

// diffMACs compares the set's elements; all change in one transaction.
func diffMACs(have, want macs) []change {
	add, gone := macs{}, macs{}
	for m := range want {
		if !have[m] {
			add[m] = true
		}
	}
	for m := range have {
		if !want[m] {
			gone[m] = true
		}
	}
	if want == nil || len(add)+len(gone) == 0 {
		return nil
	}
	return []change{{fmt.Sprintf("add %d MACs to nftables set %s, delete %d", len(add), macSet, len(gone)), func() error {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		set := &nftables.Set{Table: &nftables.Table{Name: macTable, Family: nftables.TableFamilyINet}, Name: macSet, KeyType: nftables.TypeEtherAddr}
		err = errors.Join(c.SetDeleteElements(set, macElements(gone)), c.SetAddElements(set, macElements(add)))
		if err == nil {
			err = c.Flush()
		}
		if errors.Is(err, unix.ENOENT) {
			return nil // the table is gone; the next Set makes it
		}
		return err
	}}}
}

func removeMACTable() error { return removeTable(macTable) }

// oursNFT reports whether a table with one of our names is ours: it has our chain, or
// none at all.
func oursNFT(c *nftables.Conn, t *nftables.Table) bool {
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false
	}
	ours := map[string]string{macTable: macChain, snatTable: snatChain}[t.Name]
	others := false
	for _, chain := range all {
		if chain.Table.Name != t.Name {
			continue
		}
		if chain.Name == ours {
			return true
		}
		others = true
	}
	return !others
}

// removeTable deletes a table of family inet, if it is there and ours.
func removeTable(name string) error {
	c, err := nftables.New()
	if err != nil {
		return nil // no nf_tables, so no table
	}
	t, err := findTable(c, name)
	if t == nil || err != nil || !oursNFT(c, t) {
		return nil
	}
	c.DelTable(t)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", name, err)
	}
	return nil
}
