package iptables

import (
	"fmt"
	"os/exec"
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
		b := fw.find.mode(v6, modeLegacy)
		if b == nil || !legacyInUse(v6) {
			continue
		}
		if text, err := exec.Command(b.path+"-save", "-c").Output(); err == nil {
			out.parse(v6, string(text))
		}
	}
	return out
}

// parse reads what iptables-save prints with counters: `:FORWARD DROP [3:120]`, `[1:40] -A FORWARD -s 10.1.0.0/16 -j DROP`.
func (c Counts) parse(v6 bool, text string) {
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		name, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(rest, "DROP ["):
			c.add(counted{v6, table, name[1:], name[1:] + ", policy drop"}, rest[len("DROP "):])
		case strings.HasPrefix(line, "["):
			chain, rule, _ := strings.Cut(strings.TrimPrefix(rest, "-A "), " ")
			if words := strings.Fields(rule); slices.Contains([]string{"DROP", "REJECT"}, option(words, "-j")) {
				c.add(counted{v6, table, chain, ruleText(chain, rule)}, name)
			}
		}
	}
}

// add takes [PACKETS:BYTES]. A rule may stand in a chain twice.
func (c Counts) add(rule counted, counters string) {
	packets, _, _ := strings.Cut(strings.Trim(counters, "[]"), ":")
	n, _ := strconv.ParseUint(packets, 10, 64)
	c[rule] += n
}

// Since lists the rules of a table that have dropped packets since before, and whether any of them is another program's.
func (c Counts) Since(before Counts, v6 bool, table string) (rules []string, foreign bool) {
	for rule, n := range c {
		if rule.v6 == v6 && rule.table == table && n > before[rule] {
			rules = append(rules, rule.text)
			foreign = foreign || !strings.HasPrefix(rule.chain, Prefix)
		}
	}
	slices.Sort(rules)
	return rules, foreign
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

// option is the value of an option of a rule, "" without it.
func option(words []string, name string) string {
	if i := slices.Index(words, name); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// LegacyRules is what legacy iptables holds, as text: the kernel announces no changes of it. It is "" where there are no such
// tables.
func (fw *Firewall) LegacyRules() string {
	var out strings.Builder
	for _, v6 := range []bool{false, true} {
		b := fw.find.mode(v6, modeLegacy)
		if b == nil || !legacyInUse(v6) {
			continue
		}
		text, _ := exec.Command(b.path + "-save").Output()
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") { // the time
				rule, _, _ := strings.Cut(line, " [") // policies have counters
				out.WriteString(rule + "\n")
			}
		}
	}
	return out.String()
}
