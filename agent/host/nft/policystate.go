package nft

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"edgemesh/internal/cni/closing"
)

var policyTable = &nftables.Table{Name: closing.Table, Family: nftables.TableFamilyINet} //nolint:gochecknoglobals // a constant

// policyState is what the kernel holds.
type policyState struct {
	exists, framed bool
	behind         bool // it is the table behind the first one
	sets           map[string]elementSet
	maps           map[string]map[string]string
	chains         map[string]int // number of rules
}

// readPolicies reads the table, except for elements that are known.
func readPolicies(sets map[string]elementSet) (policyState, error) {
	out := policyState{sets: map[string]elementSet{}, maps: map[string]map[string]string{}, chains: map[string]int{}}
	c := conn()
	table, err := find(c, closing.Table)
	if err != nil || table == nil {
		return out, err
	}
	out.exists, out.framed = true, true
	all, err := c.GetSets(table)
	if err != nil {
		return out, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, s := range all {
		known, ok := sets[s.Name]
		if !s.IsMap && ok || s.Dynamic {
			out.sets[s.Name] = known
			continue
		}
		all, err := c.GetSetElements(s)
		if err != nil {
			return out, fmt.Errorf("list nftables set %s: %w", s.Name, err)
		}
		if s.IsMap {
			out.maps[s.Name] = map[string]string{}
			for _, e := range all {
				out.maps[s.Name][string(e.Key)] = verdictChain(e.Val)
			}
			continue
		}
		out.sets[s.Name] = elementSet{}
		for _, e := range all {
			out.sets[s.Name][element{string(e.Key), e.IntervalEnd}] = true
		}
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return out, fmt.Errorf("list nftables chains: %w", err)
	}
	fixed, print := framed()
	for _, x := range chains {
		if x.Table.Name != closing.Table {
			continue
		}
		rules, err := c.GetRules(table, x)
		if err != nil {
			return out, fmt.Errorf("list nftables rules: %w", err)
		}
		if n, ok := fixed[x.Name]; !ok {
			out.chains[x.Name] = len(rules)
		} else if delete(fixed, x.Name); n != len(rules) || x.Name == chainForward && !bytes.Equal(rules[0].UserData, print) {
			out.framed = false
		}
	}
	out.framed = out.framed && len(fixed) == 0
	return out, nil
}

// verdictChain is the chain of a map's element (NFTA_DATA_VERDICT's content).
func verdictChain(b []byte) string {
	attrs, _ := nl.ParseRouteAttr(b)
	for _, a := range attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED == unix.NFTA_VERDICT_CHAIN {
			return nl.BytesToString(a.Value)
		}
	}
	return ""
}

// change adds what differs to a transaction, and returns how much that is. A table without our frame is made again.
func (have policyState) change(c *nftables.Conn, table *nftables.Table, want policyRules) (n int, err error) {
	if have.exists && !have.framed {
		c.DelTable(table)
		have = policyState{}
	}
	if !have.exists {
		c.AddTable(table)
		n++
	}
	m, err := have.fill(c, table, want)
	return n + m, err
}

// fill is change of a table that exists.
func (have policyState) fill(c *nftables.Conn, table *nftables.Table, want policyRules) (n int, err error) {
	for _, name := range slices.Sorted(maps.Keys(want.sets)) {
		s := want.sets[name]
		before, exists := have.sets[name]
		if !exists {
			n++
			if err := c.AddSet(&nftables.Set{Table: table, Name: name, KeyType: s.key, Interval: s.interval,
				Dynamic: s.stays > 0, HasTimeout: s.stays > 0, Timeout: s.stays, Size: s.most}, nil); err != nil {
				return n, fmt.Errorf("nftables set %s: %w", name, err)
			}
		}
		if s.stays > 0 {
			continue
		}
		m, err := changeElements(c, table, name, before, s.elementSet)
		if n += m; err != nil {
			return n, err
		}
	}
	if !have.framed {
		for _, f := range frame() {
			if have.behind {
				f.priority++ // so that drops are counted in the first one
			}
			c.AddChain(f.in(table))
		}
		for name := range want.maps {
			if err := c.AddSet(&nftables.Set{Table: table, Name: name, IsMap: true, KeyType: addressType(strings.HasSuffix(name, "6")), DataType: nftables.TypeVerdict}, nil); err != nil {
				return n, fmt.Errorf("nftables map %s: %w", name, err)
			}
		}
		_, print := framed()
		for _, f := range frame() {
			for i, w := range f.rules {
				r := &nftables.Rule{Table: table, Chain: f.in(table), Exprs: w}
				if i == 0 && f.name == chainForward {
					r.UserData = print
				}
				c.AddRule(r)
			}
		}
	}
	for name, rules := range want.chains {
		of := &nftables.Chain{Name: name, Table: table}
		if have.chains[name] == len(rules) { // each has one at least
			continue
		}
		n++
		if _, exists := have.chains[name]; exists {
			c.FlushChain(of)
		} else {
			c.AddChain(of)
		}
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: of, Exprs: r.words, UserData: comment(r.policy)})
		}
	}
	for name, places := range want.maps {
		m, err := changePlaces(c, table, name, have.maps[name], places)
		if n += m; err != nil {
			return n, err
		}
	}
	for name := range have.chains {
		if _, wanted := want.chains[name]; !wanted {
			n++
			c.FlushChain(&nftables.Chain{Name: name, Table: table}) // Linux before 4.15 deletes empty ones only
			c.DelChain(&nftables.Chain{Name: name, Table: table})
		}
	}
	for name := range have.sets {
		if _, wanted := want.sets[name]; !wanted {
			n++
			c.DelSet(&nftables.Set{Table: table, Name: name})
		}
	}
	return n, nil
}

// comment is a rule's, as nft prints it; a longer one is cut.
func comment(policy string) []byte {
	if policy == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, policy[:min(len(policy), 120)])
}

// changeElements makes a set hold want.
func changeElements(c *nftables.Conn, table *nftables.Table, set string, have, want elementSet) (n int, err error) {
	of := &nftables.Set{Table: table, Name: set}
	list := func(all, but elementSet, do func(*nftables.Set, []nftables.SetElement) error) {
		var out []nftables.SetElement
		for e := range all {
			if !but[e] {
				out = append(out, nftables.SetElement{Key: []byte(e.key), IntervalEnd: e.end})
			}
		}
		slices.SortFunc(out, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
		n += len(out)
		for part := range slices.Chunk(out, batch) {
			err = errors.Join(err, do(of, part))
		}
	}
	list(have, want, c.SetDeleteElements)
	list(want, have, c.SetAddElements)
	return n, err
}

// changePlaces makes a map hold want. An element's chain cannot be changed: it is deleted and added.
func changePlaces(c *nftables.Conn, table *nftables.Table, name string, have, want map[string]string) (n int, err error) {
	of := &nftables.Set{Table: table, Name: name, IsMap: true}
	var gone, come []nftables.SetElement
	for key, chain := range have {
		if want[key] != chain {
			gone = append(gone, nftables.SetElement{Key: []byte(key)})
		}
	}
	for key, chain := range want {
		if have[key] != chain {
			come = append(come, nftables.SetElement{Key: []byte(key), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}})
		}
	}
	for part := range slices.Chunk(gone, batch) {
		err = errors.Join(err, c.SetDeleteElements(of, part))
	}
	for part := range slices.Chunk(come, batch) {
		err = errors.Join(err, c.SetAddElements(of, part))
	}
	return len(gone) + len(come), err
}

// generation is the kernel's count of transactions.
func generation() (uint32, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	all, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil || len(all) == 0 {
		return 0, errors.Join(errors.New("nftables generation"), err)
	}
	attrs, err := nl.ParseRouteAttr(all[0][nl.SizeofNfgenmsg:])
	for _, a := range attrs {
		if a.Attr.Type == unix.NFTA_GEN_ID {
			return binaryutil.BigEndian.Uint32(a.Value), nil
		}
	}
	return 0, errors.Join(errors.New("nftables generation: no ID"), err)
}
