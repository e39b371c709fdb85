package nft

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	policy "edgemesh/agent/policy/compile"
	"edgemesh/internal/cni/closing"
	"edgemesh/internal/membership/mesh"
)

// Table inet edgemesh-policy holds NetworkPolicy. It is one of its own, so that no rebuild of another can lift a policy, and none of
// its own touches the guard. Table edgemesh-policy-held has the same, see held.
//
//	table inet edgemesh-policy {
//		map out4 { type ipv4_addr : verdict }        pod address : jump out-CHAIN; in4, out6, in6
//		set apart-in4 { type ipv4_addr }             pods that are isolated in that direction; apart-out4, …
//		set self4 { type ipv4_addr . ipv4_addr }     each pod twice; self6
//		set GROUP-4 { type ipv4_addr }               members; GROUP-4-ports { type ipv4_addr . inet_proto . inet_service }
//		set blocks-HASH-4 { type ipv4_addr; flags interval }   of an ipBlock; ports-HASH { type inet_service; flags interval }
//		set drops-in4 { type ipv4_addr; dynamic }    dropped packets by pod; drops-out4, …
//		set flows4 { type ipv4_addr . ipv4_addr . inet_proto . inet_service; dynamic }   what was dropped within the last minute
//		set cut4 { type ipv4_addr . inet_service . ipv4_addr . inet_service; dynamic }   answers of UDP conversations that were cut; cut6
//		chain forward { type filter hook forward priority filter
//			ct state established,related accept
//			udp: ip saddr . sport . ip daddr . dport @cut4 goto dropped-out
//			icmpv6 type 135-136 code 0 ip6 hoplimit 255 accept   neighbours on the bridge; iifname edgemesh-br 133-134, ip6 saddr :: drop
//			icmpv6 type 130-132, 143 ip6 hoplimit 1 ip6 saddr fe80::/10 or :: ip6 daddr ff00::/8 accept   groups on the bridge
//			ip saddr . ip daddr @self4 accept        a pod to itself through a Service
//			ct state new tcp flags & (syn|ack) != syn jump midstream
//			ip saddr vmap @out4
//			ip daddr vmap @in4
//		}
//		chain midstream { ip saddr @apart-in4 drop; ip daddr @apart-out4 drop }
//		chain in-CHAIN { ip saddr @GROUP-4 tcp dport @ports-HASH counter return; …; goto dropped-in }
//		chain dropped-in { update @drops-in4 { ip daddr counter }; update @flows4 { … }; counter drop }
//	}
//
// A connection that conntrack has forgotten, or that we deleted there because it has lost its right, is taken up again by the first
// packet of either side. The answers of an isolated pod must not do that: the whole connection would pass as theirs (chain midstream). Of
// UDP nothing says who answers, so those of what we cut are noted, and dropped for cutStays, unless rules let the conversation pass again.
const (
	policyVersion = 4
	chainMid      = "midstream"
	flowStays     = time.Minute
	dropsStay     = 24 * time.Hour
	cutStays      = 3 * time.Minute // longer than conntrack keeps a conversation that is silent
)

// element is one of a set; end is the first behind a range.
type element struct {
	key string
	end bool
}

type elementSet map[element]bool

// policySet is a set as it is wanted. Those without elements here are the kernel's to fill.
type policySet struct {
	key      nftables.SetDatatype
	interval bool
	stays    time.Duration
	most     uint32 // of what rules, or Cut, add
	elementSet
}

// policyRules is all that depends on the policies.
type policyRules struct {
	sets   map[string]policySet
	maps   map[string]map[string]string // address → chain
	chains map[string][]policyRule
}

// policyRule is a rule, and the policy behind it.
type policyRule struct {
	words
	policy string
}

// side is "in" or "out".
func side(d policy.Direction) string {
	return strings.TrimSuffix(closing.Map(d == policy.Egress, false), "4")
}

// chainName is the kernel's name of a chain in one direction: what it matches differs.
func chainName(d policy.Direction, name string) string {
	if name == policy.Closed {
		return closing.Dropped[d]
	}
	return side(d) + "-" + name
}

// rulesOf is what the kernel should hold.
func rulesOf(p policy.Placed) policyRules {
	out := policyRules{sets: map[string]policySet{}, maps: map[string]map[string]string{}, chains: map[string][]policyRule{}}
	for _, v6 := range bothVersions {
		a := addressType(v6)
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			out.maps[closing.Map(d == policy.Egress, v6)] = map[string]string{}
			out.sets["apart-"+closing.Map(d == policy.Egress, v6)] = policySet{key: a, elementSet: elementSet{}}
			out.sets["drops-"+closing.Map(d == policy.Egress, v6)] = policySet{key: a, stays: dropsStay, most: 1024}
		}
		out.sets["self"+suffix(v6)] = policySet{key: nftables.MustConcatSetType(a, a), elementSet: elementSet{}}
		out.sets["flows"+suffix(v6)] = policySet{key: nftables.MustConcatSetType(a, a, nftables.TypeInetProto, nftables.TypeInetService), stays: flowStays, most: 1024}
		out.sets["cut"+suffix(v6)] = policySet{key: nftables.MustConcatSetType(a, nftables.TypeInetService, a, nftables.TypeInetService), stays: cutStays, most: 1 << 16}
	}
	for at, place := range p.At {
		key := string(at.AsSlice())
		out.sets["self"+suffix(at.Is6())].elementSet[element{key: key + key}] = true
		for d, name := range place.Chains {
			if name == "" {
				continue
			}
			d := policy.Direction(d)
			of := closing.Map(d == policy.Egress, at.Is6())
			out.maps[of][key] = chainName(d, name)
			out.sets["apart-"+of].elementSet[element{key: key}] = true
			if name != policy.Closed {
				if _, done := out.chains[chainName(d, name)]; !done {
					out.chain(p, d, name)
				}
			}
		}
	}
	return out
}

// chain adds a chain and the sets that it needs.
func (r policyRules) chain(p policy.Placed, d policy.Direction, name string) {
	var all []policyRule
	for _, a := range p.Chains[name].Accepts {
		for _, w := range r.accept(p, d, a) {
			all = append(all, policyRule{append(w, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictReturn}), a.Policy})
		}
	}
	r.chains[chainName(d, name)] = append(all, policyRule{words: goTo(closing.Dropped[d])})
}

// accept is one rule for each protocol and kind of peer.
func (r policyRules) accept(p policy.Placed, d policy.Direction, a policy.Accept) (out []words) {
	peer := func(v6 bool) field {
		if d == policy.Ingress {
			return ip(v6).saddr()
		}
		return ip(v6).daddr()
	}
	var peers []words
	if a.Any {
		peers = append(peers, nil)
	}
	for _, v6 := range bothVersions {
		for _, id := range a.Groups {
			peers = append(peers, rule(isVersion(v6), inSet(r.group(p, id, v6, false), peer(v6))))
		}
		if name := r.blocks(a.Blocks, v6); name != "" {
			peers = append(peers, rule(isVersion(v6), inSet(name, peer(v6))))
		}
		for _, id := range a.Named {
			out = append(out, rule(isVersion(v6), inSet(r.group(p, id, v6, true), peer(v6), l4proto, dport)))
		}
	}
	var ports []words
	if len(a.Ports) == 0 && !a.None {
		ports = append(ports, nil)
	}
	of := map[byte][]policy.Ports{}
	for _, x := range a.Ports {
		of[x.Protocol] = append(of[x.Protocol], x)
	}
	for _, protocol := range slices.Sorted(maps.Keys(of)) {
		w := l4proto.is(protocol)
		if name := r.ports(of[protocol]); name != "" {
			w = rule(w, inSet(name, dport))
		}
		ports = append(ports, w)
	}
	for _, x := range peers {
		for _, y := range ports {
			out = append(out, rule(x, y))
		}
	}
	return out
}

// group is the name of a group's set for one IP version.
func (r policyRules) group(p policy.Placed, id string, v6, ports bool) string {
	name, kind := id+"-"+suffix(v6), addressType(v6)
	if ports {
		name, kind = name+"-ports", nftables.MustConcatSetType(kind, nftables.TypeInetProto, nftables.TypeInetService)
	}
	if _, done := r.sets[name]; done {
		return name
	}
	all := elementSet{}
	for _, m := range p.Sets[id] {
		if m.Addr.Is6() == v6 {
			key := m.Addr.AsSlice()
			if ports {
				key = append(key, m.Protocol, 0, 0, 0, byte(m.Port>>8), byte(m.Port), 0, 0)
			}
			all[element{key: string(key)}] = true
		}
	}
	r.sets[name] = policySet{key: kind, elementSet: all}
	return name
}

// blocks is the name of a set of these prefixes, "" where there are none.
func (r policyRules) blocks(all []netip.Prefix, v6 bool) string {
	var spans [][2][]byte
	for _, b := range all {
		if b.Addr().Is6() != v6 {
			continue
		}
		spans = append(spans, [2][]byte{b.Addr().AsSlice(), mesh.LastAddr(b).AsSlice()})
	}
	return r.spans("blocks", suffix(v6), addressType(v6), spans)
}

// ports is the name of a set of these ports, "" for all.
func (r policyRules) ports(all []policy.Ports) string {
	var spans [][2][]byte
	for _, x := range all {
		if x.First == 0 && x.Last == 65535 {
			return ""
		}
		spans = append(spans, [2][]byte{bytesOf(x.First), bytesOf(x.Last)})
	}
	return r.spans("ports", "", nftables.TypeInetService, spans)
}

// spans is the name of a set of ranges, which may overlap; "" where there are none.
func (r policyRules) spans(kind, version string, key nftables.SetDatatype, all [][2][]byte) string {
	if len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(a, b [2][]byte) int { return bytes.Compare(a[0], b[0]) })
	out, hash := elementSet{}, sha256.New()
	for i := 0; i < len(all); {
		first, last := all[i][0], all[i][1]
		for i++; i < len(all) && (bytes.Compare(all[i][0], last) <= 0 || bytes.Equal(all[i][0], after(last))); i++ {
			if bytes.Compare(all[i][1], last) > 0 {
				last = all[i][1]
			}
		}
		out[element{key: string(first)}] = true
		if end := after(last); end != nil {
			out[element{string(end), true}] = true
		}
		hash.Write(slices.Concat(first, last))
	}
	name := kind + "-" + hex.EncodeToString(hash.Sum(nil)[:16])
	if version != "" {
		name += "-" + version
	}
	r.sets[name] = policySet{key: key, interval: true, elementSet: out}
	return name
}

// after is the number that follows, nil after the highest.
func after(n []byte) []byte {
	out := slices.Clone(n)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]++; out[i] != 0 {
			return out
		}
	}
	return nil
}

// frame are the chains that do not depend on policies.
func frame() []chain {
	base := chain{name: chainForward, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: *nftables.ChainPriorityFilter}
	base.add(ctState.and(bytesOf(host(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))).isNot(host(0)), accept)
	for _, v6 := range bothVersions {
		answer := []field{ip(v6).saddr(), sport, ip(v6).daddr(), dport}
		base.add(isVersion(v6), l4proto.is(byte(unix.IPPROTO_UDP)), inSet("cut"+suffix(v6), answer...), goTo(closing.Dropped[policy.Egress]))
	}
	base.rules = append(base.rules, neighbourly()...)
	mid := chain{name: chainMid}
	for _, v6 := range bothVersions {
		base.add(isVersion(v6), inSet("self"+suffix(v6), ip(v6).addrs()), accept)
		mid.add(isVersion(v6), inSet("apart-"+closing.Map(false, v6), ip(v6).saddr()), drop)
		mid.add(isVersion(v6), inSet("apart-"+closing.Map(true, v6), ip(v6).daddr()), drop)
	}
	const syn, ack = 2, 16
	base.add(l4proto.is(byte(unix.IPPROTO_TCP)), ctState.and(bytesOf(host(expr.CtStateBitNEW))).isNot(host(0)), tcpFlags.and([]byte{syn | ack}).isNot(byte(syn)), jump(chainMid))
	out := []chain{mid}
	for _, d := range []policy.Direction{policy.Egress, policy.Ingress} {
		dropped := chain{name: closing.Dropped[d]}
		for _, v6 := range bothVersions {
			h, own := ip(v6), ip(v6).saddr()
			if d == policy.Ingress {
				own = h.daddr()
			}
			base.add(isVersion(v6), own.vmap(closing.Map(d == policy.Egress, v6)))
			icmp := byte(unix.IPPROTO_ICMP)
			if v6 {
				icmp = unix.IPPROTO_ICMPV6
			}
			flow := func(port field) words {
				return count("flows"+suffix(v6), flowStays, h.saddr(), h.daddr(), l4proto, port)
			}
			dropped.add(isVersion(v6), count("drops-"+closing.Map(d == policy.Egress, v6), dropsStay, own))
			dropped.add(isVersion(v6), l4proto.is(icmp), flow(icmpCoded))
			dropped.add(isVersion(v6), l4proto.isNot(icmp), flow(dport))
		}
		dropped.add(drop)
		out = append(out, dropped)
	}
	return append(out, base)
}

// neighbourly are the rules for ICMPv6 that come before the policies: what pods on one bridge need of each other, whatever policies say.
// Neighbour solicitations and advertisements have a hop limit of 255, so that none was routed (RFC 4861, section 7.1); for what a pod
// asks and answers there, package antispoof sees. Multicast listeners speak to groups of the link, with a hop limit of 1 (RFC 3810,
// section 5). No pod is a router, and without an address a pod sends nothing else.
func neighbourly() (out []words) {
	between := func(first, last byte) words {
		return rule(isVersion(true), l4proto.is(byte(unix.IPPROTO_ICMPV6)), icmpType.into(1),
			words{&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{first}, ToData: []byte{last}}})
	}
	h := ip(true)
	hopLimit := h.at(8, 7, 1)
	out = append(out, rule(between(135, 136), icmpCoded.and([]byte{0, 0xff}).is([]byte{0, 0}), hopLimit.is(byte(255)), accept))
	for _, source := range []string{"fe80::/10", "::/128"} {
		for _, types := range [][2]byte{{130, 132}, {143, 143}} {
			out = append(out, rule(between(types[0], types[1]), hopLimit.is(byte(1)), h.saddr().in(netip.MustParsePrefix(source)), h.daddr().in(netip.MustParsePrefix("ff00::/8")), accept))
		}
	}
	ours := iifname.is(plan.BridgeName) // frames of other programs' bridges pass here, too
	return append(out, rule(ours, between(133, 134), drop), rule(ours, isVersion(true), h.saddr().in(netip.MustParsePrefix("::/128")), drop))
}

// framed is the number of rules of each chain of the frame, and what the first rule of the base chain carries.
func framed() (rules map[string]int, print []byte) {
	rules = map[string]int{}
	for _, f := range frame() {
		rules[f.name] = len(f.rules)
	}
	return rules, fingerprint(policyVersion, rules)
}

// count counts packets by the concatenation of fields.
func count(set string, stays time.Duration, fields ...field) words {
	w := note(set, stays, fields...)
	w[len(w)-1].(*expr.Dynset).Exprs = []expr.Any{&expr.Counter{}}
	return w
}
