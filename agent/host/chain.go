package host

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// chain is one firewall chain of ours. Rules are written the way iptables-save
// prints them, so that comparing is comparing text.
type chain struct {
	table string
	name  string
	hook  string // the built-in chain that jumps here; "" when another of ours does
	only  string // what of its packets; "" for all
	rules []string
	last  bool // the jump's place: behind the host's own rules, not before them
}

// jump is the rule in the built-in chain.
func (c chain) jump() string { return strings.TrimSpace(c.only + " -j " + c.name) }

// Names of our chains.
const (
	chainSource  = ChainPrefix + "SOURCE"  // raw: who may send with which source, where there is no guard
	chainRange   = ChainPrefix + "RANGE"   // raw: who may send with a source of the cluster
	chainForward = ChainPrefix + "FORWARD" // filter: what is not forwarded
	chainAccept  = ChainPrefix + "ACCEPT"  // filter: what is forwarded if nobody objects
	chainOutput  = ChainPrefix + "OUTPUT"  // filter: no tunnel inside the tunnel
	chainMSS     = ChainPrefix + "MSS"     // mangle: MSS clamp
	chainInside  = ChainPrefix + "INSIDE"  // nat: packets to the cluster's ranges
	chainNAT     = ChainPrefix + "NAT"     // nat: packets that leave
	chainInput   = ChainPrefix + "INPUT"   // filter: probes and VXLAN to the host
)

// kubeMark is kube-proxy's mark of packets to be masqueraded (its masqueradeBit 14).
const kubeMark = 0x4000

// chains lists the chains of one family in the order in which they are to be
// made. Their size depends on the number of own blocks and ranges only.
func (f family) chains() []chain {
	if !f.wanted {
		return nil
	}
	var out []chain
	if !f.keep && !f.lan.on {
		out = append(out, chain{table: "raw", name: chainRange, rules: f.rangeRules()})
	}
	if !f.lan.on { // else the guard checks sources
		out = append(out, chain{table: "raw", name: chainSource, hook: "PREROUTING", rules: f.sourceRules()})
	}
	out = append(out, []chain{
		{table: "filter", name: chainForward, hook: "FORWARD", only: f.notFromPods(), rules: f.forwardRules()},
		{table: "filter", name: chainAccept, hook: "FORWARD", rules: f.acceptRules(), last: true},
		{table: "filter", name: chainOutput, hook: "OUTPUT", only: ownSockets, rules: f.outputRules()},
		{table: "mangle", name: chainMSS, hook: "FORWARD", only: opens, rules: f.mssRules()},
		{table: "nat", name: chainInside, rules: f.insideRules()},
		{table: "nat", name: chainNAT, hook: "POSTROUTING", rules: f.natRules()},
	}...)
	if rules := f.inputRules(); len(rules) > 0 {
		out = append(out, chain{table: "filter", name: chainInput, hook: "INPUT", rules: rules})
	}
	return out
}

// sourceRules drop sources of the cluster that arrive where they cannot come
// from: anywhere but bridge, TUN and loopback; and from the bridge everything
// that is not of an own block. (Which pod sent it, the filter on each pod's
// interface checks; what the TUN delivers, the tunnel has checked.) Each packet
// of the host passes here: what is none of a pod's meets few rules.
func (f family) sourceRules() []string {
	if f.keep {
		return f.keepSourceRules()
	}
	var out []string
	for _, r := range f.ranges {
		out = append(out, fmt.Sprintf("-s %s -g %s", r, chainRange))
	}
	for _, b := range f.blocks {
		if !f.inRange(b) {
			out = append(out, fmt.Sprintf("-s %s -i %s -j RETURN", b, BridgeName))
		}
	}
	if f.v6 {
		out = append(out,
			"-s fe80::/10 -i "+BridgeName+" -j RETURN", // neighbour discovery
			"-s ::/128 -i "+BridgeName+" -j RETURN",    // duplicate address detection, RFC 4862 section 5.4
		)
	}
	return append(out, "-i "+BridgeName+" -j DROP")
}

// rangeRules say where packets with a source of the cluster may come from.
func (f family) rangeRules() []string {
	var out []string
	for _, b := range f.blocks {
		out = append(out, fmt.Sprintf("-s %s -i %s -j RETURN", b, BridgeName))
	}
	return append(out, "-i "+TUNName+" -j RETURN", "! -i lo -j DROP")
}

// inRange reports whether p is inside one of the cluster's ranges.
func (f family) inRange(p netip.Prefix) bool {
	return slices.ContainsFunc(f.ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}

// notFromPods matches what forwardRules look at: what comes from pods of the bridge may go
// anywhere, as far as they are concerned.
func (f family) notFromPods() string {
	if f.keep {
		return ""
	}
	return "! -i " + BridgeName
}

// forwardRules keep the LAN out of pods and the cluster's pods off the LAN: from
// outside only answers pass, and what the host itself translated (hostPort,
// NodePort). They accept nothing: network policy behind them has its say.
func (f family) forwardRules() []string {
	if f.keep {
		return f.keepForwardRules()
	}
	const known = " -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j RETURN"
	var out []string
	for _, r := range f.ranges { // from a peer: its source was checked
		out = append(out, fmt.Sprintf("-s %s -o %s -j RETURN", r, BridgeName))
	}
	out = append(out,
		"-i "+TUNName+" -o "+BridgeName+" -j RETURN",
		"-i "+TUNName+known, // answers to what the host translated into the cluster
		"-i "+TUNName+" -j DROP")
	if f.lan.on { // what has a source of the cluster is of a native or VXLAN peer
		for _, r := range f.ranges {
			out = append(out,
				fmt.Sprintf("-s %s%s", r, known),
				fmt.Sprintf("-s %s -j DROP", r))
		}
	}
	out = append(out,
		"-o "+BridgeName+known,
		"-o "+TUNName+known,
		"-o "+BridgeName+" -j DROP",
		"-o "+TUNName+" -j DROP")
	for _, r := range f.ranges {
		if f.lan.on {
			out = append(out, fmt.Sprintf("-d %s%s", r, known))
		}
		out = append(out, fmt.Sprintf("-d %s -j DROP", r))
	}
	return out
}

// acceptRules accept what concerns pods, whatever the host's policy, once
// forwardRules and every rule of the host and of network policy let it pass.
func (f family) acceptRules() []string {
	out := []string{
		"-i " + BridgeName + " -j ACCEPT",
		"-o " + BridgeName + " -j ACCEPT",
		"-i " + TUNName + " -j ACCEPT",
		"-o " + TUNName + " -j ACCEPT",
	}
	if f.lan.on { // translated by the host, from or to a pod on a native or VXLAN path
		for _, r := range f.ranges {
			out = append(out, fmt.Sprintf("-s %s -j ACCEPT", r), fmt.Sprintf("-d %s -j ACCEPT", r))
		}
	}
	return out
}

// inputRules let probes and VXLAN in, whatever the host's policy, and VXLAN from
// peers only: the guard keeps theirs from being tracked. The port is nobody else's: else
// there is no VXLAN.
func (f family) inputRules() []string {
	var out []string
	if f.lan.vxlanPort != 0 {
		out = append(out, // from pods, here and far, there is none: the guard has not looked inside
			fmt.Sprintf("-i %s+ -p udp -m udp --dport %d -j DROP", ownLinks, f.lan.vxlanPort),
			fmt.Sprintf("-p udp -m udp --dport %d -m conntrack --ctstate UNTRACKED -j ACCEPT", f.lan.vxlanPort),
			fmt.Sprintf("-p udp -m udp --dport %d -j DROP", f.lan.vxlanPort))
	}
	if f.lan.on {
		for _, r := range f.ranges {
			out = append(out, fmt.Sprintf("-s %s -d %s -p udp -m udp --dport %d -j ACCEPT", r, single(f.gateway), f.lan.probePort))
		}
	}
	return out
}

// ownLinks begins the names of bridge, TUN and VXLAN device.
const ownLinks = "edgemesh"

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// ownSockets matches what the agent's own sockets send.
var ownSockets = fmt.Sprintf("-m mark --mark %#x/%#x", Mark, MarkMask)

// outputRules keep the agent's own sockets out of the cluster's ranges: they
// pass by our table, so that such a packet would leave by the default route.
func (f family) outputRules() []string {
	var out []string
	for _, r := range f.ranges {
		out = append(out, fmt.Sprintf("-d %s -j DROP", r))
	}
	return out
}

// opens matches the first packets of TCP connections.
const opens = "-p tcp -m tcp --tcp-flags SYN,RST SYN"

// mssRules clamp TCP's segment size to the path on everything a pod sends or
// gets. Frames that only cross the bridge are left alone.
func (f family) mssRules() []string {
	out := []string{"-i " + BridgeName + " -o " + BridgeName + " -j RETURN"}
	ways := []string{"-i " + BridgeName, "-o " + BridgeName, "-i " + TUNName, "-o " + TUNName}
	if f.lan.on && f.lan.vxlan {
		ways = append(ways, "-i "+VXLANName, "-o "+VXLANName)
	}
	for _, m := range ways {
		out = append(out, m+" "+opens+" -j TCPMSS --clamp-mss-to-pmtu")
	}
	return out
}

// insideRules give packets into the cluster a source of the cluster, so that
// answers find back: the node's own from another address, and those the host
// translated. Towards own pods a client's address is kept.
func (f family) insideRules() []string {
	if f.keep {
		return f.keepInsideRules()
	}
	var out []string
	if f.lan.on {
		// kube-proxy would MASQUERADE these: with another address on each path, and
		// the kernel forgets such connections when they move to another interface.
		out = append(out, fmt.Sprintf("! -o %s -m mark --mark %#x/%#x -j SNAT --to-source %s", BridgeName, kubeMark, kubeMark, f.gateway))
	}
	for _, r := range f.ranges {
		out = append(out, fmt.Sprintf("-s %s -j RETURN", r))
	}
	out = append(out, "-o "+BridgeName+" -j RETURN", "-o lo -j RETURN")
	if f.gateway.IsValid() {
		out = append(out, "-j SNAT --to-source "+f.gateway.String())
	}
	return out
}

// natRules hide pods behind the host's address on their way outside.
func (f family) natRules() []string {
	multicast := netip.MustParsePrefix("224.0.0.0/4")
	if f.v6 {
		multicast = netip.MustParsePrefix("ff00::/8")
	}
	out := []string{fmt.Sprintf("-d %s -j RETURN", multicast)}
	for _, r := range f.ranges {
		// -g: a RETURN there leaves this chain, too.
		out = append(out, fmt.Sprintf("-d %s -g %s", r, chainInside))
	}
	if f.keep {
		return out // outside of the cluster the other plugin decides
	}
	for _, b := range f.blocks {
		out = append(out, fmt.Sprintf("-s %s ! -o %s -j MASQUERADE", b, BridgeName))
	}
	return out
}
