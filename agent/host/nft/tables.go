package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/cni/closing"
)

// Tables compares and changes our tables. It is not safe for concurrent use, except for Stand.
type Tables struct {
	log   *slog.Logger
	noNAT bool // the kernel has no NAT in nftables

	mu        sync.Mutex // a leaf
	guard     guard      // as compared last
	uncounted bool       // the kernel does not count packets per element of a set

	unlogged atomic.Bool // it has no NFLOG for forwarded probes
}

// New returns Tables.
func New(log *slog.Logger) *Tables { return &Tables{log: log} }

// Uncounted reports whether the kernel refused to count packets per peer.
func (t *Tables) Uncounted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.uncounted
}

// Unlogged reports whether it refused to log forwarded probes. It does not wait.
func (t *Tables) Unlogged() bool { return t.unlogged.Load() }

// DiffGuard compares the table, except the sets' elements. It logs once that a kernel cannot
// count packets per element.
func (t *Tables) DiffGuard(s plan.State) ([]plan.Change, error) {
	g := guardOf(s)
	t.mu.Lock()
	t.guard = g
	t.mu.Unlock()
	if !g.sources() {
		return nil, nil
	}
	_, same, err := g.table().inPlace() // an error also if nf_tables is gone: iptables must keep checking sources
	if err != nil || same {
		return nil, err
	}
	return []plan.Change{{What: MakeGuard, Do: func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.make(g)
	}}}, nil
}

// MakeGuard is what is done where the guard's table is not in place.
const MakeGuard = "make nftables table inet " + guardTable

// make writes the guard's table. The caller holds mu.
func (t *Tables) make(g guard) error {
	err := g.make()
	if err == nil {
		return nil
	}
	for _, lacks := range []struct{ count, log bool }{{true, false}, {false, true}, {true, true}} {
		less := g
		less.counted, less.unlogged = g.counted && !lacks.count, g.unlogged || lacks.log
		if less.counted == g.counted && less.unlogged == g.unlogged || less.make() != nil {
			continue
		}
		t.guard = less
		if lacks.count && g.counted {
			t.uncounted = true
			t.log.Info("the kernel cannot count packets per peer, so idle LAN paths are probed as often as used ones; Linux 5.12 or later can", "err", err)
		}
		if lacks.log && !g.unlogged {
			t.unlogged.Store(true)
			t.log.Info("the kernel cannot log forwarded probes (modprobe nft_log nfnetlink_log), so LAN paths are proved by gateway probes alone", "err", err)
		}
		return nil
	}
	return err
}

// Stand makes the guard's table again, without elements in its sets, if another program has deleted it or its rules, and reports whether it
// did. What it drops passes until then.
func (t *Tables) Stand() (made bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.guard.wanted() {
		return false, nil
	}
	if stands, err := t.guard.table().stands(!t.guard.sources()); stands || err != nil { // iptables may have to check sources first
		return false, err
	}
	return true, t.make(t.guard)
}

// Forget makes Stand do nothing until the guard is compared again.
func (t *Tables) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.guard = guard{}
}

// make writes the table and keeps the elements of its sets.
func (g guard) make() error {
	have, err := g.senders()
	if err != nil {
		return err
	}
	err = g.table().make(have)
	if errors.Is(err, unix.ENOENT) && g.port != 0 {
		return fmt.Errorf("%w (where the kernel lacks nft_fib: modprobe nft_fib_inet, or lan.vxlan: false)", err)
	}
	return err
}

// DiffUplinks compares the table of a host without LAN paths, once iptables checks sources again: it drops what goes
// between uplinks, or is removed.
func DiffUplinks(s plan.State) ([]plan.Change, error) {
	g := guardOf(s)
	if g.sources() || !g.wanted() && Missing() != "" {
		return nil, nil
	}
	spare := g.table()
	exists, same, err := spare.inPlace()
	switch {
	case err != nil:
		return nil, err
	case g.wanted() && !same:
		return []plan.Change{{What: MakeGuard, Do: func() error { return spare.make(nil) }}}, nil
	case g.wanted() || !exists:
		return nil, nil
	}
	return []plan.Change{{What: "delete nftables table inet " + guardTable, Do: spare.remove}}, nil
}

// DiffNAT compares the table. It logs once that a kernel cannot hold it: only
// kube-proxy's nftables mode needs the table, and it needs the same kernel features.
func (t *Tables) DiffNAT(s plan.State) ([]plan.Change, error) {
	if Missing() != "" || t.noNAT {
		return nil, nil
	}
	want := natOf(s)
	exists, same, err := want.inPlace()
	switch {
	case err != nil:
		return nil, err
	case natWanted(s) && same, !natWanted(s) && !exists:
		return nil, nil
	case !natWanted(s):
		return []plan.Change{{What: "delete nftables table inet " + natTable, Do: want.remove}}, nil
	}
	return []plan.Change{{What: "make nftables table inet " + natTable, Do: func() error {
		err := want.make(nil)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
			t.noNAT = true
			t.log.Warn("the kernel has no nat in nftables: with kube-proxy's nftables mode, Services are unreachable from this node over native paths (modprobe nft_nat nft_chain_nat)", "err", err)
			return nil
		}
		if err == nil {
			forgetTranslated(s, t.log)
		}
		return err
	}}}, nil
}

// CheckNames looks for foreign tables under the names that s needs. The error wraps ErrTaken.
func CheckNames(s plan.State) error {
	var errs []error
	if guardOf(s).wanted() {
		errs = append(errs, guardOf(s).table().check())
	}
	if natWanted(s) && Missing() == "" {
		errs = append(errs, natOf(s).check())
	}
	return errors.Join(errs...)
}

// Cleanup deletes our tables.
func Cleanup() error {
	policies, copied := table{name: closing.Table, marks: []string{chainMid}}, table{name: heldTable.Name, marks: []string{chainMid}}
	return errors.Join(guard{}.table().remove(), natOf(plan.State{}).remove(), policies.remove(), copied.remove(), removeTrial(), tableOf(Mark{}, onward).remove())
}
