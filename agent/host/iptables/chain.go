package iptables

import "strings"

// chain is one firewall chain of ours. Rules are written the way iptables-save
// prints them, so that comparing is comparing text.
type chain struct {
	table string
	name  string
	hook  string // the built-in chain that jumps here; "" when another of ours does
	only  string // matches the packets that jump; "" for all
	rules []string
	last  bool // the jump stands behind the host's own rules, not before them
}

// jump is the rule in the built-in chain.
func (c chain) jump() string { return strings.TrimSpace(c.only + " -j " + c.name) }

func (rs ruleset) jumpInPlace(c chain) bool {
	hook, at := rs.chains[key{c.table, c.hook}], jumpPosition(rs, c)
	return at < len(hook) && hook[at] == c.jump() && c.jumps(hook) == 1
}

// jumpPosition returns the index at which the jump to c belongs in its hook: where to insert it, or
// its own index if it is in place. Chains that drop come first. Chains that accept come
// last, so that they overrule the chain's policy, but no rule of the host or of network
// policy, except one that rejects everything.
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

// jumps counts the rules of hook that jump to c, including those of other versions.
func (c chain) jumps(hook []string) int {
	n := 0
	for _, rule := range hook {
		if jumpsTo(rule, c.name) {
			n++
		}
	}
	return n
}

func jumpsTo(rule, chain string) bool {
	return strings.HasSuffix(rule, "-j "+chain) || strings.HasSuffix(rule, "-g "+chain)
}
