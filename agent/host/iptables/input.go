package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"edgemesh/agent/host/plan"
)

// ClosedInput reports that INPUT drops or rejects what no rule there accepts, and that none accepts what comes from other
// nodes, so that nobody reaches this node by its mesh address; and what to do about it. "" when that is not so. Our own
// rules do not open what the operator has closed.
func (fw *Firewall) ClosedInput(s plan.State) (detail, remedy string) {
	if fw.v4 == nil {
		return "", ""
	}
	for _, b := range append(fw.used(), fw.find.otherBackends(fw.used()...)...) {
		f := s.Each[0]
		if b.v6 {
			f = s.Each[1]
		}
		have, err := b.save()
		if err != nil || !f.Gateway.IsValid() || !have.closedInput(f) {
			continue
		}
		how := "iptables -I INPUT -s %s -j ACCEPT"
		if b.v6 {
			how = "ip6" + how[2:]
		}
		if _, ufw := have.chains[key{"filter", "ufw-user-input"}]; ufw {
			how = "ufw allow from %s"
		}
		var each []string
		for _, r := range f.Ranges {
			each = append(each, fmt.Sprintf(how, r))
		}
		return fmt.Sprintf("the host's %s firewall (%s INPUT) drops what its rules do not accept, so other nodes may not reach %s: kubectl logs and exec, Services, scrapes",
			b.version(), b.mode, f.Gateway), strings.Join(each, "; ")
	}
	return "", ""
}

// closedInput reports whether INPUT ends with a refusal and accepts nothing from other nodes before.
func (rs ruleset) closedInput(f plan.Family) bool {
	input := key{"filter", "INPUT"}
	closed := rs.policy[input] == "DROP"
	for _, rule := range rs.chains[input] {
		if withoutComment(rule) == "-j ACCEPT" {
			return false
		}
		closed = closed || rs.rejectsAll(input.table, rule, maxChainDepth)
	}
	return closed && !rs.letsIn(input, f, maxChainDepth)
}

// letsIn reports whether a chain, or one that it jumps to, accepts the pod ranges, the TUN, or kubelet's port.
func (rs ruleset) letsIn(k key, f plan.Family, depth int) bool {
	return slices.ContainsFunc(rs.chains[k], func(rule string) bool {
		words := strings.Fields(rule)
		target := option(words, "-j") + option(words, "-g")
		if target != "ACCEPT" {
			return depth > 0 && !strings.HasPrefix(target, Prefix) && rs.letsIn(key{k.table, target}, f, depth-1)
		}
		if from, err := netip.ParsePrefix(option(words, "-s")); err == nil {
			return slices.ContainsFunc(f.Ranges, func(r netip.Prefix) bool { return from.Bits() <= r.Bits() && from.Contains(r.Addr()) })
		}
		name, starts := strings.CutSuffix(option(words, "-i"), "+")
		return name == plan.TUNName || starts && strings.HasPrefix(plan.TUNName, name) ||
			slices.Contains(strings.Split(option(words, "--dport")+option(words, "--dports"), ","), plan.KubeletPort)
	})
}

// option is the value of an option of a rule, "" without it.
func option(words []string, name string) string {
	if i := slices.Index(words, name); i >= 0 && i+1 < len(words) && (i == 0 || words[i-1] != "!") {
		return words[i+1]
	}
	return ""
}
