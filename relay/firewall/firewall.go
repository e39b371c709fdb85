// Package firewall finds the rule of a host's firewall that closes a port to strangers, in what iptables-save and
// `nft list ruleset` print: it sends nothing and changes nothing. ufw and firewalld write such rules. It knows what rules say of a
// port, and those without a condition; others, such as sets of addresses, it takes for ones that do not concern strangers.
package firewall

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Port is one that strangers are to reach.
type Port struct {
	Proto  string // tcp or udp
	Number int
	In     string // the interface to the Internet
	V6     bool
}

// Closed is a port that does not seem to be reached.
type Closed struct {
	Port   Port
	By     string // the rule, or the policy
	Remedy string
}

func (c Closed) String() string {
	return fmt.Sprintf("the host's firewall closes %d/%s for IPv%d: %s", c.Port.Number, c.Port.Proto, map[bool]int{false: 4, true: 6}[c.Port.V6], c.By)
}

// table has rules, with the chains that they are in, and what a packet meets first.
type table struct {
	name   string // iptables, ip6tables, or nftables' with family
	rules  [][2]string
	policy map[string]string // of the chains of the hook input
}

var (
	ports = regexp.MustCompile(`\b(tcp|udp|th)\b.* (?:--)?(?:dports?|destination-ports) (\{[^}]*\}|\S+)`)
	does  = regexp.MustCompile(`(?i)(?:^|[ :])(accept|drop|reject)\b`)
	// always matches a rule without a condition.
	always = regexp.MustCompile(`(?i)^(?:counter packets \d+ bytes \d+ |-m comment --comment (?:"[^"]*"|\S+) )*(?:-j )?(accept|drop|reject)\b`)
	source = regexp.MustCompile(`(?:^| )(?:-s|ip6? saddr) `)
	block  = regexp.MustCompile(`^(table|chain|set|map|flowtable|counter|quota|limit|ct \w+) (.*?) ?\{(?: #.*)?$`)
	base   = regexp.MustCompile(`^type filter hook input .*policy (\w+);`)
)

// closes says which rule of the table closes a port, "" if none does.
func (t table) closes(p Port) string {
	text := func(r [2]string) string { return t.name + ", chain " + r[0] + ": " + r[1] }
	for _, r := range t.rules {
		m, v := ports.FindStringSubmatch(r[1]), does.FindStringSubmatch(r[1])
		if m == nil || v == nil || source.MatchString(r[1]) || m[1] != p.Proto && m[1] != "th" || !slices.ContainsFunc(strings.Split(strings.Trim(m[2], "{ }"), ","), p.within) {
			continue
		}
		if strings.EqualFold(v[1], "accept") {
			return ""
		}
		return text(r)
	}
	by := ""
	for chain, policy := range t.policy {
		end := policy
		if end == "drop" {
			by = t.name + ", chain " + chain + ": its policy is drop"
		}
		for _, r := range t.rules {
			here := strings.NewReplacer("-i "+p.In+" ", "", `iifname "`+p.In+`" `, "").Replace(r[1])
			if m := always.FindStringSubmatch(here); m != nil && r[0] == chain {
				if end = strings.ToLower(m[1]); end != "accept" {
					by = text(r)
				}
				break
			}
		}
		if end != "accept" {
			return by + ", and no rule accepts this port"
		}
	}
	return ""
}

// within reports whether the port is in N, N-M or N:M.
func (p Port) within(span string) bool {
	from, to, more := strings.Cut(strings.ReplaceAll(strings.TrimSpace(span), ":", "-"), "-")
	if !more {
		to = from
	}
	a, err1 := strconv.Atoi(from)
	b, err2 := strconv.Atoi(to)
	return err1 == nil && err2 == nil && a <= p.Number && p.Number <= b
}

func (t table) remedy(p Port) string {
	has := func(chain string) bool {
		return slices.ContainsFunc(t.rules, func(r [2]string) bool { return strings.Contains(r[1], chain) })
	}
	family, name, _ := strings.Cut(t.name, " ")
	switch {
	case has("ufw-") || has("ufw6-"):
		return fmt.Sprintf("ufw allow %d/%s", p.Number, p.Proto)
	case name == "firewalld":
		return fmt.Sprintf("firewall-cmd --permanent --add-port=%d/%s && firewall-cmd --reload", p.Number, p.Proto)
	case name == "":
		return fmt.Sprintf("%s -I INPUT -p %s --dport %d -j ACCEPT, and the same where this host keeps its rules", family, p.Proto, p.Number)
	}
	return fmt.Sprintf("a rule `%s dport %d accept` in table %s, where this host keeps its rules", p.Proto, p.Number, t.name)
}

// Closing lists those of the ports that a rule closes. saved is what iptables-save prints, saved6 ip6tables-save, ruleset
// `nft list ruleset`; each may be empty.
func Closing(all []Port, saved, saved6, ruleset string) (out []Closed) {
	for _, p := range all {
		family, tables := "ip", []table{saves("iptables", saved)}
		if p.V6 {
			family, tables[0] = "ip6", saves("ip6tables", saved6)
		}
		for _, t := range lists(ruleset) {
			of, name, _ := strings.Cut(t.name, " ")
			if of == "inet" || of == family && (name != "filter" || len(tables[0].policy) == 0) { // iptables-save shows its own
				tables = append(tables, t)
			}
		}
		for _, t := range tables {
			if by := t.closes(p); by != "" {
				out = append(out, Closed{p, by, t.remedy(p)})
				break
			}
		}
	}
	return out
}

// saves reads iptables' table filter.
func saves(name, saved string) table {
	t := table{name: name, policy: map[string]string{}}
	_, text, _ := strings.Cut(saved, "*filter\n")
	text, _, _ = strings.Cut(text, "COMMIT")
	for line := range strings.Lines(text) {
		switch w := strings.SplitN(strings.TrimSpace(line), " ", 3); {
		case w[0] == ":INPUT" && len(w) > 1:
			t.policy["INPUT"] = strings.ToLower(w[1])
		case w[0] == "-A" && len(w) > 2:
			t.rules = append(t.rules, [2]string{w[1], w[2]})
		}
	}
	return t
}

// lists reads nftables' tables.
func lists(ruleset string) (all []table) {
	chain, rule := "", ""
	for line := range strings.Lines(ruleset) {
		line = strings.TrimSpace(line)
		if m := block.FindStringSubmatch(line); m != nil && rule == "" {
			if chain = ""; m[1] == "table" {
				all = append(all, table{name: m[2], policy: map[string]string{}})
			} else if m[1] == "chain" {
				chain = m[2]
			}
			continue
		}
		if chain == "" || line == "}" && rule == "" {
			continue
		}
		rule = strings.TrimSpace(rule + " " + line)
		if strings.Count(rule, "{") > strings.Count(rule, "}") { // a set of several lines
			continue
		}
		t := &all[len(all)-1]
		if m := base.FindStringSubmatch(rule); m != nil {
			t.policy[chain] = m[1]
		} else {
			t.rules = append(t.rules, [2]string{chain, rule})
		}
		rule = ""
	}
	return all
}
