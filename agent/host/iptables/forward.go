package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/agent/host/verdict"
)

// forwarded are the chains that a forwarded packet passes, those of nat aside, which drop nothing.
var forwarded = []key{ //nolint:gochecknoglobals // a constant
	{"raw", "PREROUTING"}, {"mangle", "PREROUTING"}, {"mangle", "FORWARD"}, {"filter", "FORWARD"}, {"security", "FORWARD"}, {"mangle", "POSTROUTING"},
}

// CheckForward looks for rules of others, in either backend, that drop packets between pods: our accept stands behind them, or
// in the other backend. sure: it drops all of them. It returns "" in detail if there are none.
func (fw *Firewall) CheckForward(s plan.State) (detail, remedy string, sure bool) {
	if fw.v4 == nil {
		return "", "", false
	}
	var worst verdict.Cut
	for _, b := range append(fw.used(), fw.find.otherBackends(fw.used()...)...) {
		f := s.Each[0]
		if b.v6 {
			f = s.Each[1]
		}
		have, err := b.save()
		if err != nil {
			continue // Diff says so
		}
		for _, base := range forwarded {
			if _, there := have.chains[base]; !there {
				continue
			}
			chains, named := have.translated(base)
			packets := verdict.Between(f, named)
			if base.chain == "PREROUTING" {
				packets = verdict.Entering(packets, base.table == "raw")
			}
			cut := chains.Worst(base.chain, packets)
			if !cut.WorseThan(worst) {
				continue
			}
			worst = cut
			command := "iptables-" + b.mode
			if b.v6 {
				command = "ip6tables-" + b.mode
			}
			detail = fmt.Sprintf("%s -t %s drops forwarded packets: %s", command, base.table, cut)
			remedy = fmt.Sprintf("see `%s -t %s -S`: delete that rule, or accept packets from and to the pod ranges before it", command, base.table)
		}
	}
	return detail, remedy, worst.Sure
}

// translated are the chains of a base chain's table, and the prefixes that their rules name.
func (rs ruleset) translated(base key) (verdict.Chains, []netip.Prefix) {
	out, named := verdict.Chains{}, []netip.Prefix(nil)
	for k, rules := range rs.chains {
		if k.table != base.table || strings.HasPrefix(k.chain, Prefix) {
			continue
		}
		c := verdict.Chain{Name: k.chain, Drops: rs.policy[k] == "DROP"}
		for _, text := range rules {
			r := parseRule(text)
			c.Rules = append(c.Rules, verdict.Rule{Text: "`-A " + k.chain + " " + text + "`", Ask: r.ask})
			for _, p := range []netip.Prefix{r.src, r.dst} {
				if p.IsValid() {
					named = append(named, p)
				}
			}
		}
		out[k.chain] = c
	}
	slices.SortFunc(named, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	return out, slices.Compact(named)
}

// parsed is a rule. Its tests that are about addresses and interfaces, about ports and protocols, and others are
// kept apart: they say what its author meant.
type parsed struct {
	src, dst        netip.Prefix
	places, classes []func(verdict.Packet) verdict.Match
	others          []func(verdict.Packet) verdict.Match
	does            verdict.Action
}

// ask implements verdict.Rule's.
func (r parsed) ask(p verdict.Packet) (verdict.Match, verdict.Action, bool) {
	all := func(tests []func(verdict.Packet) verdict.Match) verdict.Match {
		least := verdict.Yes
		for _, t := range tests {
			least = min(least, t(p))
		}
		return least
	}
	place, class, other := all(r.places), all(r.classes), all(r.others)
	narrows := class != verdict.Yes || other == verdict.Perhaps
	meant := r.does.Kind == verdict.Accept && len(r.places) > 0 && place == verdict.Yes && other != verdict.No && narrows
	return min(place, class, other), r.does, meant
}

// parseRule reads a rule as iptables-save prints it, without "-A CHAIN".
func parseRule(text string) (r parsed) {
	words := split(text)
	not := false
	for i := 0; i < len(words); i++ {
		arg := ""
		if i+1 < len(words) {
			arg = words[i+1]
		}
		test := func(into *[]func(verdict.Packet) verdict.Match, t func(verdict.Packet) verdict.Match) {
			if not {
				plain := t
				t = func(p verdict.Packet) verdict.Match { return verdict.Yes - plain(p) }
			}
			*into, not = append(*into, t), false
			i++
		}
		switch words[i] {
		case "!":
			not = true
		case "-s", "-d":
			prefix, err := netip.ParsePrefix(arg)
			if err != nil {
				prefix = netip.Prefix{}
			}
			src := words[i] == "-s"
			if src {
				r.src = prefix
			} else {
				r.dst = prefix
			}
			test(&r.places, func(p verdict.Packet) verdict.Match {
				a := p.Dst
				if src {
					a = p.Src
				}
				return either(prefix.IsValid(), prefix.Contains(a))
			})
		case "-i", "-o":
			in := words[i] == "-i"
			test(&r.places, func(p verdict.Packet) verdict.Match {
				name := p.Out
				if in {
					name = p.In
				}
				start, wild := strings.CutSuffix(arg, "+")
				return either(name != "", name == arg || wild && strings.HasPrefix(name, start))
			})
		case "-p":
			test(&r.classes, func(p verdict.Packet) verdict.Match { return either(true, protocol(arg, p.Proto)) })
		case "--dport", "--dports":
			test(&r.classes, func(p verdict.Packet) verdict.Match { return either(p.Port != 0, hasPort(arg, p.Port)) })
		case "--ctstate", "--state":
			test(&r.others, func(p verdict.Packet) verdict.Match {
				return either(!p.Raw, slices.Contains(strings.Split(arg, ","), "NEW"))
			})
		case "--ctdir":
			test(&r.others, func(p verdict.Packet) verdict.Match { return either(!p.Raw, arg == "ORIGINAL") })
		case "--dst-type":
			test(&r.others, func(verdict.Packet) verdict.Match { return either(true, arg == "UNICAST") })
		case "--mark": // kube-proxy's is on what it translates; others' are not known
			test(&r.others, func(verdict.Packet) verdict.Match { return either(arg == kubeMark, false) })
		case "-m":
			if !slices.Contains([]string{"comment", "conntrack", "state", "tcp", "udp", "icmp", "icmp6", "multiport", "addrtype", "mark"}, arg) {
				r.others = append(r.others, perhaps)
			}
			i++
		case "--comment":
			i++
		case "-j", "-g":
			r.does = action(words[i], arg)
			return r
		default:
			r.others, not = append(r.others, perhaps), false
		}
	}
	return r
}

// kubeMark is KubeMark as iptables-save prints it.
var kubeMark = fmt.Sprintf("%#x/%#x", plan.KubeMark, plan.KubeMark) //nolint:gochecknoglobals // a constant

func perhaps(verdict.Packet) verdict.Match { return verdict.Perhaps }

func either(known, is bool) verdict.Match {
	switch {
	case !known:
		return verdict.Perhaps
	case is:
		return verdict.Yes
	}
	return verdict.No
}

// action is what a target does. Our own chains drop what they should; ACCEPT is the one that accepts.
func action(option, target string) verdict.Action {
	switch {
	case target == "DROP" || target == "REJECT":
		return verdict.Action{Kind: verdict.Drop}
	case target == "ACCEPT" || target == chainAccept:
		return verdict.Action{Kind: verdict.Accept}
	case target == "RETURN":
		return verdict.Action{Kind: verdict.Return}
	case strings.HasPrefix(target, Prefix):
		return verdict.Action{}
	case option == "-g":
		return verdict.Action{Kind: verdict.Goto, Chain: target}
	}
	return verdict.Action{Kind: verdict.Jump, Chain: target} // or one that only marks or logs, which is no chain
}

func protocol(name string, is uint8) bool {
	numbers := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP, "ipv6-icmp": unix.IPPROTO_ICMPV6, "icmpv6": unix.IPPROTO_ICMPV6}
	if n, err := strconv.Atoi(name); err == nil {
		return n == 0 || n == int(is)
	}
	return name == "all" || numbers[name] == is
}

// hasPort reports whether a list has a port: 80,443,8000:8100.
func hasPort(list string, port uint16) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(part string) bool {
		from, to, interval := strings.Cut(part, ":")
		if !interval {
			to = from
		}
		a, _ := strconv.Atoi(from)
		b, err := strconv.Atoi(to)
		if err != nil {
			b = 65535
		}
		return a <= int(port) && int(port) <= b
	})
}

// split cuts a rule into words; those in quotes may have blanks.
func split(text string) (words []string) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		if quoted, ok := strings.CutPrefix(text, `"`); ok {
			end := 0
			for end < len(quoted) && quoted[end] != '"' {
				if quoted[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end, len(quoted))
			words, text = append(words, quoted[:end]), strings.TrimPrefix(quoted[end:], `"`)
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		words, text = append(words, word), rest
	}
	return words
}
