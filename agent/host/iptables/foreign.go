package iptables

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"edgemesh/agent/host/plan"
)

// RuleText is what iptables-nft prints of a rule that is number-th of its chain, as an operator finds it; other where iptables
// does not print it. A number below 0 means the chain's policy.
func (fw *Firewall) RuleText(v6 bool, table, chain string, number int, other string) string {
	b := fw.find.mode(v6, modeNFT)
	if number < 0 || b == nil {
		return other
	}
	have, err := b.save()
	if rules := have.chains[key{table, chain}]; err == nil && number < len(rules) {
		return ruleText(chain, rules[number])
	}
	return other
}

func ruleText(chain, rule string) string { return "`-A " + chain + " " + rule + "`" }

// Command is the program that lists tables of a mode.
func Command(v6, legacy bool) string {
	name := map[bool]string{false: "iptables-", true: "ip6tables-"}[v6]
	if legacy {
		return name + modeLegacy
	}
	return name + modeNFT
}

// Counts are how many packets each rule of legacy iptables has dropped so far.
type Counts map[counted]uint64

// counted is a rule that drops or rejects.
type counted struct {
	v6                 bool
	table, chain, text string
}

// Counts reads them. There are none where the kernel has no legacy tables.
func (fw *Firewall) Counts() Counts {
	out := Counts{}
	for _, v6 := range []bool{false, true} {
		if !legacyInUse(v6) {
			continue // before mode, which starts a program
		}
		b := fw.find.mode(v6, modeLegacy)
		if b == nil {
			continue
		}
		if text, err := run(programTime, "", b.path+"-save", "-c"); err == nil {
			out.parse(v6, text)
		}
	}
	return out
}

// dropping matches, in what iptables-save prints with counters, a table's name; `:FORWARD DROP [3:120]`; and
// `[1:40] -A FORWARD -s 10.1.0.0/16 -j DROP`. It also matches REJECT.
var dropping = regexp.MustCompile(`(?m)^\*(\w+)$|^:(\S+) DROP \[(\d+):|^\[(\d+):\d+\] -A (\S+) (.*-j (?:DROP|REJECT)(?: .*)?)$`)

// parse adds what iptables-save prints.
func (c Counts) parse(v6 bool, text string) {
	rule := counted{v6: v6}
	for _, m := range dropping.FindAllStringSubmatch(text, -1) {
		packets := m[3] + m[4]
		switch {
		case m[1] != "":
			rule.table = m[1]
			continue
		case m[2] != "":
			rule.chain, rule.text = m[2], m[2]+", policy drop"
		default:
			rule.chain, rule.text = m[5], ruleText(m[5], strings.TrimSpace(m[6]))
		}
		n, _ := strconv.ParseUint(packets, 10, 64)
		c[rule] += n // a rule may stand in a chain twice
	}
}

// builtin are the chains that belong to one hook each.
var builtin = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} //nolint:gochecknoglobals // a constant

// Since lists the rules of a table that have dropped packets of a hook since before, and whether all of them are other
// programs'. Chains that are not built in may belong to each hook.
func (c Counts) Since(before Counts, v6 bool, table, hook string) (rules []string, foreign bool) {
	foreign = true
	for rule, n := range c {
		if rule.v6 == v6 && rule.table == table && n > before[rule] && (rule.chain == hook || !slices.Contains(builtin, rule.chain)) {
			rules = append(rules, rule.text)
			foreign = foreign && !strings.HasPrefix(rule.chain, Prefix)
		}
	}
	slices.Sort(rules)
	return rules, foreign && len(rules) > 0
}

// hooked are the jumps to chains of the CNI project's plugins, which their CHECK does not look at.
var hooked = []struct{ plugin, table, hook, chain string }{ //nolint:gochecknoglobals // a constant
	{"portmap", "nat", "PREROUTING", "CNI-HOSTPORT-DNAT"}, {"portmap", "nat", "OUTPUT", "CNI-HOSTPORT-DNAT"},
	{"portmap", "nat", "POSTROUTING", "CNI-HOSTPORT-MASQ"}, {"firewall", "filter", "FORWARD", "CNI-FORWARD"},
}

// Unhooked are the plugins with a chain that nothing jumps to, in whichever backend. It is safe for concurrent use.
func (fw *Firewall) Unhooked() (plugins []string) {
	for _, b := range append(fw.find.modes(false), fw.find.modes(true)...) {
		have, err := b.save()
		if err != nil {
			continue
		}
		for _, h := range hooked {
			_, made := have.chains[key{h.table, h.chain}]
			if made && !slices.ContainsFunc(have.chains[key{h.table, h.hook}], func(rule string) bool { return jumpsTo(rule, h.chain) }) {
				plugins = append(plugins, h.plugin)
			}
		}
	}
	return plugins
}

// OpenInput is how the host's firewall lets in what comes from the pod ranges.
func (fw *Firewall) OpenInput(f plan.Family) string {
	how := "iptables -I INPUT -s %s -j ACCEPT"
	if f.V6 {
		how = "ip6" + how[2:]
	}
	for _, b := range append(fw.used(), fw.find.otherBackends(fw.used()...)...) {
		if have, err := b.save(); err == nil && b.v6 == f.V6 {
			if _, ufw := have.chains[key{"filter", "ufw-user-input"}]; ufw {
				how = "ufw allow from %s"
			}
		}
	}
	var each []string
	for _, r := range f.Ranges {
		each = append(each, fmt.Sprintf(how, r))
	}
	return strings.Join(each, "; ")
}

// LegacyRules is a hash of what legacy iptables holds: the kernel announces no changes of it. It is the same wherever there are
// no such tables.
func (fw *Firewall) LegacyRules() [sha256.Size]byte {
	var out [2]ruleset
	for i, v6 := range []bool{false, true} {
		if !legacyInUse(v6) {
			continue
		}
		if b := fw.find.mode(v6, modeLegacy); b != nil {
			out[i], _ = b.save() // an empty set then, as without tables
		}
	}
	return sha256.Sum256(fmt.Append(nil, out))
}
