package nft

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// table is one of our tables, of family inet, as it is wanted.
type table struct {
	name   string
	sets   map[string]setType
	vmap   []nftables.SetElement // elements of a map from interface names to verdicts
	links  []string              // elements of a set of interfaces' names
	chains []chain
	print  []byte   // names the content; the first rule carries it
	marks  []string // chains by which a table is known to be ours
}

// Senders are elements of the guard's sets.
type Senders map[sender]bool

type sender struct{ set, key string }

// batch is how many elements go into one message, whose attributes have at most 64 KiB.
const batch = 500

// inBatches calls f with the elements of each set of a table, some at a time.
func inBatches(table string, all []sender, f func(*nftables.Set, []nftables.SetElement) error) error {
	t := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	of := map[string][]nftables.SetElement{}
	for _, e := range all {
		of[e.set] = append(of[e.set], nftables.SetElement{Key: []byte(e.key)})
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

// The names of a table's vmap and of its set of interfaces.
const (
	vmapName  = "inputs"
	linksName = "uplinks"
)

// setType is what a set holds.
type setType struct {
	key     nftables.SetDatatype
	counted bool          // packets are counted per element
	stays   time.Duration // of elements that rules add; 0: only we add some
}

// size bounds what rules add.
func (k setType) size() uint32 {
	if k.stays > 0 {
		return 256
	}
	return 0
}

// fingerprint returns the print of what a table is made from. version must change with the code
// that makes the table.
func fingerprint(version int, content any) []byte {
	h := sha256.Sum256(fmt.Appendf(nil, "%d %v", version, content))
	return h[:8]
}

// inPlace reports whether the kernel has a table of this name, and whether it is the wanted one,
// apart from the elements of its sets.
func (t table) inPlace() (exists, same bool, err error) {
	c, done, err := reading()
	if err != nil {
		return false, false, err
	}
	defer done()
	have, err := find(c, t.name)
	if have == nil || err != nil {
		return false, false, err
	}
	sets, err := c.GetSets(have)
	if err != nil {
		return true, false, fmt.Errorf("list nftables sets: %w", err)
	}
	lacks := func(name string) bool {
		return !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == name })
	}
	for name := range t.sets {
		if lacks(name) {
			return true, false, nil
		}
	}
	for name, n := range map[string]int{vmapName: len(t.vmap), linksName: len(t.links)} {
		switch {
		case n == 0:
			continue
		case lacks(name):
			return true, false, nil
		}
		elements, err := c.GetSetElements(&nftables.Set{Table: have, Name: name})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return true, false, fmt.Errorf("list nftables set %s: %w", name, err)
		}
		if len(elements) != n {
			return true, false, nil
		}
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return true, false, fmt.Errorf("list nftables chains: %w", err)
	}
	for i, want := range t.chains {
		at := slices.IndexFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == t.name && c.Name == want.name })
		if at < 0 {
			return true, false, nil
		}
		chain := chains[at]
		rules, err := c.GetRules(have, chain)
		if err != nil {
			return true, false, fmt.Errorf("list nftables rules: %w", err)
		}
		if len(rules) != len(want.rules) || i == 0 && !bytes.Equal(rules[0].UserData, t.print) {
			return true, false, nil
		}
	}
	return true, true, nil
}

// stands reports whether the table is there with its first rule, or with whatever rules if any will do. That is two requests; inPlace
// makes one for each set and chain.
func (t table) stands(anyRules bool) (bool, error) {
	c := conn()
	have, err := find(c, t.name)
	if have == nil || err != nil || anyRules {
		return have != nil, err
	}
	rules, err := c.GetRules(have, &nftables.Chain{Name: t.chains[0].name, Table: have})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("list nftables rules: %w", err)
	}
	return len(rules) > 0 && bytes.Equal(rules[0].UserData, t.print), nil
}

// make writes the whole table in one transaction, with these elements in its sets, in place of one of its name.
func (t table) make(have Senders) error {
	c := conn()
	of := &nftables.Table{Name: t.name, Family: nftables.TableFamilyINet}
	c.AddTable(of) // another program may delete it at any moment, and what is not there cannot be deleted
	c.DelTable(of)
	c.AddTable(of)
	for name, kind := range t.sets {
		if err := c.AddSet(&nftables.Set{Table: of, Name: name, KeyType: kind.key, Counter: kind.counted,
			Dynamic: kind.stays > 0, HasTimeout: kind.stays > 0, Timeout: kind.stays, Size: kind.size()}, nil); err != nil {
			return fmt.Errorf("nftables set %s: %w", name, err)
		}
	}
	if err := inBatches(t.name, slices.Collect(maps.Keys(have)), c.SetAddElements); err != nil {
		return fmt.Errorf("nftables sets: %w", err)
	}
	for _, want := range t.chains {
		c.AddChain(want.in(of))
	}
	if len(t.vmap) > 0 { // it needs the chains of its verdicts, and rules need it
		from := &nftables.Set{Table: of, Name: vmapName, IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.NativeEndian}
		if err := c.AddSet(from, t.vmap); err != nil {
			return fmt.Errorf("nftables map %s: %w", vmapName, err)
		}
	}
	if len(t.links) > 0 {
		var elements []nftables.SetElement
		for _, name := range t.links {
			elements = append(elements, nftables.SetElement{Key: bytesOf(name)})
		}
		if err := c.AddSet(&nftables.Set{Table: of, Name: linksName, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian}, elements); err != nil {
			return fmt.Errorf("nftables set %s: %w", linksName, err)
		}
	}
	for i, want := range t.chains {
		for j, exprs := range want.rules {
			r := &nftables.Rule{Table: of, Chain: want.in(of), Exprs: exprs}
			if i+j == 0 {
				r.UserData = t.print
			}
			c.AddRule(r)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", t.name, err)
	}
	return nil
}

// in converts the chain for the library.
func (c chain) in(t *nftables.Table) *nftables.Chain {
	out := &nftables.Chain{Name: c.name, Table: t}
	if c.kind != "" {
		out.Type, out.Hooknum, out.Priority = c.kind, c.hook, &c.priority
	}
	return out
}

// conn returns a connection that opens a socket per transaction, so that making it cannot fail.
func conn() *nftables.Conn {
	c, _ := nftables.New(nftables.WithSockOptions(func(s *netlink.Conn) error {
		_ = errors.Join(s.SetWriteBuffer(buffer), s.SetReadBuffer(buffer)) // without the right to it, the default
		return nil
	}))
	return c
}

// buffer is what one transaction needs that has the elements of thousands of peers, bytes; the default holds some six thousand. All its rules
// are acknowledged before the first acknowledgement is read.
const buffer = 8 << 20

// reading returns a connection for many requests, with one socket, which done closes.
func reading() (c *nftables.Conn, done func(), err error) {
	if c, err = nftables.New(nftables.AsLasting()); err != nil {
		return nil, nil, fmt.Errorf("open a socket for nftables: %w", err)
	}
	return c, func() { _ = c.CloseLasting() }, nil
}

// present: this kernel has nf_tables. It keeps them while there is a table.
var present atomic.Bool //nolint:gochecknoglobals // of the kernel, of which there is one

// Missing returns the reason why there can be no guard, "" when there can.
func Missing() string {
	if present.Load() {
		return ""
	}
	if _, err := conn().ListTablesOfFamily(nftables.TableFamilyINet); err != nil {
		return fmt.Sprintf("the kernel has no nf_tables to check who sends with pods' addresses (modprobe nf_tables): %v", err)
	}
	present.Store(true)
	return ""
}

// find returns a table of family inet, nil when there is none.
func find(c *nftables.Conn, name string) (*nftables.Table, error) {
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	if i := slices.IndexFunc(all, func(t *nftables.Table) bool { return t.Name == name }); i >= 0 {
		return all[i], nil
	}
	return nil, nil
}

// isOurs reports whether a table with one of our names is ours: it has one of our chains, or no
// chain at all.
func (t table) isOurs(c *nftables.Conn) bool {
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false
	}
	foreign := false
	for _, chain := range all {
		if chain.Table.Name == t.name {
			if slices.Contains(t.marks, chain.Name) {
				return true
			}
			foreign = true
		}
	}
	return !foreign
}

// check fails with ErrTaken if a foreign table has this name.
func (t table) check() error {
	c := conn()
	have, err := find(c, t.name)
	if err == nil && have != nil && !t.isOurs(c) {
		err = fmt.Errorf("nftables table inet %s is not ours: %w", t.name, ErrTaken)
	}
	return err
}

// remove deletes the table, if it exists and is ours.
func (t table) remove() error {
	c := conn()
	have, err := find(c, t.name)
	if have == nil || err != nil || !t.isOurs(c) {
		return nil
	}
	c.DelTable(have)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", t.name, err)
	}
	return nil
}

// bulk is a connection for transactions of some MB, and as many answers.
func bulk() *nftables.Conn {
	c, _ := nftables.New(nftables.WithSockOptions(bigBuffers))
	return c
}

func bigBuffers(s *netlink.Conn) error {
	return errors.Join(s.SetWriteBuffer(64<<20), s.SetReadBuffer(64<<20))
}

var (
	// ErrTaken means that an nftables table of another program has one of our names.
	ErrTaken = errors.New("another program's nftables table has this name; rename or delete it (nft delete table)")
	// ErrNotCounted means that the kernel does not count packets per peer.
	ErrNotCounted = errors.New("the kernel does not count packets per element of a set (Linux 5.12 and later do)")
)
