package iptables

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"edgemesh/agent/host/plan"
)

// Firewall compares and changes our chains through the backend (legacy or nft)
// that the host itself uses. It is not safe for concurrent use, except for Programs.
type Firewall struct {
	log    *slog.Logger
	find   Find
	choice sync.Mutex // held while v4 and v6 are chosen
	v4, v6 *backend   // v6 nil: not usable, noV6 says why
	noV6   string
	swept  bool // the other backend has no chains of ours

	// printed maps a chain's rules as written here to what this iptables prints, where
	// that differs.
	printed map[string]string
	ahead   map[string]int // how often a jump of ours was put before a rule, by both
}

// New returns a Firewall that finds programs by find, nil for LookPath.
func New(log *slog.Logger, find Find) *Firewall {
	if find == nil {
		find = LookPath
	}
	return &Firewall{log: log, find: find, printed: map[string]string{}, ahead: map[string]int{}}
}

// Open chooses the backend, once: otherwise changes of foreign rules could switch it back and
// forth. noIPv6 is the reason why IPv6 cannot be used, "" when it can. The error wraps
// ErrNoIPTables.
func (fw *Firewall) Open() (noIPv6 string, err error) {
	if err := fw.choose(); err != nil {
		return "", err
	}
	return fw.noV6, nil
}

func (fw *Firewall) choose() error {
	fw.choice.Lock()
	defer fw.choice.Unlock()
	if fw.v4 != nil {
		return nil
	}
	v4, v6, noV6, err := fw.find.chooseBackends()
	if err != nil {
		return err
	}
	fw.v4, fw.v6, fw.noV6 = v4, v6, noV6
	fw.log.Debug("firewall backend chosen", "ipv4", v4.path, "mode", v4.mode)
	return nil
}

// LoadBridgeFilter makes the kernel load br_netfilter, by a rule that matches physdev: physdev_mt_check in the kernel's xt_physdev.c
// requests the module, so that no privilege to load modules is needed. The rule is deleted immediately.
func (fw *Firewall) LoadBridgeFilter() error {
	const table, chain = "filter", Prefix + "LOAD"
	ipt := fw.v4.ipt
	if err := ipt.ClearChain(table, chain); err != nil {
		return err //nolint:wrapcheck // it has the command
	}
	err := ipt.Append(table, chain, "-m", "physdev", "--physdev-is-bridged")
	return errors.Join(err, ipt.ClearAndDeleteChain(table, chain))
}

// Legacy reports whether our chains are in legacy tables, whose changes the kernel does not
// announce.
func (fw *Firewall) Legacy() bool { return fw.v4 != nil && fw.v4.mode == modeLegacy }

// Count says how many chains and rules s has.
func Count(s plan.State) string {
	chains, rules := 0, 0
	for i := range s.Each {
		for _, c := range chainsOf(familyOf(s, i)) {
			chains, rules = chains+1, rules+len(c.rules)
		}
	}
	return fmt.Sprintf("%d iptables chains with %d rules present", chains, rules)
}

// familyOf is the part of a family that is not package nft's.
func familyOf(s plan.State, i int) plan.Family {
	f := s.Each[i]
	if !s.NoTables {
		f.Uplinks, f.Outside = plan.Uplinks{}, false
	}
	return f
}

// used lists the backends in use, IPv4's first.
func (fw *Firewall) used() []*backend {
	if fw.v6 == nil {
		return []*backend{fw.v4}
	}
	return []*backend{fw.v4, fw.v6}
}

// Diff compares all chains of both families. It removes other chains of ours, such as those of
// an older version.
func (fw *Firewall) Diff(s plan.State) ([]plan.Change, error) {
	var out []plan.Change
	for i, b := range fw.used() {
		have, err := b.save()
		if err != nil {
			return nil, err
		}
		want := chainsOf(familyOf(s, i))
		var changes []plan.Change
		toFill := slices.DeleteFunc(slices.Clone(want), func(c chain) bool { return fw.holds(have, c) })
		for _, c := range want {
			changes = append(changes, fw.diffChain(b, have, c, toFill)...)
		}
		changes = append(changes, surplus(b, have, want)...)
		if b.v6 {
			changes = asIPv6(changes)
		}
		out = append(out, changes...)
	}
	if !fw.swept {
		rest := fw.sweep()
		fw.swept = len(rest) == 0
		out = append(out, rest...)
	}
	return out, nil
}

// errIPv6 is a failure of ip6tables alone.
type errIPv6 struct{ error }

func (e errIPv6) Unwrap() error { return e.error }

func asIPv6(changes []plan.Change) []plan.Change {
	for i, c := range changes {
		changes[i].Do = func() error {
			if err := c.Do(); err != nil {
				return errIPv6{err}
			}
			return nil
		}
	}
	return changes
}

// GiveUpIPv6 reports whether err shows that this kernel cannot hold our IPv6 chains (it
// has no nat table for ip6tables, for example); from then on IPv6 is left alone. A lock held by another program is
// not such an error: the next attempt may get it.
func (fw *Firewall) GiveUpIPv6(err error) bool {
	var e errIPv6
	if fw.v6 == nil || !errors.As(err, &e) {
		return false
	}
	const resourceProblem = 4 // iptables' exit status
	var status interface {    // of iptables, or iptables-restore
		error
		ExitCode() int
	}
	if errors.As(err, &status) && status.ExitCode() == resourceProblem {
		return false
	}
	fw.noV6 = "ip6tables does not work: " + e.Error()
	if have, err := fw.v6.save(); err == nil {
		for _, c := range surplus(fw.v6, have, nil) {
			if err := c.Do(); err != nil {
				fw.log.Warn("could not remove the IPv6 firewall chains", "err", err)
			}
		}
	}
	fw.v6 = nil
	return true
}

// sweep removes what an earlier run left in the backend that is not in use.
func (fw *Firewall) sweep() []plan.Change {
	var out []plan.Change
	for _, b := range fw.find.otherBackends(fw.used()...) {
		have, err := b.save()
		if err != nil {
			continue // the kernel does not support it, so it has no chains
		}
		out = append(out, surplus(b, have, nil)...)
	}
	return out
}

// holds reports whether a chain has its rules, as written here or as this iptables prints them.
func (fw *Firewall) holds(have ruleset, c chain) bool {
	rules, made := have.chains[key{c.table, c.name}]
	is, text := strings.Join(rules, "\n"), c.text()
	printed, known := fw.printed[text]
	return made && (is == text || known && is == printed)
}

// diffChain compares one chain, which may be one of those to be filled, and its jump. After each change the chain still drops
// everything that it should.
func (fw *Firewall) diffChain(b *backend, have ruleset, c chain, toFill []chain) []plan.Change {
	var out []plan.Change
	if i := slices.IndexFunc(toFill, func(o chain) bool { return o.table == c.table && o.name == c.name }); i >= 0 {
		out = append(out, plan.Change{What: fmt.Sprintf("fill %s chain %s/%s", b.version(), c.table, c.name), Do: func() error {
			if err := fill(b, c); err != nil || i < len(toFill)-1 {
				return err
			}
			return fw.learn(b, toFill)
		}})
	}
	if c.hook == "" || have.jumpInPlace(c) {
		return out
	}
	what, ahead := fmt.Sprintf("jump from %s %s/%s to %s", b.version(), c.table, c.hook, c.name), have.ahead(c)
	if c.yields && fw.yields(what, have, c.table, ahead) {
		return out
	}
	text := what
	if len(ahead) > 0 {
		text += ", behind `" + ahead[0] + "`"
	}
	return append(out, plan.Change{What: text, Do: func() error {
		for _, rule := range ahead {
			if fw.ahead[what+rule]++; c.yields && fw.ahead[what+rule] == yieldAfter {
				fw.log.Info("another program takes the first place of a chain again and again, and keeps it: ours stays behind it", "rule", rule, "jump", what)
			}
		}
		// An earlier change may have moved the rules.
		return b.again(func(now ruleset) error { return placeJump(b, now, c) })
	}})
}

// yieldAfter is how often the first place among jumps is taken back from a program that wants it, too.
const yieldAfter = 5

// yields reports whether all rules before a jump were before it that often. One that lets nothing pass is not obeyed.
func (fw *Firewall) yields(jump string, have ruleset, table string, ahead []string) bool {
	return len(ahead) > 0 && !slices.ContainsFunc(ahead, func(rule string) bool {
		return fw.ahead[jump+rule] < yieldAfter || have.rejectsAll(table, rule, maxChainDepth)
	})
}

// learn remembers how this iptables prints chains that were just filled.
func (fw *Firewall) learn(b *backend, filled []chain) error {
	have, err := b.save()
	if err != nil {
		return err
	}
	for _, c := range filled {
		rules := have.chains[key{c.table, c.name}]
		if len(rules) != len(c.rules) {
			return fmt.Errorf("chain %s/%s has %d rules instead of %d: another program changed it meanwhile", c.table, c.name, len(rules), len(c.rules))
		}
		if is := strings.Join(rules, "\n"); is != c.text() {
			fw.printed[c.text()] = is
		}
	}
	return nil
}

// surplus removes chains of ours that are not wanted, with every rule that
// jumps to them.
func surplus(b *backend, have ruleset, want []chain) []plan.Change {
	var gone []key
	for _, k := range have.order {
		ours := strings.HasPrefix(k.chain, Prefix)
		if ours && !slices.ContainsFunc(want, func(c chain) bool { return k == key{c.table, c.name} }) {
			gone = append(gone, k)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return []plan.Change{{What: fmt.Sprintf("remove %d %s chains", len(gone), b.version()), Do: func() error {
		return b.again(func(now ruleset) error {
			return removeChains(b, now, slices.DeleteFunc(slices.Clone(gone), func(k key) bool {
				_, there := now.chains[k]
				return !there
			}))
		})
	}}}
}

// Remove deletes our chains in every backend.
func (fw *Firewall) Remove() error {
	_, err := fw.Open()
	if errors.Is(err, ErrNoIPTables) {
		return nil // so there is nothing of ours
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range append(fw.used(), fw.find.otherBackends(fw.used()...)...) {
		have, err := b.save()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, c := range surplus(b, have, nil) {
			errs = append(errs, c.Do())
		}
		errs = append(errs, b.dropEmpty(have))
	}
	fw.v4, fw.v6, fw.swept = nil, nil, false
	return errors.Join(errs...)
}

// Mixed reports that both backends have foreign rules, and what to do about it; "" when they have
// not. Packets meet both, while the operator sees only one.
func (fw *Firewall) Mixed() (detail, remedy string) {
	if fw.v4 == nil {
		return "", ""
	}
	count := func(b *backend) int {
		rs, err := b.save()
		if err != nil {
			return 0
		}
		return rs.foreign()
	}
	chosen, other, mode := 0, 0, ""
	for _, b := range fw.used() {
		chosen += count(b)
	}
	for _, b := range fw.find.otherBackends(fw.used()...) {
		if b.mode != fw.v4.mode {
			other, mode = other+count(b), b.mode
		}
	}
	if chosen == 0 || other == 0 {
		return "", ""
	}
	return fmt.Sprintf("mixed backends: %d foreign iptables rules in %s, which holds our rules too, and %d in %s; each packet must pass both, and our ACCEPT in %s does not overrule a DROP in %s",
			chosen, fw.v4.mode, other, mode, fw.v4.mode, mode),
		fmt.Sprintf("let all programs use one backend (update-alternatives --set iptables /usr/sbin/iptables-%s, then restart them), and delete the rules left in %s",
			fw.v4.mode, mode)
}
