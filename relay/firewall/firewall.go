// Package firewall finds the rule of a host's firewall that closes a port to strangers, in what iptables-save and
// `nft list ruleset` print: it sends nothing and changes nothing. ufw and firewalld write such rules. It knows rules that name a
// port, and what drops all that is left; it takes other conditions for ones that do not concern strangers.
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
	V6     bool
}

var (
	named = regexp.MustCompile(`(?m)^(.*\b(tcp|udp|th)\b.*dports? (\{[^}]*\}|\S+).*(?i:\b(accept|drop|reject)\b).*)$`)
	// rest drops what no rule accepts: in iptables' INPUT, and in a chain of nftables that begins with a hook.
	rest = regexp.MustCompile(`(?m)^(:INPUT DROP|-A INPUT (?:-m comment --comment (?:"[^"]*"|\S+) )?-j (?:DROP|REJECT)|\s*type filter hook input .*policy drop;|\s*(?:counter packets \d+ bytes \d+ )?(?:drop|reject)\b).*$`)
)

// Closing says which rule closes the port, and how to open it; both are "" if none does. saved is what iptables-save, or
// ip6tables-save, prints, ruleset what `nft list ruleset` does.
func (p Port) Closing(saved, ruleset string) (by, remedy string) {
	iptables, family := "iptables", "ip "
	if p.V6 {
		iptables, family = "ip6tables", "ip6 "
	}
	_, filter, shown := strings.Cut(saved, "*filter\n")
	filter, _, _ = strings.Cut(filter, "COMMIT")
	if by = p.closing(filter, filter); by != "" {
		if strings.Contains(filter, "-j ufw") {
			return iptables + " " + by, fmt.Sprintf("ufw allow %d/%s", p.Number, p.Proto)
		}
		return iptables + " " + by, fmt.Sprintf("%s -I INPUT -p %s --dport %d -j ACCEPT, and the same where this host keeps its rules", iptables, p.Proto, p.Number)
	}
	for _, table := range strings.Split("\n"+ruleset, "\ntable ")[1:] {
		name, _, _ := strings.Cut(table, " {")
		if !strings.HasPrefix(name, family) && !strings.HasPrefix(name, "inet ") || shown && name == family+"filter" { // iptables' own
			continue
		}
		for _, chain := range strings.Split(table, "\tchain ")[1:] {
			if !strings.Contains(chain, "hook input") {
				continue
			}
			if by = p.closing(table, chain); by != "" {
				if name == "inet firewalld" {
					return "nftables table " + name + ": " + by, fmt.Sprintf("firewall-cmd --permanent --add-port=%d/%s && firewall-cmd --reload", p.Number, p.Proto)
				}
				return "nftables table " + name + ": " + by, fmt.Sprintf("a rule `%s dport %d accept` there, where this host keeps its rules", p.Proto, p.Number)
			}
		}
	}
	return "", ""
}

// closing looks for the port in all rules, and for what drops the rest in those of one chain.
func (p Port) closing(rules, chain string) string {
	for _, m := range named.FindAllStringSubmatch(rules, -1) {
		if (m[2] == p.Proto || m[2] == "th") && !strings.Contains(m[1], "-s ") && !strings.Contains(m[1], "saddr ") && slices.ContainsFunc(strings.Split(strings.Trim(m[3], "{ }"), ","), p.within) {
			if strings.EqualFold(m[4], "accept") {
				return ""
			}
			return strings.TrimSpace(m[1])
		}
	}
	if found := rest.FindString(chain); found != "" {
		return strings.TrimSpace(found) + ", and no rule accepts the port"
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
