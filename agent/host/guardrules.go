package host

import (
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"edgemesh/agent/mesh"
)

// Registers of a concatenation: four bytes each (linux/netfilter/nf_tables.h).
const reg32 = unix.NFT_REG32_00

// Offsets in an encapsulated packet, from its UDP header (RFC 7348, section 5).
const (
	innerType = 8 + 8 + 12
	innerIP   = 8 + 8 + 14
)

func accept() expr.Any           { return &expr.Verdict{Kind: expr.VerdictAccept} }
func goTo(chain string) expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

// ifname is an interface's name as nftables compares it.
func ifname(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// fromInput decides by the interface where it is one of ours.
func fromInput() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: inputMap, IsDestRegSet: true},
	}
}

// own accepts what pods of this node may send, and drops all else of this IP version. The
// kernel does not look whether a pod takes an address of the node (reverseFilter), so this does.
func (f guarded) own() [][]expr.Any {
	var out [][]expr.Any
	for _, b := range f.blocks {
		out = append(out, append(withinBut(b, source, blockGateway(b).Addr()), accept()))
	}
	if f.v6 { // neighbour discovery, and duplicate address detection (RFC 4862, section 5.4)
		for _, p := range []string{"fe80::/10", "::/128"} {
			out = append(out, append(within(netip.MustParsePrefix(p), source), accept()))
		}
	}
	return append(out, append(isVersion(f.v6), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}))
}

// probe matches probes to the host; who sent them, the agent checks once more.
func (f guarded) probe(port uint16) []expr.Any {
	at, size := sourceAt(f.v6)
	to := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at + size, Len: size},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.gateway.AsSlice()},
	}
	return slices.Concat(to, isUDP(), toPort(port))
}

// innerProbe is probe inside VXLAN. Probes have no IP options and no extension headers.
func (f guarded) innerProbe(port uint16) []expr.Any {
	at, size := sourceAt(f.v6)
	protocol, header := uint32(9), uint32(20) // RFC 791, section 3.1
	if f.v6 {
		protocol, header = 6, 40 // RFC 8200, section 3
	}
	inner := func(offset, size uint32, is []byte) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: innerIP + offset, Len: size},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: is},
		}
	}
	return slices.Concat(inner(protocol, 1, []byte{unix.IPPROTO_UDP}), inner(at+size, size, f.gateway.AsSlice()), inner(header+2, 2, binaryutil.BigEndian.PutUint16(port)))
}

// fromMAC matches packets whose interface and MAC have their source's block of a length.
func fromMAC(v6 bool, bits int) []expr.Any {
	return slices.Concat([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: reg32}}, senderAt(reg32+1, v6, bits),
		[]expr.Any{&expr.Lookup{SourceRegister: reg32, SetName: nativeSet(v6, bits)}})
}

// probesFromMAC is fromMAC on any interface.
func probesFromMAC(v6 bool, bits int) []expr.Any {
	return append(senderAt(reg32, v6, bits), &expr.Lookup{SourceRegister: reg32, SetName: nativeSet(v6, bits) + probing})
}

// senderAt puts a packet's MAC and its source's block of a length into registers.
func senderAt(register uint32, v6 bool, bits int) []expr.Any {
	at, size := sourceAt(v6)
	const mac = 2 // registers
	return append([]expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Payload{DestRegister: register + mac, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: size},
	}, masked(register+mac, size, bits)...)
}

// toVXLAN matches what is for VXLAN's port. Of which protocol, what follows tells.
func toVXLAN(outer6 bool, port uint16) []expr.Any {
	return append(toPort(port), isVersion(outer6)...)
}

// toPort matches a destination port, where the protocol has ports there.
func toPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// leaves leads our VXLAN to the chain that knows where it may go. Others may use the port
// elsewhere: it is known by its header.
func leaves(outer6 bool, port uint16) []expr.Any {
	head := binaryutil.BigEndian.PutUint64(8<<56 | mesh.VXLANID<<8) // RFC 7348, section 5
	return append(toVXLAN(outer6, port),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 8},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: head},
		goTo(chainPaired))
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
		accept(),
	}
}

// fromVTEP matches VXLAN from the address that has the inner source's block of a length.
func fromVTEP(outer6, v6 bool, bits int, which string) []expr.Any {
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
	return append(append(out, masked(inner, size, bits)...), &expr.Lookup{SourceRegister: reg32, SetName: vxlanSet(v6, bits) + which})
}

// isVersion matches an IP version.
func isVersion(v6 bool) []expr.Any {
	version := byte(unix.NFPROTO_IPV4)
	if v6 {
		version = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{version}},
	}
}

// isUDP matches UDP.
func isUDP() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
	}
}

// fromStranger matches what our VXLAN device would take, of all that is for its port: to an
// address of this host and with our VNI. Others' VXLAN may pass by on its way to them, and an
// answer to a pod that was masqueraded to this port is still to be led to it.
func fromStranger() []expr.Any {
	const valid = 8 // of the flags: there is a VNI (RFC 7348, section 5)
	return append(isUDP(),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 8, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{valid}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{valid}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 3},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint32(mesh.VXLANID)[1:]},
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)})
}

// fromOwnLinks matches VXLAN from pods, which chain vxlan does not see.
func fromOwnLinks(outer6 bool, port uint16) []expr.Any {
	return slices.Concat(toVXLAN(outer6, port), isUDP(), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(ownLinks)}, // as much of the name
	})
}

// tracked matches VXLAN to this host that chain vxlan has not let in. To look at the state of a
// connection also puts fragments together before that chain sees them.
func tracked(outer6 bool, port uint16) []expr.Any {
	none := binaryutil.NativeEndian.PutUint32(0)
	return slices.Concat(toVXLAN(outer6, port), isUDP(), []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitUNTRACKED), Xor: none},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: none},
	})
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
