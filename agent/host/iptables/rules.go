// Package iptables compares and changes our chains, through the backend (legacy or nft) that
// the host itself uses.
//
//	rules.go     our chains, their rules (where a rule is added), and where the jumps to them belong
//	access.go    rules about what pods may not reach
//	save.go      what iptables-save prints
//	foreign.go   the host's own rules: their text, what they dropped, how to open them
//	backend.go   one iptables binary: reads, fills and removes chains
//	choose.go    which binaries there are, and which of them the host uses
//	firewall.go  Firewall, which compares
package iptables

import (
	"fmt"
	"slices"
	"strings"

	"edgemesh/agent/host/plan"
)

// Names of our chains.
const (
	chainSource  = Prefix + "SOURCE"  // raw: who may send with which source, where there is no guard
	chainRange   = Prefix + "RANGE"   // raw: who may send with a source of the cluster
	chainForward = Prefix + "FORWARD" // mangle: what is not forwarded
	chainAccept  = Prefix + "ACCEPT"  // filter: what is forwarded if no other rule objects
	chainOutput  = Prefix + "OUTPUT"  // mangle: no tunnel inside the tunnel
	chainMSS     = Prefix + "MSS"     // mangle: MSS clamp
	chainInside  = Prefix + "INSIDE"  // nat: packets to the cluster's ranges
	chainNAT     = Prefix + "NAT"     // nat: packets that leave
	chainInput   = Prefix + "INPUT"   // mangle: what does not reach the host
	chainProbes  = Prefix + "PROBES"  // filter: probes and VXLAN reach it, whatever the host's policy
	chainHost    = Prefix + "HOST"    // mangle: who reaches the ports of nodes, where not everyone does
	chainDeny    = Prefix + "DENY"    // mangle: what pods do not reach through this node
	chainUplinks = Prefix + "UPLINKS" // mangle: what comes from an uplink, where there is no nf_tables
	chainBetween = Prefix + "BETWEEN" // mangle: what goes from one uplink to another
	chainOutside = Prefix + "OUTSIDE" // mangle: what would leave for the pod ranges, where there is no nf_tables
)

// chainsOf lists the chains of one family in the order in which they are made. This is
// where a rule is added: as a line of one of the functions below, written as
// iptables-save prints it. Words in braces are expand's. What drops is in tables that pass before table filter, where
// programs contend for the first place and accept what their own rules let pass; what accepts has to be in filter.
func chainsOf(f plan.Family) []chain {
	if !f.Wanted {
		return nil
	}
	var out []chain
	if !f.Keep && !f.LAN.On {
		out = append(out, chain{table: "raw", name: chainRange, rules: rangeRules(f)})
	}
	if !f.LAN.On { // else the guard of package nft checks sources
		out = append(out, chain{table: "raw", name: chainSource, hook: "PREROUTING", rules: sourceRules(f)})
	}
	if f.Access.Closed || len(f.Guests) > 0 {
		out = append(out, chain{table: "mangle", name: chainHost, rules: hostRules(f)})
	}
	if len(f.Access.Deny) > 0 {
		out = append(out, chain{table: "mangle", name: chainDeny, rules: denyRules(f)})
	}
	if f.Uplinks.Names != nil { // else package nft has them
		out = append(out, chain{table: "mangle", name: chainBetween, rules: betweenRules(f)},
			chain{table: "mangle", name: chainUplinks, rules: expand(f, "-i {uplink} -g "+chainBetween)})
	}
	out = append(out, []chain{
		{table: "mangle", name: chainForward, hook: "FORWARD", only: notFromPods(f), rules: forwardRules(f)},
		{table: "filter", name: chainAccept, hook: "FORWARD", rules: acceptRules(f), last: true},
		{table: "mangle", name: chainOutput, hook: "OUTPUT", only: ownSockets, rules: outputRules(f)},
		{table: "mangle", name: chainMSS, hook: "FORWARD", only: opens, rules: mssRules(f), anywhere: true},
		{table: "nat", name: chainInside, rules: insideRules(f)},
		{table: "nat", name: chainNAT, hook: "POSTROUTING", rules: natRules(f)},
	}...)
	if f.Outside { // else package nft has it
		out = append(out, chain{table: "mangle", name: chainOutside, hook: "POSTROUTING", rules: outsideRules(f)})
	}
	if rules := inputRules(f); len(rules) > 0 {
		out = append(out, chain{table: "mangle", name: chainInput, hook: "INPUT", rules: rules})
	}
	if rules := probeRules(f); len(rules) > 0 {
		out = append(out, chain{table: "filter", name: chainProbes, hook: "INPUT", rules: rules, yields: true})
	}
	return out
}

const (
	// known matches answers, and what the host itself translated (hostPort, NodePort).
	known = "-m conntrack --ctstate RELATED,ESTABLISHED,DNAT"
	// answers matches what belongs to connections that were opened in the other direction.
	answers = "-m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY"
	// opens matches the first packets of TCP connections.
	opens = "-p tcp -m tcp --tcp-flags SYN,RST SYN"
)

// ownSockets matches what the agent's own sockets send.
var ownSockets = fmt.Sprintf("-m mark --mark %#x/%#x", plan.Mark, plan.MarkMask)

// expand writes rules with the words in braces replaced. A line with a word that has several
// values becomes several rules, and one with a word that has none is left out: so
// the number of rules depends on that of own blocks and ranges only.
func expand(f plan.Family, lines ...string) []string {
	words := map[string][]string{
		"bridge": {plan.BridgeName}, "tun": {plan.TUNName}, "ours": {plan.LinkPrefix + "+"},
		"known": {known}, "answers": {answers}, "opens": {opens}, "kube-mark": {fmt.Sprintf("-m mark --mark %#x/%#x", plan.KubeMark, plan.KubeMark)},
		"multicast": {"224.0.0.0/4"}, "icmp": {"icmp"},
	}
	add := func(word string, value any) { words[word] = append(words[word], fmt.Sprint(value)) }
	if f.V6 {
		words["multicast"] = []string{"ff00::/8"}
		words["everyone"] = words["multicast"]
		words["unconfigured"] = []string{"fe80::/10", "::/128"}
		words["icmp"] = []string{"ipv6-icmp"}
		words["link-local"] = []string{"fe80::/10"}
		words["discovery"] = []string{"135", "136"} // neighbour solicitation and advertisement (RFC 4861, section 4)
	} else {
		words["loopback"] = []string{"127.0.0.0/8"} // IPv6's is never routed
		words["everyone"] = []string{"224.0.0.0/4", "255.255.255.255/32"}
	}
	for _, r := range f.Ranges {
		add("range", r)
	}
	for _, b := range f.Blocks {
		add("block", b)
		if !f.InRange(b) {
			add("block-outside", b)
		}
	}
	if f.Gateway.IsValid() {
		add("gateway", f.Gateway)
		add("gateway-prefix", plan.Single(f.Gateway))
	}
	if f.LAN.On {
		add("lan", "")
		add("probe-port", f.LAN.ProbePort)
	}
	if f.LAN.PodsOnly {
		add("pods-only", "")
	}
	if f.LAN.On && f.LAN.VXLAN {
		add("vxlan", plan.VXLANName)
	}
	if f.LAN.VXLANPort != 0 {
		add("vxlan-port", f.LAN.VXLANPort)
	}
	if f.Uplinks.Names != nil {
		add("between", "")
		words["uplink"], words["forwarded-before"] = f.Uplinks.Names, f.Uplinks.From
	}
	if words["guest"] = f.Guests; len(f.Guests) > 0 {
		add("guests", "")
	}
	for word, values := range accessWords(f) {
		words[word] = values
	}
	var out []string
	for _, line := range lines {
		out = append(out, substitute(line, words)...)
	}
	return out
}

// substitute replaces the words of one line, the first one first.
func substitute(line string, words map[string][]string) []string {
	before, rest, found := strings.Cut(line, "{")
	if !found {
		return []string{strings.TrimSpace(line)}
	}
	word, _, _ := strings.Cut(rest, "}")
	var out []string
	for _, value := range words[word] {
		out = append(out, substitute(before+strings.ReplaceAll("{"+rest, "{"+word+"}", value), words)...)
	}
	return out
}

// sourceRules drop sources of the cluster that arrive where they cannot come
// from: anywhere but bridge, TUN and loopback; and from the bridge everything
// that is not of an own block. (Which pod sent it, the filter on each pod's
// interface checks; what the TUN delivers, the tunnel has checked.) Each packet
// of the host passes here: what is not a pod's meets few rules.
func sourceRules(f plan.Family) []string {
	if f.Keep {
		return keepSourceRules(f)
	}
	return expand(f,
		"-d {loopback} -i {ours} -j DROP", // the host's: portmap and kube-proxy let it be routed
		"-s {range} -g "+chainRange,
		"-s {block-outside} -i {bridge} -j RETURN",
		"-s {unconfigured} -i {bridge} -j RETURN", // neighbour discovery, duplicate address detection (RFC 4862 section 5.4)
		"-i {bridge} -j DROP",
	)
}

// keepSourceRules drop sources of the cluster's ranges that come from elsewhere
// than answers to them would go: the other plugin's interfaces are not known, its
// routes are.
func keepSourceRules(f plan.Family) []string {
	return expand(f,
		"-s {range} -d {loopback} ! -i lo -j DROP", // as in sourceRules
		"-i {tun} -j RETURN",
		"-s {range} -m rpfilter -j RETURN",
		"-s {range} ! -i lo -j DROP",
	)
}

// rangeRules say where packets with a source of the cluster may come from.
func rangeRules(f plan.Family) []string {
	return expand(f,
		"-s {block} -i {bridge} -j RETURN",
		"-i {tun} -j RETURN",
		"! -i lo -j DROP",
	)
}

// notFromPods matches what forwardRules look at: what comes from pods of the bridge may go
// anywhere, as far as they are concerned, unless something is closed to pods.
func notFromPods(f plan.Family) string {
	if f.Keep || restricted(f) {
		return ""
	}
	return "! -i " + plan.BridgeName
}

// forwardRules keep the LAN out of pods and the cluster's pods off the LAN: from
// outside only answers pass, and what the host itself translated. They accept
// nothing: network policy behind them has its say.
func forwardRules(f plan.Family) []string {
	toNodes := expand(f,
		"{between}-j "+chainUplinks,
		"{deny}{pods} -j "+chainDeny,
		"{deny}-s {range} ! -i lo -j "+chainDeny, // of other nodes, whose rules have not seen what this one translates
		"-d {node} {pods} -j "+chainHost,         // here, too: a Service's translation may give a pod this node's address
		"-s {forwarded} -d {range} {forward-port} -j RETURN",
	)
	if f.Keep {
		return append(toNodes, keepForwardRules(f)...)
	}
	return append(toNodes, expand(f,
		"{restricted}-i {bridge} -j RETURN",
		"-s {range} -o {bridge} -j RETURN", // from a peer: its source was checked
		"-i {tun} -o {bridge} -j RETURN",
		"-i {tun} {known} -j RETURN", // answers to what the host translated into the cluster
		"-i {tun} -j DROP",
		"{lan}-s {range} {known} -j RETURN", // what has a source of the cluster is from a native or VXLAN peer
		"{lan}-s {range} -j DROP",
		"-o {bridge} {known} -j RETURN",
		"-o {tun} {known} -j RETURN",
		"-o {bridge} -j DROP",
		"-o {tun} -j DROP",
		"{lan}-d {range} {known} -j RETURN",
		"-d {range} -j DROP",
	)...)
}

// betweenRules drop what goes from one uplink to another, as chain between of package nft does.
func betweenRules(f plan.Family) []string {
	return expand(f,
		"-i {uplink} -o {uplink} -j RETURN",
		"-d {multicast} -j RETURN",
		"{lan}-d {range} -j RETURN",
		"-i {forwarded-before} -j RETURN",
		"-m conntrack --ctstate DNAT -j RETURN",
		"{answers} -j RETURN",
		"-o {uplink} -j DROP",
	)
}

// keepForwardRules guard the tunnel alone; what else the node forwards is the
// other plugin's.
func keepForwardRules(f plan.Family) []string {
	return expand(f,
		"-d {block} -i {tun} -j RETURN",
		"-s {block} -o {tun} -j RETURN",
		"-i {tun} {known} -j RETURN",
		"-i {tun} -j DROP",
		"-o {tun} {known} -j RETURN",
		"-o {tun} -j DROP",
	)
}

// acceptRules accept what concerns pods, whatever the host's policy, once
// forwardRules and every rule of the host and of network policy let it pass.
func acceptRules(f plan.Family) []string {
	return expand(f,
		"-i {bridge} -j ACCEPT",
		"-o {bridge} -j ACCEPT",
		"-i {tun} -j ACCEPT",
		"-o {tun} -j ACCEPT",
		"{lan}-s {range} -j ACCEPT", // translated by the host, from or to a pod on a native or VXLAN path
		"{lan}-d {range} -j ACCEPT",
	)
}

// inputRules drop what pods and peers may not send to the host, and VXLAN that is not from peers: the guard keeps theirs from being
// tracked. Pods, here and elsewhere, send none: the guard has not looked inside theirs.
func inputRules(f plan.Family) []string {
	return expand(f,
		"-i {ours} -p udp -m udp --dport {vxlan-port} -j DROP",
		"-p udp -m udp --dport {vxlan-port} -m conntrack ! --ctstate UNTRACKED -j DROP",
		"{closed}-s {range} -d {gateway-prefix} -p udp -m udp --dport {probe-port} -j RETURN",
		"{closed}-d {block} ! -i lo -j "+chainHost,
		"{closed}-d {link-local} -i {bridge} -j "+chainHost,
		"{closed}-d {everyone} {pods} -j "+chainHost, // sockets of the host that are bound to no address receive these, too
		"{deny}{pods} -j "+chainDeny,
		"{deny}-s {range} ! -i lo -j "+chainDeny,
		"{guests}-s {range} -d {block} -j RETURN",
		"{guests}-s {forwarded} -d {block} {forward-port} -j RETURN",
		"{guests}-d {block} {known} -j RETURN", // a NodePort of a Service whose endpoint is this node
		"-d {block} -i {guest} -j "+chainHost,  // the kernel takes what is for any address of the host by any link
	)
}

// probeRules let probes and VXLAN in, whatever the host's policy. No other program has the port, or there is no VXLAN.
func probeRules(f plan.Family) []string {
	return expand(f,
		"-p udp -m udp --dport {vxlan-port} -j ACCEPT",
		"-s {range} -d {gateway-prefix} -p udp -m udp --dport {probe-port} -j ACCEPT",
	)
}

// outputRules keep the agent's own sockets out of the cluster's ranges: they
// bypass our table, so that such a packet would leave by the default route.
func outputRules(f plan.Family) []string { return expand(f, "-d {range} -j DROP") }

// mssRules clamp TCP's segment size to the path on everything a pod sends or
// gets. Frames that only cross the bridge are left alone.
func mssRules(f plan.Family) []string {
	return expand(f,
		"-i {bridge} -o {bridge} -j RETURN",
		"-i {bridge} {opens} -j TCPMSS --clamp-mss-to-pmtu",
		"-o {bridge} {opens} -j TCPMSS --clamp-mss-to-pmtu",
		"-i {tun} {opens} -j TCPMSS --clamp-mss-to-pmtu",
		"-o {tun} {opens} -j TCPMSS --clamp-mss-to-pmtu",
		"-i {vxlan} {opens} -j TCPMSS --clamp-mss-to-pmtu",
		"-o {vxlan} {opens} -j TCPMSS --clamp-mss-to-pmtu",
	)
}

// outsideRules drop what would leave for the pod ranges over other programs' interfaces, as package nft's chain outside does; what
// this host's own neighbour discovery sends names addresses of the ranges and carries nothing of pods.
func outsideRules(f plan.Family) []string {
	return expand(f,
		"-o lo -j RETURN",
		"-p ipv6-icmp -m icmp6 --icmpv6-type {discovery} -m addrtype --src-type LOCAL -j RETURN",
		"-d {range} ! -o {ours} -j DROP",
	)
}

// insideRules give packets into the cluster a source of the cluster, so that
// answers find back: the node's own from another address, and those the host
// translated. Towards own pods a client's address is kept. What kube-proxy has marked
// gets the gateway first: MASQUERADE would take another address on each path, and the
// kernel forgets such connections when they move to another interface.
func insideRules(f plan.Family) []string {
	if f.Keep {
		return keepInsideRules(f)
	}
	return expand(f,
		"{pods-only}-s {block} ! -o {bridge} -j ACCEPT", // as package nft's chain inside, where the kernel cannot hold that
		"{lan}! -o {bridge} {kube-mark} -j SNAT --to-source {gateway}",
		"-s {range} -j RETURN",
		"-o {bridge} -j RETURN",
		"-o lo -j RETURN",
		"-j SNAT --to-source {gateway}",
	)
}

// keepInsideRules let pods keep their address into the tunnel, also
// where the other plugin would masquerade them: ACCEPT ends the nat table.
func keepInsideRules(f plan.Family) []string {
	return expand(f,
		"-s {block} -o {tun} -j ACCEPT",
		"! -o {tun} -j RETURN",
		"-j SNAT --to-source {gateway}",
	)
}

// natRules hide pods behind the host's address outside of the cluster. In keep mode the other
// plugin decides about that.
func natRules(f plan.Family) []string {
	out := expand(f,
		"-d {multicast} -j RETURN",
		"-d {range} -g "+chainInside, // -g: a RETURN there leaves this chain, too
	)
	if f.Keep {
		return out
	}
	return append(out, expand(f, "-s {block} ! -o {bridge} -j MASQUERADE")...)
}

// chain is one firewall chain of ours. Rules are written as iptables-save
// prints them, so that comparing is comparing text.
type chain struct {
	table string
	name  string
	hook  string // the built-in chain that jumps here; "" when another of ours does
	only  string // matches the packets that jump; "" for all
	rules []string
	last  bool // the jump stands behind the host's own rules, not before them

	anywhere bool // the jump's place does not matter
	yields   bool // whoever takes the first place again and again has it
}

// jump is the rule in the built-in chain.
func (c chain) jump() string { return strings.TrimSpace(c.only + " -j " + c.name) }

// text is its rules.
func (c chain) text() string { return strings.Join(c.rules, "\n") }

func (rs ruleset) jumpInPlace(c chain) bool {
	hook, at := rs.chains[key{c.table, c.hook}], jumpPosition(rs, c)
	return at < len(hook) && hook[at] == c.jump() && c.jumps(hook) == 1
}

// jumpPosition returns the index at which the jump to c belongs in its hook: where to insert it, or
// its own index if it is in place. Chains that drop come first. Chains that accept come
// last, so that they overrule the chain's policy, but no rule of the host or of network
// policy, except one that rejects everything.
func jumpPosition(have ruleset, c chain) int {
	hook := have.chains[key{c.table, c.hook}]
	end := len(hook)
	switch i := slices.Index(hook, c.jump()); {
	case c.anywhere && i >= 0:
		return i
	case c.anywhere:
		return end
	case !c.last:
		return 0
	}
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

// ahead are the rules before the jump to c that should be behind it; none where there is no such jump, or there are several.
func (rs ruleset) ahead(c chain) []string {
	hook := rs.chains[key{c.table, c.hook}]
	if at := slices.Index(hook, c.jump()); !c.last && at > 0 && c.jumps(hook) == 1 {
		return hook[:at]
	}
	return nil
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
