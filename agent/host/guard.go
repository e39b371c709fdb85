package host

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Where native and VXLAN paths may be, this table of native nftables says who may send
// with which source, in place of iptables' chains EDGEMESH-SOURCE and -RANGE. What comes in
// by such paths is bound to who sent it: a packet of a block has the interface and the MAC of
// the member that owns it, and inside VXLAN it comes from that member's underlay address.
// iptables cannot look two things up at once without a module that many kernels lack, and
// costs a packet more than twice as much.
//
//	table inet edgemesh {
//		set native4-24 { type iface_index . ether_addr . ipv4_addr; counter }   interface . MAC . block, of one length
//		set vxlan4-24 { type ipv4_addr . ipv4_addr; counter }                   underlay address . block
//		set native4-24-probes { type ether_addr . ipv4_addr }                   who sends probes, on which interface they tell
//		set vxlan4-24-probes { type ipv4_addr . ipv4_addr }                     who sends probes, but no pods' packets yet
//		map inputs { type ifname : verdict
//			edgemesh-br : goto pods, edgemesh0 : accept, edgemesh.vx : accept, lo : accept }   edgemesh.vx only where it is ours
//		chain prerouting { type filter hook prerouting priority raw
//			iifname vmap @inputs
//			th dport PORT jump vxlan                              VXLAN's outer packets; all else at that port goes on
//			ip saddr RANGE goto lan4
//		}
//		chain pods {                                              which pod: the filter on its veth
//			ip saddr BLOCK, not its GATEWAY accept
//			ip6 saddr { fe80::/10, :: } accept
//			drop
//		}
//		chain lan4 {
//			iif . ether saddr . (ip saddr & MASK) @native4-24 accept         for each length that blocks have
//			ether saddr . (ip saddr & MASK) @native4-24-probes ip daddr GATEWAY udp dport PROBES accept
//			drop
//		}
//		chain vxlan {                                             the inner packet, before it is unpacked
//			inner ip; ip saddr . (inner saddr & MASK) @vxlan4-24 notrack accept
//			the same @vxlan4-24-probes, inner daddr GATEWAY udp dport PROBES notrack accept
//			udp, VNI of ours, fib daddr type != unicast drop      from a stranger, to this host
//		}
//		chain input { type filter hook input priority filter      only where iptables has no chain for that IP version
//			iifname edgemesh* udp dport PORT drop                 from pods
//			udp dport PORT, ct state & untracked == 0 drop
//		}
//		chain output { type filter hook output priority raw
//			udp dport PORT, VNI of ours goto leave
//		}
//		chain leave {
//			ip saddr . ip daddr @vxlan-out notrack accept         underlay addresses: own . peer's
//			drop
//		}
//	}
//
// Masks make of a lookup by prefix one in a hash. Blocks have one length in most
// clusters, so that it is one lookup, whatever the number of peers. VXLAN that chain vxlan
// does not know is dropped there, as the host may have rules of its own that nothing is
// tracked, and once more by iptables' chain EDGEMESH-INPUT, for being tracked: so it is
// when this table is gone.
const (
	guardTable  = "edgemesh"
	chainFirst  = "prerouting"
	chainPods   = "pods"
	chainTunnel = "vxlan"
	chainOuter  = "input"
	chainLeave  = "output"
	chainPaired = "leave"
	leaveSet    = "vxlan-out"
	inputMap    = "inputs"
	probing     = "-probes" // ends the names of sets of who sends probes alone
)

// missingNFT tells why the kernel cannot tell who sent a packet, "" when it can.
func missingNFT() string {
	c, err := nftables.New()
	if err == nil {
		_, err = c.ListTablesOfFamily(nftables.TableFamilyINet)
	}
	if err != nil {
		return fmt.Sprintf("the kernel has no nf_tables, which checks who sends with pods' addresses (modprobe nf_tables): %v", err)
	}
	return ""
}

// guard is the wanted table. Its size depends on the number of ranges, own blocks and of
// lengths that blocks have, not on that of peers.
type guard struct {
	families  []guarded
	native    bool
	port      uint16 // of VXLAN, 0 for none
	probePort uint16
	outer6    bool // VXLAN's outer packets are IPv6
	alone     bool // no pods have the outer packets' IP version, so that iptables has no chains for it
	counted   bool // packets are counted per element
}

// guarded is one IP version of pods.
type guarded struct {
	v6      bool
	ranges  []netip.Prefix
	blocks  []netip.Prefix // own
	gateway netip.Addr
	bits    []int // of members' blocks
}

func (fs families) guard() guard {
	g := guard{native: fs.lan.Native, probePort: fs.lan.ProbePort, outer6: fs.lan.IPv6Underlay, counted: !fs.uncounted}
	if fs.lan.VXLAN {
		g.port = fs.lan.VXLANPort
		outer := fs.each[0]
		if g.outer6 {
			outer = fs.each[1]
		}
		g.alone = !outer.wanted
	}
	for i, f := range fs.held() {
		if f.lan.on {
			g.families = append(g.families, guarded{f.v6, f.ranges, f.blocks, f.gateway, fs.lan.Bits[i]})
		}
	}
	return g
}

func (g guard) wanted() bool { return len(g.families) > 0 }

// print names the content of the table; its first rule carries it.
func (g guard) print() []byte {
	h := sha256.Sum256(fmt.Appendf(nil, "8 %v", g))
	return h[:8]
}

// suffix is how names of one IP version end.
func suffix(v6 bool) string {
	if v6 {
		return "6"
	}
	return "4"
}

func nativeSet(v6 bool, bits int) string { return fmt.Sprintf("native%s-%d", suffix(v6), bits) }
func vxlanSet(v6 bool, bits int) string  { return fmt.Sprintf("vxlan%s-%d", suffix(v6), bits) }

// sets lists the sets of who sends, and where we send to, by name.
func (g guard) sets() map[string]nftables.SetDatatype {
	out := map[string]nftables.SetDatatype{}
	address := func(v6 bool) nftables.SetDatatype {
		if v6 {
			return nftables.TypeIP6Addr
		}
		return nftables.TypeIPAddr
	}
	if g.port != 0 {
		out[leaveSet] = nftables.MustConcatSetType(address(g.outer6), address(g.outer6))
	}
	for _, f := range g.families {
		for _, bits := range f.bits {
			if g.native {
				out[nativeSet(f.v6, bits)] = nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeEtherAddr, address(f.v6))
				out[nativeSet(f.v6, bits)+probing] = nftables.MustConcatSetType(nftables.TypeEtherAddr, address(f.v6))
			}
			if g.port != 0 {
				kind := nftables.MustConcatSetType(address(g.outer6), address(f.v6))
				out[vxlanSet(f.v6, bits)], out[vxlanSet(f.v6, bits)+probing] = kind, kind
			}
		}
	}
	return out
}

// inputs is where packets of interfaces of ours go; what is not in it comes from outside.
func (g guard) inputs() []nftables.SetElement {
	verdict := func(name string, v expr.Verdict) nftables.SetElement {
		return nftables.SetElement{Key: ifname(name), VerdictData: &v}
	}
	accept := expr.Verdict{Kind: expr.VerdictAccept}
	out := []nftables.SetElement{
		verdict(BridgeName, expr.Verdict{Kind: expr.VerdictGoto, Chain: chainPods}),
		verdict(TUNName, accept), // the tunnel has checked it
		verdict("lo", accept),
	}
	if g.port != 0 {
		out = append(out, verdict(VXLANName, accept)) // chain vxlan has checked it
	}
	return out
}

// chainOf is a chain of the table; hook nil: others go to it.
type chainOf struct {
	name     string
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    [][]expr.Any
}

// chains lists the table's chains, those that others go to first.
func (g guard) chains() []chainOf {
	var out []chainOf
	drop := []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}
	first := chainOf{name: chainFirst, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityRaw}
	first.rules = [][]expr.Any{fromInput()}
	if g.port != 0 {
		first.rules = append(first.rules, append(toVXLAN(g.outer6, g.port), &expr.Verdict{Kind: expr.VerdictJump, Chain: chainTunnel}))
	}
	var inside, probes [][]expr.Any
	pods := chainOf{name: chainPods}
	for _, f := range g.families {
		pods.rules = append(pods.rules, f.own()...)
		c := chainOf{name: "lan" + suffix(f.v6)}
		if g.native {
			var ahead [][]expr.Any
			for _, bits := range f.bits {
				c.rules = append(c.rules, append(fromMAC(f.v6, bits), accept()))
				ahead = append(ahead, slices.Concat(probesFromMAC(f.v6, bits), f.probe(g.probePort), []expr.Any{accept()}))
			}
			c.rules = append(c.rules, ahead...)
		}
		c.rules = append(c.rules, drop)
		out = append(out, c)
		for _, r := range f.ranges {
			first.rules = append(first.rules, append(within(r, source), goTo(c.name)))
		}
		for _, bits := range f.bits {
			inside = append(inside, append(fromVTEP(g.outer6, f.v6, bits, ""), &expr.Notrack{}, accept()))
			probes = append(probes, slices.Concat(fromVTEP(g.outer6, f.v6, bits, probing), f.innerProbe(g.probePort), []expr.Any{&expr.Notrack{}, accept()}))
		}
	}
	out = append(out, pods)
	if g.port != 0 {
		out = append(out, chainOf{name: chainTunnel, rules: slices.Concat(inside, probes, [][]expr.Any{append(fromStranger(), drop...)})},
			chainOf{name: chainPaired, rules: [][]expr.Any{proven(g.outer6), drop}},
			chainOf{name: chainLeave, hook: nftables.ChainHookOutput, priority: *nftables.ChainPriorityRaw, rules: [][]expr.Any{leaves(g.outer6, g.port)}})
	}
	if g.alone {
		out = append(out, chainOf{name: chainOuter, hook: nftables.ChainHookInput, priority: *nftables.ChainPriorityFilter,
			rules: [][]expr.Any{append(fromOwnLinks(g.outer6, g.port), drop...), append(tracked(g.outer6, g.port), drop...)}})
	}
	return append(out, first)
}

// diffGuard compares the table but for the sets' elements. A kernel that cannot count per
// element is told of once.
func (h *Host) diffGuard(fs families) ([]change, error) {
	g := fs.guard()
	if !g.wanted() {
		return nil, nil
	}
	have, err := g.inPlace() // an error, too, where nf_tables is gone: iptables must go on checking sources
	if err != nil || have != nil && *have {
		return nil, err
	}
	return []change{{"make nftables table inet " + guardTable, func() error {
		err := g.make(have != nil)
		if err == nil || !g.counted {
			return err
		}
		g.counted = false
		if g.make(have != nil) != nil {
			return err
		}
		h.lan.mu.Lock()
		defer h.lan.mu.Unlock()
		h.lan.uncounted = true
		h.log.Info("the kernel does not count packets per peer: each path on the LAN is probed as if it were in use")
		return nil
	}}}, nil
}

// diffSpareGuard removes the table that is not wanted any more, once iptables checks
// sources in its place.
func diffSpareGuard(fs families) ([]change, error) {
	if missingNFT() != "" || fs.guard().wanted() {
		return nil, nil
	}
	have, err := fs.guard().inPlace()
	if have == nil || err != nil {
		return nil, err
	}
	return []change{{"delete nftables table inet " + guardTable, removeGuard}}, nil
}

// inPlace reports whether the table is as wanted; nil means that there is none.
func (g guard) inPlace() (*bool, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t, err := findTable(c, guardTable)
	if t == nil || err != nil {
		return nil, err
	}
	is := false
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	for _, name := range append(slices.Collect(maps.Keys(g.sets())), inputMap) {
		if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == name }) {
			return &is, nil
		}
	}
	have, err := c.GetSetElements(&nftables.Set{Table: t, Name: inputMap})
	if err != nil {
		return nil, fmt.Errorf("list nftables map: %w", err)
	}
	if len(have) != len(g.inputs()) {
		return &is, nil
	}
	for i, want := range g.chains() {
		chain, err := c.ListChain(t, want.name)
		if err != nil || chain == nil {
			return &is, nil
		}
		rules, err := c.GetRules(t, chain)
		if err != nil {
			return nil, fmt.Errorf("list nftables rules: %w", err)
		}
		if len(rules) != len(want.rules) || i == 0 && !bytes.Equal(rules[0].UserData, g.print()) {
			return &is, nil
		}
	}
	is = g.wanted()
	return &is, nil
}

// make writes the whole table in one transaction. The sets' elements are kept.
func (g guard) make(replace bool) error {
	have, err := listSenders(g)
	if err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}
	if replace {
		c.DelTable(t)
	}
	c.AddTable(t)
	for name, kind := range g.sets() {
		counted := g.counted && name != leaveSet && !strings.HasSuffix(name, probing)
		if err := c.AddSet(&nftables.Set{Table: t, Name: name, KeyType: kind, Counter: counted}, nil); err != nil {
			return fmt.Errorf("nftables set %s: %w", name, err)
		}
	}
	if err := eachBatch(have, c.SetAddElements); err != nil {
		return fmt.Errorf("nftables sets: %w", err)
	}
	for i, want := range g.chains() {
		if want.name == chainFirst { // the map's verdicts need their chains
			from := &nftables.Set{Table: t, Name: inputMap, IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.NativeEndian}
			if err := c.AddSet(from, g.inputs()); err != nil {
				return fmt.Errorf("nftables map %s: %w", inputMap, err)
			}
		}
		chain := &nftables.Chain{Name: want.name, Table: t}
		if want.hook != nil {
			chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeFilter, want.hook, &want.priority
		}
		c.AddChain(chain)
		for j, exprs := range want.rules {
			rule := &nftables.Rule{Table: t, Chain: chain, Exprs: exprs}
			if i+j == 0 {
				rule.UserData = g.print()
			}
			c.AddRule(rule)
		}
	}
	switch err := c.Flush(); {
	case errors.Is(err, unix.ENOENT) && g.port != 0:
		return fmt.Errorf("nftables table %s: %w (where the kernel lacks nft_fib: modprobe nft_fib_inet, or lan.vxlan: false)", guardTable, err)
	case err != nil:
		return fmt.Errorf("nftables table %s: %w", guardTable, err)
	}
	return nil
}

func removeGuard() error { return removeTable(guardTable) }
