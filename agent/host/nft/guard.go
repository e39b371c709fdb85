package nft

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
	"edgemesh/internal/membership/mesh"
)

// This is the one writer of table inet edgemesh. It has no owner (NFT_TABLE_F_OWNER), so that it stays when the agent ends.
//
// Where native and VXLAN paths may be used, the table checks who sends with which source, in
// place of iptables' chains EDGEMESH-SOURCE and -RANGE. It binds a block to its sender: packets
// arrive on the interface and from the MAC of the member that owns the block, or inside VXLAN
// on the interface and between the underlay addresses for which the path was proved. iptables cannot look up two fields together without
// a module that many kernels lack, and costs a packet more than twice as much.
//
//	table inet edgemesh {
//		set native4-24 { type iface_index . ether_addr . ipv4_addr; counter }   interface . MAC . block, of one length
//		set vxlan4-24 { type iface_index . ipv4_addr . ipv4_addr . ipv4_addr; counter }   interface . underlay addresses: peer's . own . block
//		set vxlan4-24-mac { type iface_index . ether_addr . ipv4_addr . ipv4_addr . ipv4_addr; counter }   the same on one link: with the outer packet's MAC
//		set native4-24-probes { type ether_addr . ipv4_addr }                   who sends probes, whatever the interface
//		set sent4-24 { type ipv4_addr; timeout }                                as rules add them
//		set vxlan4-24-probes, vxlan4-24-mac-probes { the same types }           who sends probes
//		map inputs { type ifname : verdict
//			edgemesh-br : goto pods, edgemesh-tun : goto tunneled, edgemesh-vx : goto unpacked, lo : accept }   edgemesh-vx only where it is ours
//		chain prerouting { type filter hook prerouting priority raw
//			iifname vmap @inputs
//			th dport PORT jump vxlan                              VXLAN's outer packets; others continue
//			ip saddr RANGE goto lan4
//		}
//		chain pods {                                              which pod: the filter on its veth
//			ip daddr 127.0.0.0/8 drop                             the host's own: portmap and kube-proxy set route_localnet
//			ip daddr RANGE, ip saddr != PROBE add @sent4-24       to which block something was sent lately, whatever becomes of it
//			ip saddr BLOCK, not its GATEWAY accept
//			ip6 saddr { fe80::/10, :: } accept
//			drop
//		}
//		set back-0, back-1, back-2 { type iface_index }           one uplink each, by which peers' packets may come
//		chain unpacked {
//			ip daddr 127.0.0.0/8 drop
//			ip6 meta mark set mark & 0xff00ffff | 0xe30000
//			accept                                                chain vxlan has checked it
//		}
//		chain tunneled {
//			ip6 meta mark set mark & 0xff00ffff | 0xe40000
//			accept                                                the tunnel has checked it
//		}
//		chain unmarked { type filter hook prerouting priority 2147483646
//			ip6, mark & 0xf80000 == 0xe00000 meta mark set mark & 0xff00ffff   reverse path filters have seen it
//		}
//		chain lan4 {
//			ip daddr 127.0.0.0/8 drop
//			iif @back-0 meta mark set mark & 0xff00ffff | 0xe00000    and so on, in chain lan6
//			ip daddr PROBE, ether saddr . (ip saddr & MASK) @native4-24-probes accept   forwarded probes; no probe is counted
//			ip daddr GATEWAY udp dport PROBES, ether saddr . (ip saddr & MASK) @native4-24-probes accept
//			iif . ether saddr . (ip saddr & MASK) @native4-24 accept         for each length that blocks have; with hostAccess nodes or
//			                                                      none not from the block's gateway: nodes send through the tunnel
//			drop
//		}
//		chain vxlan {                                             the inner packet, before it is unpacked
//			inner daddr PROBE, or inner daddr GATEWAY udp dport PROBES; the same as below @vxlan4-24-mac-probes, @vxlan4-24-probes notrack accept
//			inner ip; iif . ether saddr . ip saddr . ip daddr . (inner saddr & MASK) @vxlan4-24-mac notrack accept
//			inner ip; iif . ip saddr . ip daddr . (inner saddr & MASK) @vxlan4-24 notrack accept
//			udp, VNI of ours, fib daddr type != unicast drop      from an unauthenticated sender, to this host
//		}
//		chain input { type filter hook input priority filter      only where iptables has no chain for that IP version
//			iifname edgemesh* udp dport PORT drop                 from pods
//			udp dport PORT, ct state & untracked == 0 drop
//		}
//		chain output { type filter hook output priority raw
//			udp dport PORT goto leave
//			ip daddr RANGE, not dport PROBES add @sent4-24        the host's own, where they take LAN paths
//		}
//		chain leave {
//			meta priority is not the device's goto forged         from another program
//			meta priority set: as it was
//			ip saddr . ip daddr @vxlan-link ip ttl set 1 notrack accept   underlay addresses on one link: own . peer's
//			ip saddr . ip daddr @vxlan-out notrack accept         the same across routers
//			drop
//		}
//		chain forged {
//			VNI of ours drop
//			ip saddr . ip daddr { @vxlan-link, @vxlan-out } drop
//		}
//		chain sent { type filter hook postrouting priority 2147483645
//			oifname edgemesh-vx meta priority set: the device's   inner packets; the outer ones keep it
//			udp dport PORT, oifname != edgemesh*, ct status & (snat | dnat) goto forged   from pods, or another address of this node
//		}
//	}
//
// A peer takes what comes from this node's address to VXLAN's port for this node's own, so nobody else here may send that. The
// device's packets are known by their priority (skb->priority): chain sent gives it to the inner ones, encapsulation keeps it, and
// a socket needs CAP_NET_ADMIN or CAP_NET_RAW for a number above 6 (sk_set_prio_allowed in the kernel's sock.c). A mark would do, too,
// but keeps the kernel from caching the outer route (ip_tunnel_dst_cache_usable). Addresses alone are enough for chain forged: VXLAN's header may be in the second segment
// of what the kernel is to cut (UDP_SEGMENT).
//
// Where forwarding was off before us, the same table drops what goes from one uplink to another, so that the agent makes no
// router of a host with two networks; with iptables' chains EDGEMESH-UPLINKS and -BETWEEN where there is no nf_tables. This
// part stays when the agent ends, as forwarding does:
//
//	set uplinks { type ifname }                                   package uplink lists them
//	chain forward { type filter hook forward priority filter
//		iifname @uplinks oifname @uplinks jump between
//	}
//	chain between {
//		iifname UPLINK oifname UPLINK return                  not another one: a bridge's own frames, two prefixes on one wire
//		ip daddr 224.0.0.0/4 return                           forwarded by multicast routers only, which we do not switch on
//		ip daddr RANGE return                                 with LAN paths only: iptables' chain EDGEMESH-FORWARD decides
//		meta nfproto ipv4 iifname UPLINK return               whose packets were forwarded before us
//		meta nfproto ipv6 return                              where IPv6 was forwarded before us, or is not by us
//		ct status & dnat != 0 return                          published by this host
//		ct direction reply, ct state established, related return
//		drop
//	}
//
// The same table drops, at the last place of all, what would leave this host for the pod ranges in clear, whatever rules,
// marks and routes of others have sent it there; with iptables' chain EDGEMESH-OUTSIDE where there is no nf_tables. This part
// stays when the agent ends, too:
//
//	set hops4-24 { type iface_index . ipv4_addr . ipv4_addr }     interface . block . next hop of a proved path; before its route
//	set hops4-probes { the same type }                            of a path that is being probed: interface . target . next hop
//	set strays4 { type iface_index . mark . ipv4_addr . ipv4_addr; timeout }   what was dropped: interface . mark . source . destination
//	chain postrouting { type filter hook postrouting priority 2147483645
//		oifname edgemesh-br icmp, icmpv6 type redirect drop       only where this host forwards between its pods: they are not to try without it
//		ip daddr RANGE goto outside4
//	}
//	chain outside4 {
//		oifname { edgemesh*, lo } accept
//		ip6 hoplimit 255 icmpv6 type { 135, 136 } accept          neighbour discovery
//		oif . (ip daddr & MASK) . rt nexthop @hops4-24 accept
//		rt classid & 0xffff == 0xed, oif . (ip daddr & MASK) . (rt nexthop & MASK) @hops4-24 accept
//		                                                          over an IPv6 next hop, which the kernel does not show here, by the route's realm
//		udp, mark of a probe, oif . ip daddr . rt nexthop @hops4-probes accept
//		update @strays4
//		drop
//	}
//
// Masks turn a lookup by prefix into one in a hash. Blocks have one length in most
// clusters, so there is one lookup, whatever the number of peers. VXLAN that chain vxlan does not
// know is dropped there, and again by iptables' chain EDGEMESH-INPUT because it is
// tracked: the host may have rules by which nothing is tracked, and this table may
// be deleted.
const (
	guardTable    = "edgemesh"
	chainFirst    = "prerouting"
	chainPods     = "pods"
	chainVXLAN    = "vxlan"
	chainInner    = "unpacked"
	chainTunnel   = "tunneled"
	chainUnmarked = "unmarked"
	chainInput    = "input"
	chainOut      = "output"
	chainLeave    = "leave"
	chainForged   = "forged"
	chainSent     = "sent"
	chainForward  = "forward"
	chainBetween  = "between"
	leaveSet      = "vxlan-out"
	linkSet       = "vxlan-link"
	bound         = "-mac" // ends the names of sets of VXLAN with the outer packets' MACs
)

// guard is what the table is made from. Its size depends on the number of ranges, own blocks
// and block lengths, not on that of peers.
type guard struct {
	families  []plan.Family
	native    bool
	port      uint16 // of VXLAN, 0 for none
	probePort uint16
	outer6    bool // VXLAN's outer packets are IPv6
	alone     bool // no pods have the outer packets' IP version, so that iptables has no chains for it
	counted   bool // packets are counted per element
	unlogged  bool // forwarded probes are not taken
	realms    bool // routes have realms
	between   []between
	outs      []plan.Family // whose packets may not leave over other programs' interfaces
	routed    bool          // this host forwards between its pods
}

// between is one family whose packets are dropped between uplinks.
type between struct {
	v6 bool
	plan.Uplinks
	ranges []netip.Prefix // of pods on LAN paths
}

func guardOf(s plan.State) guard {
	g := guard{native: s.LAN.Native, probePort: s.LAN.ProbePort, outer6: s.LAN.IPv6Underlay, counted: !s.Uncounted, realms: s.Realms, routed: s.Routed}
	if s.LAN.VXLAN {
		g.port = s.LAN.VXLANPort
		outer := s.Each[0]
		if g.outer6 {
			outer = s.Each[1]
		}
		g.alone = !outer.Wanted
	}
	for _, f := range s.Held() {
		if f.Uplinks.Names != nil && !s.NoTables {
			b := between{v6: f.V6, Uplinks: f.Uplinks}
			if f.LAN.On {
				b.ranges = f.Ranges
			}
			g.between = append(g.between, b)
		}
		f.Uplinks = plan.Uplinks{}
		f.Access, f.Guests = plan.Access{}, nil // iptables has them
		if f.Outside && !s.NoTables {
			g.outs = append(g.outs, f)
		}
		if f.LAN.On {
			g.families = append(g.families, f)
		}
	}
	return g
}

// sources reports whether the table checks sources, wanted whether there is one at all.
func (g guard) sources() bool { return len(g.families) > 0 }
func (g guard) wanted() bool  { return g.sources() || len(g.between)+len(g.outs) > 0 }

func (g guard) outside() outside { return outside{g.outs, g.native, g.routed, g.realms} }

func (g guard) table() table {
	t := table{name: guardTable, print: fingerprint(29, g), sets: g.sets(), marks: []string{chainPods, chainVXLAN, chainBetween, chainLast}}
	if g.sources() {
		t.vmap, t.chains = g.inputs(), g.chains()
	}
	t.chains = append(t.chains, g.outside().chains()...)
	if !g.unlogged {
		t.chains = append(t.chains, forwarded(g.families)...)
	}
	if len(g.between) > 0 {
		t.links, t.chains = g.between[0].Names, append(t.chains, g.uplinks()...)
	}
	return t
}

// uplinks are the chains that drop what goes between uplinks.
func (g guard) uplinks() []chain {
	c := chain{name: chainBetween}
	for _, name := range g.between[0].Names {
		c.add(iifname.is(name), oifname.is(name), ret)
	}
	multicast := map[bool]netip.Prefix{false: netip.MustParsePrefix("224.0.0.0/4"), true: netip.MustParsePrefix("ff00::/8")}
	here := map[bool]bool{}
	for _, b := range g.between {
		here[b.v6] = true
		daddr := ip(b.v6).daddr()
		for _, p := range append([]netip.Prefix{multicast[b.v6]}, b.ranges...) {
			c.add(isVersion(b.v6), daddr.in(p), ret)
		}
		for _, name := range b.From {
			c.add(isVersion(b.v6), iifname.is(name), ret)
		}
	}
	for _, v6 := range []bool{false, true} {
		if !here[v6] {
			c.add(isVersion(v6), ret)
		}
	}
	c.add(ctStatus.and(bytesOf(host(destinationNAT))).isNot(host(0)), ret)
	c.add(ctDirection.is(byte(reply)), ctState.and(bytesOf(host(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))).isNot(host(0)), ret)
	c.add(drop)
	hook := chain{name: chainForward, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: *nftables.ChainPriorityFilter}
	hook.add(inSet(linksName, iifname), inSet(linksName, oifname), jump(chainBetween))
	return []chain{c, hook}
}

func nativeSet(v6 bool, bits int) string { return fmt.Sprintf("native%s-%d", suffix(v6), bits) }
func sentSet(v6 bool, bits int) string   { return fmt.Sprintf("sent%s-%d", suffix(v6), bits) }
func backSet(n int) string               { return fmt.Sprint("back-", n) }
func vxlanSet(v6 bool, bits int) string  { return fmt.Sprintf("vxlan%s-%d", suffix(v6), bits) }

// sets lists the sets of who sends, and where we send to, by name.
func (g guard) sets() map[string]setType {
	out := map[string]setType{}
	add := func(name string, counted bool, key ...nftables.SetDatatype) {
		out[name] = setType{key: nftables.MustConcatSetType(key...), counted: counted && g.counted}
	}
	for _, f := range g.outs {
		out[straySet(f.V6)] = setType{key: nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeMark, addressType(f.V6), addressType(f.V6)), stays: strayStays}
		if g.outside().hops(f) {
			for _, name := range hopSets(f) {
				add(name, false, nftables.TypeIFIndex, addressType(f.V6), addressType(f.V6))
			}
		}
	}
	if g.port != 0 {
		add(leaveSet, false, addressType(g.outer6), addressType(g.outer6))
		add(linkSet, false, addressType(g.outer6), addressType(g.outer6))
	}
	for _, f := range g.families {
		if f.Probe.IsValid() {
			add(proberSet(f.V6), false, addressType(f.V6))
			out[proberSet(f.V6)+rated] = setType{key: addressType(f.V6), stays: proberStays}
		}
		for n := range min(f.BackSlots(), plan.BackLinks) {
			add(backSet(n), false, nftables.TypeIFIndex)
		}
		for _, bits := range f.LAN.Bits {
			out[sentSet(f.V6, bits)] = setType{key: addressType(f.V6), stays: sentStays}
			if g.native {
				add(nativeSet(f.V6, bits), true, nftables.TypeIFIndex, nftables.TypeEtherAddr, addressType(f.V6))
				add(nativeSet(f.V6, bits)+probing, false, nftables.TypeEtherAddr, addressType(f.V6))
			}
			if g.port != 0 {
				from := []nftables.SetDatatype{nftables.TypeIFIndex, addressType(g.outer6), addressType(g.outer6), addressType(f.V6)}
				add(vxlanSet(f.V6, bits), true, from...)
				add(vxlanSet(f.V6, bits)+probing, false, from...)
				from = slices.Insert(from, 1, nftables.TypeEtherAddr)
				add(vxlanSet(f.V6, bits)+bound, true, from...)
				add(vxlanSet(f.V6, bits)+bound+probing, false, from...)
			}
		}
	}
	return out
}

// inputs maps our interfaces to verdicts; other packets come from outside.
func (g guard) inputs() []nftables.SetElement {
	verdict := func(link string, v words) nftables.SetElement {
		return nftables.SetElement{Key: bytesOf(link), VerdictData: v[0].(*expr.Verdict)}
	}
	out := []nftables.SetElement{
		verdict(plan.BridgeName, goTo(chainPods)),
		verdict(plan.TUNName, goTo(chainTunnel)),
		verdict("lo", accept),
	}
	if g.port != 0 {
		out = append(out, verdict(plan.VXLANName, goTo(chainInner)))
	}
	return out
}

// chains lists the table's chains.
func (g guard) chains() []chain {
	first := chain{name: chainFirst, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityRaw}
	first.add(iifname.vmap(vmapName))
	if g.port != 0 {
		first.add(g.toVXLAN(), jump(chainVXLAN))
	}
	out := []chain{g.pods(), g.let(chainTunnel, plan.BackTUN)}
	if g.marks() {
		out = append(out, g.unmarked())
	}
	for _, f := range g.families {
		c := g.lan(f)
		for _, r := range f.Ranges {
			first.add(isVersion(f.V6), ip(f.V6).saddr().in(r), goTo(c.name))
		}
		out = append(out, c)
	}
	if g.port != 0 {
		out = append(out, g.vxlan(), g.let(chainInner, plan.BackVXLAN), g.forged(), g.leave(), g.sent())
	}
	if c := g.output(); len(c.rules) > 0 { // each packet of the host would enter it
		out = append(out, c)
	}
	if g.alone {
		out = append(out, g.input())
	}
	return append(out, first)
}

// pods accepts what pods of this node may send and drops everything else of the families. It drops
// the node's own addresses, which the kernel does not check for here (sysctl.DiffLink).
func (g guard) pods() chain {
	c := chain{name: chainPods}
	c.add(toLoopback...)
	for _, f := range g.families {
		saddr := ip(f.V6).saddr()
		c.noteSent(f, nil)
		for _, b := range f.Blocks {
			c.add(isVersion(f.V6), saddr.inBut(b, mesh.Gateway(b)), accept)
		}
		if f.V6 { // neighbour discovery, and duplicate address detection (RFC 4862, section 5.4)
			c.add(isVersion(true), saddr.in(netip.MustParsePrefix("fe80::/10")), accept)
			c.add(isVersion(true), saddr.in(netip.MustParsePrefix("::/128")), accept)
		}
		c.add(isVersion(f.V6), drop)
	}
	return c
}

// toLoopback drops packets to the host's loopback addresses, which programs bind to in order to be reached from the host
// alone. The kernel drops them unless another program has set route_localnet; IPv6's are never routed.
var toLoopback = []words{isVersion(false), ip(false).daddr().in(netip.MustParsePrefix("127.0.0.0/8")), drop}

// marks reports whether packets get marks for reverse path filters, which costs each packet of the host a hook.
func (g guard) marks() bool {
	return slices.ContainsFunc(g.families, func(f plan.Family) bool { return f.BackSlots() > 0 })
}

// let accepts what was inside VXLAN, or what the tunnel has checked.
// IPv6's gets its mark for reverse path filters.
func (g guard) let(name string, back int) chain {
	c := chain{name: name}
	if name == chainInner {
		c.add(toLoopback...)
	}
	if g.marks() {
		c.add(isVersion(true), markTo(plan.BackMark(back)))
	}
	c.add(accept)
	return c
}

// unmarked takes these marks away before the packets are routed.
func (g guard) unmarked() chain {
	c := chain{name: chainUnmarked, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: lastPriority}
	c.add(isVersion(true), mark.and(bytesOf(host(plan.OwnMarkMask))).is(host(plan.BackMarks)), markTo(0))
	return c
}

// lan accepts sources of the cluster from the members that own them. The agent itself checks again
// who sent a probe.
func (g guard) lan(f plan.Family) chain {
	c := chain{name: "lan" + suffix(f.V6)}
	if !f.V6 {
		c.add(toLoopback...)
	}
	saddr, daddr := ip(f.V6).saddr(), ip(f.V6).daddr()
	if g.native {
		for n := range min(f.BackSlots(), plan.BackLinks) {
			c.add(inSet(backSet(n), iif), markTo(plan.BackMark(n)))
		}
		for _, bits := range f.LAN.Bits {
			known := inSet(nativeSet(f.V6, bits)+probing, etherSaddr, saddr.bits(bits))
			if f.Probe.IsValid() { // probes are no traffic, so they are not counted
				c.add(daddr.is(f.Probe), known, accept)
			}
			c.add(daddr.is(f.Gateway), isUDP, dport.is(g.probePort), known, accept)
			c.add(notGateway(f, saddr, bits), inSet(nativeSet(f.V6, bits), iif, etherSaddr, saddr.bits(bits)), accept)
		}
	}
	c.add(drop)
	return c
}

// notGateway matches sources that are not the gateway of their block of that length, where nodes send through the tunnel.
func notGateway(f plan.Family, saddr field, bits int) words {
	host, first := net.CIDRMask(bits, 8*int(saddr.size)), netip.IPv4Unspecified()
	for i := range host {
		host[i] = ^host[i]
	}
	if f.V6 {
		first = netip.IPv6Unspecified()
	}
	if !f.LAN.PodsOnly || bits == first.BitLen() {
		return nil
	}
	return saddr.and(host).isNot(mesh.Gateway(netip.PrefixFrom(first, bits)))
}

// Offsets in an encapsulated packet, from its UDP header (RFC 7348, section 5).
const (
	vxlanHeader = 8
	innerEther  = vxlanHeader + 8
	innerIP     = innerEther + 14
)

// inner is the IP header inside VXLAN.
func inner(v6 bool) header {
	return header{v6: v6, base: expr.PayloadBaseTransportHeader, offset: innerIP}
}

var (
	vxlanFlags     = payload(expr.PayloadBaseTransportHeader, vxlanHeader, 1)
	vxlanVNI       = payload(expr.PayloadBaseTransportHeader, vxlanHeader+4, 3)
	vxlanWhole     = payload(expr.PayloadBaseTransportHeader, vxlanHeader, 8)
	innerEtherType = payload(expr.PayloadBaseTransportHeader, innerEther+12, 2)
)

// innerProbe matches a probe inside VXLAN. Its header has no options: they would stand where the port is looked for.
func (g guard) innerProbe(f plan.Family) words {
	h := inner(f.V6)
	out := rule(h.daddr().is(f.Gateway), h.protocol().is(byte(unix.IPPROTO_UDP)), h.dport().is(g.probePort))
	if !f.V6 {
		out = append(out, h.first().is(byte(0x45))...)
	}
	return out
}

// forUs matches VXLAN that our device would take.
var forUs = rule(isUDP, vxlanFlags.and([]byte{hasVNI}).is(byte(hasVNI)), vxlanVNI.is(bytesOf(uint64(mesh.VXLANID))[5:]), daddrType.isNot(host(unix.RTN_UNICAST)))

// hasVNI is the flag of VXLAN's header that says that there is a VNI.
const hasVNI = 8

// toVXLAN matches VXLAN's destination port, of any protocol: what follows decides.
func (g guard) toVXLAN() words { return rule(dport.is(g.port), isVersion(g.outer6)) }

func etherType(v6 bool) uint16 {
	if v6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

// vxlan accepts VXLAN from the members that own its inner sources. It drops everything else that our
// VXLAN device would take: packets to an address of this host with our VNI. Foreign VXLAN may
// be forwarded here, and an answer to a pod that was masqueraded to this port must still
// reach it.
func (g guard) vxlan() chain {
	c := chain{name: chainVXLAN}
	from := func(f plan.Family, bits int, set string) words {
		key := []field{iif, ip(g.outer6).addrs(), inner(f.V6).saddr().bits(bits)}
		if strings.Contains(set, bound) {
			key = slices.Insert(key, 1, etherSaddr)
		}
		return rule(innerEtherType.is(etherType(f.V6)), inSet(set, key...))
	}
	for _, f := range g.families {
		for _, bits := range f.LAN.Bits {
			for _, end := range []string{bound + probing, probing} { // not counted
				if f.Probe.IsValid() {
					c.add(inner(f.V6).daddr().is(f.Probe), from(f, bits, vxlanSet(f.V6, bits)+end), notrack, accept)
				}
				c.add(g.innerProbe(f), from(f, bits, vxlanSet(f.V6, bits)+end), notrack, accept)
			}
			c.add(from(f, bits, vxlanSet(f.V6, bits)+bound), notGateway(f, inner(f.V6).saddr(), bits), notrack, accept)
			c.add(from(f, bits, vxlanSet(f.V6, bits)), notGateway(f, inner(f.V6).saddr(), bits), notrack, accept)
		}
	}
	c.add(forUs, drop)
	return c
}

// devices is the upper half of the priority of what the VXLAN device sends.
const devices = mesh.VXLANID << 16

// output sends what goes to VXLAN's port to the chain that knows where it may go, and notes to which blocks the host itself sends other than
// probes, where that takes LAN paths.
func (g guard) output() chain {
	c := chain{name: chainOut, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput, priority: *nftables.ChainPriorityRaw}
	if g.port != 0 {
		c.add(g.toVXLAN(), isUDP, goTo(chainLeave))
	}
	for _, f := range g.families {
		if !f.LAN.PodsOnly {
			c.noteSent(f, dport.isNot(g.probePort))
		}
	}
	return c
}

// leave lets VXLAN leave only from the address that was proved: when the uplink is gone, the
// default route may lead to a modem. It is untracked, and so never translated: it carries the
// inner packet's mark, by which kube-proxy would masquerade it. No router forwards what is for the same link.
func (g guard) leave() chain {
	c := chain{name: chainLeave}
	c.add(priority.and(bytesOf(host(upperHalf))).isNot(host(devices)), goTo(chainForged))
	c.add(priorityTo(lowerHalf, 0))
	c.add(inSet(linkSet, ip(g.outer6).addrs()), ip(g.outer6).hopLimitTo(1), notrack, accept)
	c.add(inSet(leaveSet, ip(g.outer6).addrs()), notrack, accept)
	c.add(drop)
	return c
}

// forged drops what a peer would take for VXLAN of this node. Other programs may use the same destination port elsewhere.
func (g guard) forged() chain {
	c := chain{name: chainForged}
	c.add(vxlanWhole.is(uint64(hasVNI<<56|mesh.VXLANID<<8)), drop)
	c.add(inSet(linkSet, ip(g.outer6).addrs()), drop)
	c.add(inSet(leaveSet, ip(g.outer6).addrs()), drop)
	return c
}

// sent gives the VXLAN device's packets their priority, and looks at what got an address of this node on its way out.
func (g guard) sent() chain {
	c := chain{name: chainSent, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting, priority: lastPriority - 1}
	c.add(oifname.is(plan.VXLANName), priorityTo(lowerHalf, devices))
	c.add(g.toVXLAN(), isUDP, oifname.isNot([]byte(plan.LinkPrefix)), ctStatus.and(bytesOf(host(sourceNAT|destinationNAT))).isNot(host(0)), goTo(chainForged))
	return c
}

// input drops VXLAN from pods, which chain vxlan does not see, and VXLAN that this chain did not
// accept. Matching the connection state also makes the kernel reassemble fragments before
// chain vxlan sees them.
func (g guard) input() chain {
	c := chain{name: chainInput, kind: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, priority: *nftables.ChainPriorityFilter}
	c.add(g.toVXLAN(), isUDP, iifname.is([]byte(plan.LinkPrefix)), drop) // as much of the name
	c.add(g.toVXLAN(), isUDP, ctState.and(bytesOf(host(expr.CtStateBitUNTRACKED))).is(host(0)), drop)
	return c
}

// GuardWanted reports whether the guard checks sources instead of iptables.
func GuardWanted(s plan.State) bool { return guardOf(s).sources() }
