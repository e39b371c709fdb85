package host

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// firewall compares and changes our chains through the backend (legacy or nft)
// that the host itself uses.
type firewall struct {
	log    *slog.Logger
	look   lookup
	v4, v6 *backend // v6 nil: not usable, noV6 says why
	noV6   string
	swept  bool // the other backend was cleaned of ours

	// printed maps a chain as wanted to how this iptables prints it, for
	// versions that print otherwise than rules are written here.
	printed map[string]string
}

// open chooses the backend once: later the host's own rules might tip the
// balance to and fro.
func (fw *firewall) open() error {
	if fw.v4 != nil {
		return nil
	}
	v4, v6, noV6, err := fw.look.chooseBackends()
	if err != nil {
		return err
	}
	fw.v4, fw.v6, fw.noV6 = v4, v6, noV6
	fw.log.Debug("firewall backend chosen", "ipv4", v4.path, "mode", v4.mode)
	return nil
}

// of returns the backend of a family, nil when there is none.
func (fw *firewall) of(f family) *backend {
	if f.v6 {
		return fw.v6
	}
	return fw.v4
}

// diff compares all chains of both families. What the backend holds of ours
// beyond them (of an older version, or of a range that is gone) goes.
func (fw *firewall) diff(fs families) ([]change, error) {
	var out []change
	for _, f := range fs.held() {
		b := fw.of(f)
		if b == nil {
			continue
		}
		have, err := b.save()
		if err != nil {
			return nil, err
		}
		want := f.chains()
		var changes []change
		for _, c := range want {
			changes = append(changes, fw.diffChain(b, have, c)...)
		}
		changes = append(changes, surplus(b, have, want)...)
		if f.v6 {
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

func asIPv6(changes []change) []change {
	for i, c := range changes {
		changes[i].do = func() error {
			if err := c.do(); err != nil {
				return errIPv6{err}
			}
			return nil
		}
	}
	return changes
}

// giveUpIPv6 reports whether err shows that this kernel cannot hold our IPv6
// chains (no ip6tables nat, say), and leaves IPv6 alone from then on. A lock
// held by another program is no such error: the next try may get it.
func (fw *firewall) giveUpIPv6(err error) bool {
	var e errIPv6
	if fw.v6 == nil || !errors.As(err, &e) {
		return false
	}
	const resourceProblem = 4 // iptables' exit status
	var status *iptables.Error
	if errors.As(err, &status) && status.ExitStatus() == resourceProblem {
		return false
	}
	fw.noV6 = "ip6tables does not work: " + e.Error()
	if have, err := fw.v6.save(); err == nil {
		for _, c := range surplus(fw.v6, have, nil) {
			if err := c.do(); err != nil {
				fw.log.Warn("IPv6 chains are left", "err", err)
			}
		}
	}
	fw.v6 = nil
	return true
}

// sweep removes what an earlier run left in the backend that is not in use.
func (fw *firewall) sweep() []change {
	var out []change
	for _, b := range fw.look.otherBackends(fw.v4, fw.v6) {
		have, err := b.save()
		if err != nil {
			continue // the kernel does not have it, so there is nothing
		}
		out = append(out, surplus(b, have, nil)...)
	}
	return out
}

// diffChain compares one chain and its jump. Each change leaves the chain in a
// state that drops all that it should drop.
func (fw *firewall) diffChain(b *backend, have ruleset, c chain) []change {
	var out []change
	rules, made := have.chains[key{c.table, c.name}]
	text := strings.Join(c.rules, "\n")
	is := strings.Join(rules, "\n")
	printed, known := fw.printed[text]
	if !made || is != text && !(known && is == printed) {
		out = append(out, change{fmt.Sprintf("fill %s chain %s/%s", b.version(), c.table, c.name), func() error {
			if !made {
				if err := b.ipt.NewChain(c.table, c.name); err != nil {
					return err
				}
			}
			if err := fill(b, c, rules); err != nil {
				return err
			}
			return fw.learn(b, c, text)
		}})
	}
	if c.hook == "" {
		return out
	}
	if have.jumpInPlace(c) {
		return out
	}
	return append(out, change{fmt.Sprintf("jump from %s %s/%s to %s", b.version(), c.table, c.hook, c.name), func() error {
		now, err := b.save() // an earlier change may have moved the rules
		if err != nil {
			return err
		}
		return placeJump(b, now, c)
	}})
}

func (rs ruleset) jumpInPlace(c chain) bool {
	hook, at := rs.chains[key{c.table, c.hook}], jumpPosition(rs, c)
	return at < len(hook) && hook[at] == c.jump() && c.jumps(hook) == 1
}

// placeJump puts the jump to c where it belongs, then removes others.
func placeJump(b *backend, have ruleset, c chain) error {
	hook, at := have.chains[key{c.table, c.hook}], jumpPosition(have, c)
	if have.jumpInPlace(c) {
		return nil
	}
	if err := b.ipt.Insert(c.table, c.hook, at+1, strings.Fields(c.jump())...); err != nil {
		return err
	}
	// The last one goes first, so that the numbers of the others stay.
	for i := len(hook) - 1; i >= 0; i-- {
		if !jumpsTo(hook[i], c.name) {
			continue
		}
		number := i + 1
		if i >= at {
			number++
		}
		if err := b.ipt.DeleteById(c.table, c.hook, number); err != nil {
			return err
		}
	}
	return nil
}

// jumpPosition is where the jump to c belongs in its hook, as an index: the
// position to insert at, or the jump's own if it is there already. What drops
// comes first. What accepts comes last, so that it overrules a policy but no rule
// of the host or of network policy, save one that rejects everything.
func jumpPosition(have ruleset, c chain) int {
	if !c.last {
		return 0
	}
	hook := have.chains[key{c.table, c.hook}]
	end := len(hook)
	for i, rule := range hook {
		if have.rejectsAll(c.table, rule, maxChainDepth) {
			end = i
			break
		}
	}
	if end > 0 && hook[end-1] == c.jump() {
		return end - 1
	}
	return end
}

// maxChainDepth bounds how far rejectsAll follows jumps.
const maxChainDepth = 4

// rejectsAll reports whether rule, which may jump to other chains, lets no
// packet pass: `-j REJECT` at the end of FORWARD, as some distributions ship it.
func (rs ruleset) rejectsAll(table, rule string, depth int) bool {
	target, unconditional := strings.CutPrefix(withoutComment(rule), "-j ")
	if !unconditional || depth == 0 {
		return false
	}
	target, _, _ = strings.Cut(target, " ")
	if target == "DROP" || target == "REJECT" {
		return true
	}
	for _, r := range rs.chains[key{table, target}] {
		if plain := withoutComment(r); plain == "-j RETURN" || plain == "-j ACCEPT" {
			return false
		}
		if rs.rejectsAll(table, r, depth-1) {
			return true
		}
	}
	return false
}

// withoutComment cuts a leading comment match, which matches everything.
func withoutComment(rule string) string {
	rest, ok := strings.CutPrefix(rule, "-m comment --comment ")
	if !ok {
		return rule
	}
	if quoted, ok := strings.CutPrefix(rest, `"`); ok {
		_, rest, _ = strings.Cut(quoted, `" `)
		return rest
	}
	_, rest, _ = strings.Cut(rest, " ")
	return rest
}

// jumps counts the rules of hook that jump to c, those of other versions, too.
func (c chain) jumps(hook []string) int {
	n := 0
	for _, rule := range hook {
		if jumpsTo(rule, c.name) {
			n++
		}
	}
	return n
}

// fill turns the rules a chain has into the wanted ones. New ones are inserted
// in front, in order; then the old rest goes from its end: there is no moment
// without either.
func fill(b *backend, c chain, have []string) error {
	same := 0
	for same < len(have) && same < len(c.rules) && have[same] == c.rules[same] {
		same++
	}
	for i := same; i < len(c.rules); i++ {
		if err := b.ipt.Insert(c.table, c.name, i+1, strings.Fields(c.rules[i])...); err != nil {
			return err
		}
	}
	for n := len(c.rules) + len(have) - same; n > len(c.rules); n-- {
		if err := b.ipt.DeleteById(c.table, c.name, n); err != nil {
			return err
		}
	}
	return nil
}

// learn keeps how this iptables prints a chain that was just filled.
func (fw *firewall) learn(b *backend, c chain, text string) error {
	have, err := b.save()
	if err != nil {
		return err
	}
	rules := have.chains[key{c.table, c.name}]
	if len(rules) != len(c.rules) {
		return fmt.Errorf("the chain has %d rules instead of %d: another program changed it meanwhile", len(rules), len(c.rules))
	}
	if is := strings.Join(rules, "\n"); is != text {
		fw.printed[text] = is
	}
	return nil
}

// surplus removes chains of ours that are not wanted, with every rule that
// jumps to them.
func surplus(b *backend, have ruleset, want []chain) []change {
	var gone []key
	for _, k := range have.order {
		ours := strings.HasPrefix(k.chain, ChainPrefix)
		if ours && !slices.ContainsFunc(want, func(c chain) bool { return k == key{c.table, c.name} }) {
			gone = append(gone, k)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return []change{{fmt.Sprintf("remove %d %s chains", len(gone), b.version()), func() error {
		now, err := b.save() // earlier changes may have moved the rules
		if err != nil {
			return err
		}
		return removeChains(b, now, gone)
	}}}
}

// removeChains deletes the rules that jump to chains, then their content, then
// them.
func removeChains(b *backend, have ruleset, gone []key) error {
	for _, k := range have.order {
		rules := have.chains[k]
		for i := len(rules) - 1; i >= 0; i-- {
			if slices.ContainsFunc(gone, func(g key) bool { return g.table == k.table && jumpsTo(rules[i], g.chain) }) {
				if err := b.ipt.DeleteById(k.table, k.chain, i+1); err != nil {
					return err
				}
			}
		}
	}
	for _, k := range gone {
		if err := b.ipt.ClearAndDeleteChain(k.table, k.chain); err != nil {
			return err
		}
	}
	return nil
}

func jumpsTo(rule, chain string) bool {
	return strings.HasSuffix(rule, "-j "+chain) || strings.HasSuffix(rule, "-g "+chain)
}

// remove takes all of ours out of every backend there is.
func (fw *firewall) remove() error {
	err := fw.open()
	if errors.Is(err, ErrNoIPTables) {
		return nil // then we never made anything
	}
	if err != nil {
		return err
	}
	var errs []error
	all := []*backend{fw.v4}
	if fw.v6 != nil {
		all = append(all, fw.v6)
	}
	for _, b := range append(all, fw.look.otherBackends(fw.v4, fw.v6)...) {
		have, err := b.save()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, c := range surplus(b, have, nil) {
			errs = append(errs, c.do())
		}
		errs = append(errs, b.dropEmpty(have))
	}
	fw.v4, fw.v6, fw.swept = nil, nil, false
	return errors.Join(errs...)
}
