package host

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// What comes in by native and VXLAN paths is bound to who sent it: a packet of a block
// has the MAC of the member that owns it, and inside VXLAN it comes from that member's
// underlay address. iptables cannot look two things up at once without a module that
// many kernels lack, so this is a table of native nftables, beside either iptables:
//
//	table inet edgemesh {
//		set native4-24 { type ether_addr . ipv4_addr }          MAC . block, of one length; native6-64 likewise
//		set vxlan4-24 { type ipv4_addr . ipv4_addr }            underlay address . block; vxlan6-64 likewise
//		chain lan { type filter hook prerouting priority raw
//			ip saddr RANGE iiftype ether iifname != edgemesh-br, edgemesh.vx goto native4
//		}
//		chain native4 {
//			ether saddr . (ip saddr & MASK) @native4-24 accept    for each length that blocks have
//			drop
//		}
//		chain input { type filter hook input priority filter - 1
//			udp dport PORT goto vxlan
//		}
//		chain output { type filter hook output priority raw
//			udp dport PORT, VNI of ours goto leave
//		}
//		chain leave {
//			ip saddr . ip daddr @vxlan-out notrack accept         underlay addresses: own . peer's
//			drop
//		}
//		chain vxlan {                                             the inner packet, before it is unpacked
//			inner ip; ip saddr . (inner saddr & MASK) @vxlan4-24 accept
//			drop
//		}
//	}
//
// Masks make of a lookup by prefix one in a hash. Blocks have one length in most
// clusters, so that it is one lookup, whatever the number of peers.
const (
	guardTable  = "edgemesh"
	chainLAN    = "lan"
	chainOuter  = "input"
	chainTunnel = "vxlan"
	chainLeave  = "output"
	chainPaired = "leave"
	leaveSet    = "vxlan-out"
)

// Registers of a concatenation: four bytes each (linux/netfilter/nf_tables.h).
const reg32 = unix.NFT_REG32_00

// Offsets in an encapsulated packet, from its UDP header (RFC 7348, section 5).
const (
	innerType = 8 + 8 + 12
	innerIP   = 8 + 8 + 14
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

// guard is the wanted table. Its size depends on the number of ranges and of lengths
// that blocks have, not on that of peers.
type guard struct {
	families []guarded
	native   bool
	port     uint16 // of VXLAN, 0 for none
	outer6   bool   // VXLAN's outer packets are IPv6
}

// guarded is one IP version of pods.
type guarded struct {
	v6     bool
	ranges []netip.Prefix
	bits   []int // of members' blocks
}

func (fs families) guard() guard {
	g := guard{native: fs.lan.Native, outer6: fs.lan.IPv6Underlay}
	if fs.lan.VXLAN {
		g.port = fs.lan.VXLANPort
	}
	for i, f := range fs.held() {
		if f.lan.on {
			g.families = append(g.families, guarded{f.v6, f.ranges, fs.lan.Bits[i]})
		}
	}
	return g
}

func (g guard) wanted() bool { return len(g.families) > 0 && (g.native || g.port != 0) }

// print names the content of the table; its first rule carries it.
func (g guard) print() []byte {
	h := sha256.Sum256(fmt.Appendf(nil, "4 %v", g))
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

// sets lists the table's sets by name.
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
				out[nativeSet(f.v6, bits)] = nftables.MustConcatSetType(nftables.TypeEtherAddr, address(f.v6))
			}
			if g.port != 0 {
				out[vxlanSet(f.v6, bits)] = nftables.MustConcatSetType(address(g.outer6), address(f.v6))
			}
		}
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
	drop := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	lan := chainOf{name: chainLAN, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityRaw}
	inside := chainOf{name: chainTunnel}
	for _, f := range g.families {
		if g.native {
			c := chainOf{name: "native" + suffix(f.v6)}
			for _, bits := range f.bits {
				c.rules = append(c.rules, fromMAC(f.v6, bits))
			}
			c.rules = append(c.rules, drop)
			out = append(out, c)
			for _, r := range f.ranges {
				lan.rules = append(lan.rules, fromLAN(r, c.name))
			}
		}
		for _, bits := range f.bits {
			inside.rules = append(inside.rules, fromVTEP(g.outer6, f.v6, bits))
		}
	}
	if g.native {
		out = append(out, lan)
	}
	if g.port != 0 {
		inside.rules = append(inside.rules, drop)
		out = append(out, inside, chainOf{name: chainOuter, hook: nftables.ChainHookInput, priority: *nftables.ChainPriorityFilter - 1,
			rules: [][]expr.Any{append(toVXLAN(g.outer6, g.port), &expr.Verdict{Kind: expr.VerdictGoto, Chain: chainTunnel})}},
			chainOf{name: chainPaired, rules: [][]expr.Any{proven(g.outer6), drop}},
			chainOf{name: chainLeave, hook: nftables.ChainHookOutput, priority: *nftables.ChainPriorityRaw, rules: [][]expr.Any{leaves(g.outer6, g.port)}})
	}
	return out
}

// fromLAN leads what has a source inside r and comes from outside to a chain.
func fromLAN(r netip.Prefix, chain string) []expr.Any {
	out := append(within(r, source),
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: 1}, // native paths are on Ethernet only
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint16(unix.ARPHRD_ETHER)},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1})
	for _, name := range []string{BridgeName, VXLANName} {
		padded := make([]byte, unix.IFNAMSIZ)
		copy(padded, name)
		out = append(out, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: padded})
	}
	return append(out, &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

// fromMAC accepts packets whose MAC has their source's block of a length.
func fromMAC(v6 bool, bits int) []expr.Any {
	at, size := sourceAt(v6)
	out := []expr.Any{
		&expr.Payload{DestRegister: reg32, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Payload{DestRegister: reg32 + 2, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: size},
	}
	return append(append(out, masked(reg32+2, size, bits)...), inSet(nativeSet(v6, bits))...)
}

// toVXLAN matches what is for VXLAN's port.
func toVXLAN(outer6 bool, port uint16) []expr.Any {
	version := byte(unix.NFPROTO_IPV4)
	if outer6 {
		version = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{version}},
	}
}

// leaves leads our VXLAN to the chain that knows where it may go. Others may use the port
// elsewhere: it is known by its header.
func leaves(outer6 bool, port uint16) []expr.Any {
	head := binaryutil.BigEndian.PutUint64(8<<56 | mesh.VXLANID<<8) // RFC 7348, section 5
	return append(toVXLAN(outer6, port),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 8},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: head},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: chainPaired})
}

// proven lets VXLAN leave from the address that was proven, and only from there: when the
// uplink is gone, the default route may lead to a modem. It is not tracked, and so never
// translated: it carries the mark of the packet inside, by which kube-proxy masquerades.
func proven(outer6 bool) []expr.Any {
	at, size := sourceAt(outer6)
	return []expr.Any{
		&expr.Payload{DestRegister: reg32, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: 2 * size}, // source and destination
		&expr.Lookup{SourceRegister: reg32, SetName: leaveSet},
		&expr.Notrack{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// fromVTEP accepts VXLAN from the address that has the inner source's block of a length.
func fromVTEP(outer6, v6 bool, bits int) []expr.Any {
	outerAt, outerSize := sourceAt(outer6)
	at, size := sourceAt(v6)
	version := uint16(unix.ETH_P_IP)
	if v6 {
		version = unix.ETH_P_IPV6
	}
	inner := reg32 + outerSize/4
	out := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: innerType, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(version)},
		&expr.Payload{DestRegister: reg32, Base: expr.PayloadBaseNetworkHeader, Offset: outerAt, Len: outerSize},
		&expr.Payload{DestRegister: inner, Base: expr.PayloadBaseTransportHeader, Offset: innerIP + at, Len: size},
	}
	return append(append(out, masked(inner, size, bits)...), inSet(vxlanSet(v6, bits))...)
}

// sourceAt is where a packet's source address is, and its size, in bytes: RFC 791,
// section 3.1, and RFC 8200, section 3.
func sourceAt(v6 bool) (at, size uint32) {
	if v6 {
		return 8, 16
	}
	return 12, 4
}

// masked keeps the first bits of an address in a register.
func masked(register, size uint32, bits int) []expr.Any {
	return []expr.Any{&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: size,
		Mask: net.CIDRMask(bits, int(size)*8), Xor: make([]byte, size)}}
}

// inSet accepts what is in a set.
func inSet(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg32, SetName: set}, &expr.Verdict{Kind: expr.VerdictAccept}}
}

// diffGuard compares the table but for the sets' elements.
func diffGuard(fs families) ([]change, error) {
	if missingNFT() != "" {
		return nil, nil
	}
	g := fs.guard()
	have, err := g.inPlace()
	if err != nil {
		return nil, err
	}
	switch {
	case !g.wanted() && have == nil:
		return nil, nil
	case !g.wanted():
		return []change{{"delete nftables table inet " + guardTable, removeGuard}}, nil
	case have != nil && *have:
		return nil, nil
	}
	return []change{{"make nftables table inet " + guardTable, func() error { return g.make(have != nil) }}}, nil
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
	for name := range g.sets() {
		if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == name }) {
			return &is, nil
		}
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
		if err := c.AddSet(&nftables.Set{Table: t, Name: name, KeyType: kind}, nil); err != nil {
			return fmt.Errorf("nftables set %s: %w", name, err)
		}
	}
	if err := eachBatch(have, c.SetAddElements); err != nil {
		return fmt.Errorf("nftables sets: %w", err)
	}
	for i, want := range g.chains() {
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
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", guardTable, err)
	}
	return nil
}

func removeGuard() error { return removeTable(guardTable) }
