package iptables

import "strings"

// Prefix starts the name of each of our chains.
const Prefix = "EDGEMESH-"

// key names a chain.
type key struct{ table, chain string }

// ruleset is what iptables-save prints: rules per chain as text, without
// "-A CHAIN ".
type ruleset struct {
	order  []key // as printed
	chains map[key][]string
	policy map[key]string // "-" for chains that are not built in
}

func parseSave(text string) ruleset {
	rs := ruleset{chains: map[key][]string{}, policy: map[key]string{}}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			name, rest, _ := strings.Cut(line[1:], " ")
			policy, _, _ := strings.Cut(rest, " ")
			k := key{table, name}
			rs.order = append(rs.order, k)
			rs.chains[k] = nil
			rs.policy[k] = policy
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			k := key{table, name}
			rs.chains[k] = append(rs.chains[k], rule)
		}
	}
	return rs
}

// hasHint reports whether kubelet left its hint for the backend it uses.
func (rs ruleset) hasHint() bool {
	_, hint := rs.chains[key{"mangle", "KUBE-IPTABLES-HINT"}]
	_, canary := rs.chains[key{"mangle", "KUBE-KUBELET-CANARY"}]
	return hint || canary
}

// foreign counts the rules that are not ours.
func (rs ruleset) foreign() int {
	n := 0
	for k, rules := range rs.chains {
		if strings.HasPrefix(k.chain, Prefix) {
			continue
		}
		for _, r := range rules {
			if !strings.Contains(r, "-j "+Prefix) {
				n++
			}
		}
	}
	return n
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
