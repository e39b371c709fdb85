// Package nft compares and changes our tables of native nftables, and traces packets through those of others.
//
//	rule.go       how a rule is written
//	table.go      a table in the kernel: compare, make, remove
//	guard.go      table inet edgemesh: who may send with which source
//	senders.go    the elements of its sets
//	outside.go    the same table: where packets for the pod ranges may leave
//	forwarded.go  the same table: where forwarded probes are taken
//	nat.go        table inet edgemesh-nat
//	policies.go   table inet edgemesh-policy: NetworkPolicy in force; policycut.go: connections that have lost their right
//	policyrules.go  what that table should hold; policystate.go: what it holds, and the transaction between; policycounts.go: what it
//	              counted; policyheld.go: the same rules in a table that belongs to the agent
//	tables.go     Tables, which compares both
//	trace.go      table inet edgemesh-probe: where a packet is dropped, and by which rule
package nft

import (
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/host/plan"
)

// A rule is written as nft prints it, one word per argument:
//
//	rule(ip(v6).saddr().in(r), goTo("lan4"))            ip saddr 10.244.0.0/16 goto lan4
//	rule(dport.is(port), isUDP, notrack, accept)        udp dport 5210 notrack accept
//	rule(inSet(name, iif, etherSaddr, …), accept)       iif . ether saddr . … @name accept
//
// The words become the expressions of linux/netfilter/nf_tables.h: load a field of the packet into
// a register, mask it, compare it or look it up in a set.

// words are the expressions for one or more words of a rule.
type words = []expr.Any

func rule(all ...words) words { return slices.Concat(all...) }

// Verdicts and statements.
var (
	accept  = words{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop    = words{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} // counted
	ret     = words{&expr.Verdict{Kind: expr.VerdictReturn}}
	notrack = words{&expr.Notrack{}}
)

func goTo(chain string) words { return words{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }
func jump(chain string) words { return words{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }

// snatTo gives a packet another source.
func snatTo(a netip.Addr) words {
	return words{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(version(a.Is6())), RegAddrMin: 1},
	}
}

// snatToItself keeps a packet's source, whatever chains behind this one would give it.
func snatToItself(v6 bool) words {
	return append(ip(v6).saddr().into(1), &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(version(v6)), RegAddrMin: 1})
}

// field is a part of a packet, or of what the kernel knows of it, that a rule looks at.
type field struct {
	size uint32 // bytes
	load func(register uint32) expr.Any
	mask []byte // of it, nil for all
}

// payload returns a field of a header: size bytes from offset.
func payload(base expr.PayloadBase, offset, size uint32) field {
	return field{size: size, load: func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: size}
	}}
}

// meta returns a field of the kernel's own.
func meta(key expr.MetaKey, size uint32) field {
	return field{size: size, load: func(register uint32) expr.Any { return &expr.Meta{Key: key, Register: register} }}
}

// Fields outside the IP header.
var (
	nfproto     = meta(expr.MetaKeyNFPROTO, 1)
	l4proto     = meta(expr.MetaKeyL4PROTO, 1)
	iif         = meta(expr.MetaKeyIIF, 4)
	oif         = meta(expr.MetaKeyOIF, 4)
	iifname     = meta(expr.MetaKeyIIFNAME, unix.IFNAMSIZ)
	oifname     = meta(expr.MetaKeyOIFNAME, unix.IFNAMSIZ)
	mark        = meta(expr.MetaKeyMARK, 4)
	priority    = meta(expr.MetaKeyPRIORITY, 4)
	etherSaddr  = payload(expr.PayloadBaseLLHeader, 6, 6)
	sport       = payload(expr.PayloadBaseTransportHeader, 0, 2) // where the protocol has ports there
	dport       = payload(expr.PayloadBaseTransportHeader, 2, 2)
	icmpType    = payload(expr.PayloadBaseTransportHeader, 0, 1)
	icmpCoded   = payload(expr.PayloadBaseTransportHeader, 0, 2) // type and code
	tcpFlags    = payload(expr.PayloadBaseTransportHeader, 13, 1)
	ctState     = field{size: 4, load: func(register uint32) expr.Any { return &expr.Ct{Key: expr.CtKeySTATE, Register: register} }}
	ctStatus    = field{size: 4, load: func(register uint32) expr.Any { return &expr.Ct{Key: expr.CtKeySTATUS, Register: register} }}
	ctDirection = field{size: 1, load: func(register uint32) expr.Any { return &expr.Ct{Key: expr.CtKeyDIRECTION, Register: register} }}
	realm       = field{size: 4, load: func(register uint32) expr.Any { return &expr.Rt{Key: expr.RtClassid, Register: register} }}
	daddrType   = field{size: 4, load: func(register uint32) expr.Any {
		return &expr.Fib{Register: register, FlagDADDR: true, ResultADDRTYPE: true}
	}}
)

// header is an IP header (RFC 791, section 3.1; RFC 8200, section 3) that starts at offset in
// base.
type header struct {
	v6     bool
	base   expr.PayloadBase
	offset uint32
}

func ip(v6 bool) header { return header{v6: v6, base: expr.PayloadBaseNetworkHeader} }

// at returns the field at offset4 in IPv4's header or offset6 in IPv6's.
func (h header) at(offset4, offset6, size uint32) field {
	if h.v6 {
		offset4 = offset6
	}
	return payload(h.base, h.offset+offset4, size)
}

// addrSize is that of an address, in bytes.
func addrSize(v6 bool) uint32 {
	if v6 {
		return 16
	}
	return 4
}

func (h header) saddr() field    { return h.at(12, 8, addrSize(h.v6)) }
func (h header) daddr() field    { return h.at(16, 24, addrSize(h.v6)) }
func (h header) addrs() field    { return h.at(12, 8, 2*addrSize(h.v6)) } // saddr . daddr
func (h header) first() field    { return h.at(0, 0, 1) }                 // version and, in IPv4, length
func (h header) protocol() field { return h.at(9, 6, 1) }
func (h header) nexthop() field { // of the route that was chosen; for IPv4 over an IPv6 next hop, and on the link, it is the destination
	key := expr.RtKey(expr.RtNexthop4)
	if h.v6 {
		key = expr.RtNexthop6
	}
	return field{size: addrSize(h.v6), load: func(register uint32) expr.Any { return &expr.Rt{Register: register, Key: key} }}
}
func (h header) dport() field { return h.at(20+2, 40+2, 2) } // without options and extension headers

// hopLimitTo sets the TTL, or the hop limit, of a packet that leaves.
func (h header) hopLimitTo(n byte) words {
	write := &expr.Payload{OperationType: expr.PayloadWrite, Base: h.base, SourceRegister: 1, Offset: 8, Len: 1, CsumType: expr.CsumTypeInet, CsumOffset: 10}
	if h.v6 { // whose header has no checksum
		write.Offset, write.CsumType, write.CsumOffset = 7, expr.CsumTypeNone, 0
	}
	return words{&expr.Immediate{Register: 1, Data: []byte{n}}, write}
}

// markTo gives a packet's mark our byte, 0: none. Other programs' bits stay.
func markTo(m int) words { return bitsTo(mark, expr.MetaKeyMARK, ^host(plan.MarkMask), host(m)) }

// priorityTo keeps some bits of a packet's priority, and sets others.
func priorityTo(keep, set host) words { return bitsTo(priority, expr.MetaKeyPRIORITY, keep, set) }

func bitsTo(f field, key expr.MetaKey, keep, set host) words {
	out := f.and(bytesOf(keep)).into(1)
	out[1].(*expr.Bitwise).Xor = bytesOf(set)
	return append(out, &expr.Meta{Key: key, SourceRegister: true, Register: 1})
}

// isVersion matches an IP version.
func isVersion(v6 bool) words { return nfproto.is(version(v6)) }

func version(v6 bool) byte {
	if v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// isUDP matches UDP.
var isUDP = l4proto.is(byte(unix.IPPROTO_UDP))

// and keeps some bits of a field.
func (f field) and(mask []byte) field {
	f.mask = mask
	return f
}

// bits keeps the first bits of an address.
func (f field) bits(n int) field {
	a, _ := netip.AddrFromSlice(slices.Repeat([]byte{0xff}, int(f.size)))
	p, _ := a.Prefix(n)
	return f.and(p.Addr().AsSlice())
}

// in matches addresses inside a prefix.
func (f field) in(p netip.Prefix) words { return f.bits(p.Bits()).is(p.Masked().Addr()) }

// inBut is in, except for one address.
func (f field) inBut(p netip.Prefix, but netip.Addr) words {
	return append(f.isNot(but), f.in(p)[1:]...) // loaded already
}

// is and isNot compare with a value; see bytesOf.
func (f field) is(value any) words    { return f.compare(expr.CmpOpEq, value) }
func (f field) isNot(value any) words { return f.compare(expr.CmpOpNeq, value) }

func (f field) compare(op expr.CmpOp, value any) words {
	return append(f.into(1), &expr.Cmp{Op: op, Register: 1, Data: bytesOf(value)})
}

// into loads a field into a register, masked.
func (f field) into(register uint32) words {
	out := words{f.load(register)}
	if f.mask != nil {
		out = append(out, &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: f.size, Mask: f.mask, Xor: make([]byte, f.size)})
	}
	return out
}

// host is a number in the byte order of this machine: marks, states, indexes.
type host uint32

// bytesOf returns a value as the kernel compares it: numbers in network byte order, except
// host; a string is an interface's name; a []byte stays as it is.
func bytesOf(value any) []byte {
	switch v := value.(type) {
	case byte:
		return []byte{v}
	case uint16:
		return binaryutil.BigEndian.PutUint16(v)
	case uint64:
		return binaryutil.BigEndian.PutUint64(v)
	case host:
		return binaryutil.NativeEndian.PutUint32(uint32(v))
	case netip.Addr:
		return v.AsSlice()
	case string:
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, v)
		return name
	}
	return value.([]byte)
}

// inSet looks up the concatenation of fields in a set.
func inSet(name string, fields ...field) words {
	return append(concat(fields), &expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: name})
}

// note adds the concatenation of fields to a set, or lets it stay there for longer.
func note(name string, stays time.Duration, fields ...field) words {
	return append(concat(fields), &expr.Dynset{SrcRegKey: unix.NFT_REG32_00, SetName: name, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: stays})
}

// noteOnce is note for every packet of a flow: what is there already is not written again, so that CPUs do not wait for each other.
func noteOnce(name string, stays time.Duration, fields ...field) words {
	out := note(name, stays, fields...)
	out[len(out)-1].(*expr.Dynset).Operation = unix.NFT_DYNSET_OP_ADD
	return out
}

// concat loads fields one behind the other. Registers have four bytes.
func concat(fields []field) words {
	var out words
	register := uint32(unix.NFT_REG32_00)
	for _, f := range fields {
		out = append(out, f.into(register)...)
		register += (f.size + 3) / 4
	}
	return out
}

// vmap takes the verdict from a map.
func (f field) vmap(name string) words {
	return append(f.into(1), &expr.Lookup{SourceRegister: 1, SetName: name, IsDestRegSet: true})
}

// chain is one chain of a table; kind "": only other chains go to it.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    []words
}

// add appends a rule.
func (c *chain) add(all ...words) { c.rules = append(c.rules, rule(all...)) }

// Priorities of the first and the last chain that a hook may have before connection tracking's own last one.
const (
	firstPriority = -1<<31 + 1
	lastPriority  = 1<<31 - 2
)

// Of conntrack: what was given another source, or another destination (IPS_SRC_NAT, IPS_DST_NAT,
// linux/netfilter/nf_conntrack_common.h), and the direction of answers (IP_CT_DIR_REPLY).
const (
	sourceNAT      = 1 << 4
	destinationNAT = 1 << 5
	reply          = 1
)

// suffix is how names of one IP version end.
func suffix(v6 bool) string {
	if v6 {
		return "6"
	}
	return "4"
}

// addressType is that of a set of addresses.
func addressType(v6 bool) nftables.SetDatatype {
	if v6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

var bothVersions = []bool{false, true}

// Of a number of the kernel: a priority, whose upper half is the VXLAN device's, and the lower one the inner packet's, or a realm.
const (
	upperHalf = 0xffff0000
	lowerHalf = 0x0000ffff
)
