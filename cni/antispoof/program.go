// Package antispoof builds and attaches the filter that keeps a pod from sending with
// another's addresses. It runs at the ingress of the host end of the pod's veth pair,
// before the bridge sees a frame.
//
// It passes only:
//
//	Ethernet  source = the pod's MAC; no VLAN tag; ARP, IPv4 or IPv6
//	ARP       Ethernet/IPv4; sender MAC = the pod's; sender IP = the pod's, or 0.0.0.0 (a probe, RFC 5227)
//	IPv4      source = the pod's
//	IPv6      source = the pod's, or the link-local address of its MAC;
//	          :: for ICMPv6 router and neighbour solicitations and MLD reports
//	ICMPv6    no router advertisements, no redirects; neighbour advertisements
//	          only for the pod's addresses (also behind extension headers)
//	others    no routing header with segments left; no extension header behind a
//	          fragment header, where later fragments would not show it
//
// The files:
//
//	program.go  the filter
//	attach.go   puts it on a device
//	kernel.go   bpf(2)
package antispoof

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf/asm"
)

// Verdicts of a traffic control program. Pass lets the next program or filter
// look at the packet (TC_ACT_UNSPEC, TCX_NEXT); the default is to accept.
const (
	pass = -1
	drop = 2 // TC_ACT_SHOT
)

// Offsets in struct __sk_buff (linux/bpf.h).
const skbVLANPresent = 20

// Ethernet, IPv4 and IPv6 layout, bytes from the start of each header.
const (
	ethLen      = 14
	ip4Len      = 20
	ip6Len      = 40
	arpSenderIP = 14 // where the sender's protocol address is

	ethARP  = 0x0806
	ethIPv4 = 0x0800
	ethIPv6 = 0x86dd

	protoHopByHop = 0
	protoRouting  = 43
	protoFragment = 44
	protoAH       = 51
	protoICMPv6   = 58
	protoDestOpts = 60

	icmpMLDReport    = 131
	icmpRouterSol    = 133
	icmpRouterAdv    = 134
	icmpNeighbourSol = 135
	icmpNeighbourAdv = 136
	icmpRedirect     = 137
	icmpMLDv2Report  = 143

	maxExtHeaders = 6
)

// buf is the place on the stack (r10-relative) that headers are copied to.
const buf = -64

// Registers that survive helper calls.
const (
	ctx    = asm.R6
	offset = asm.R7 // of the current header in the frame
	next   = asm.R8 // next header of an IPv6 chain
)

// LinkLocal is the link-local address that the kernel derives from mac (RFC 4291,
// appendix A).
func LinkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80,
		8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// Program is the filter for a pod with the given MAC and addresses.
func Program(mac net.HardwareAddr, addrs []netip.Addr) (asm.Instructions, error) {
	if len(mac) != 6 {
		return nil, fmt.Errorf("anti-spoofing: %q is not an Ethernet address", mac)
	}
	var v4, v6 []netip.Addr
	for _, a := range addrs {
		if a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	v6 = append(v6, LinkLocal(mac))

	var p asm.Instructions
	p = append(p,
		asm.Mov.Reg(ctx, asm.R1),
		asm.LoadMem(asm.R0, ctx, skbVLANPresent, asm.Word),
		asm.JNE.Imm(asm.R0, 0, "drop"),
		asm.Mov.Imm(offset, 0),
	)
	p = append(p, load(ethLen)...)
	p = append(p, sameMAC(6, mac)...)
	p = append(p,
		asm.LoadMem(asm.R0, asm.RFP, buf+12, asm.Half),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.Mov.Imm(offset, ethLen),
		asm.JEq.Imm(asm.R0, ethIPv4, "ipv4"),
		asm.JEq.Imm(asm.R0, ethIPv6, "ipv6"),
		asm.JNE.Imm(asm.R0, ethARP, "drop"),
	)
	p = append(p, arp(mac, v4)...)
	p = append(p, ipv4(v4)...)
	p = append(p, ipv6(v6)...)
	p = append(p,
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"),
		asm.Return(),
	)
	return p, nil
}

// load copies n bytes at offset to the stack; a shorter frame is dropped.
func load(n int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, ctx),
		asm.Mov.Reg(asm.R2, offset),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, buf),
		asm.Mov.Imm(asm.R4, n),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),
	}
}

// native is the value that loading b's bytes yields on this machine.
func native32(b []byte) int64 { return int64(binary.NativeEndian.Uint32(b)) }
func native64(b []byte) int64 { return int64(binary.NativeEndian.Uint64(b)) }

// sameMAC drops the frame unless mac is at position at of the copy.
func sameMAC(at int16, mac net.HardwareAddr) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R0, asm.RFP, buf+at, asm.Half),
		asm.JNE.Imm(asm.R0, int32(binary.NativeEndian.Uint16(mac)), "drop"),
		asm.LoadMem(asm.R0, asm.RFP, buf+at+2, asm.Half),
		asm.JNE.Imm(asm.R0, int32(binary.NativeEndian.Uint16(mac[2:])), "drop"),
		asm.LoadMem(asm.R0, asm.RFP, buf+at+4, asm.Half),
		asm.JNE.Imm(asm.R0, int32(binary.NativeEndian.Uint16(mac[4:])), "drop"),
	}
}

// goto4 jumps to label if one of addrs is at position at of the copy.
func goto4(at int16, addrs []netip.Addr, label string) asm.Instructions {
	p := asm.Instructions{asm.LoadMem(asm.R0, asm.RFP, buf+at, asm.Word)}
	for _, a := range addrs {
		p = append(p,
			asm.LoadImm(asm.R1, native32(a.AsSlice()), asm.DWord),
			asm.JEq.Reg(asm.R0, asm.R1, label))
	}
	return p
}

// goto6 is goto4 for IPv6. prefix makes its inner labels unique.
func goto6(at int16, addrs []netip.Addr, label, prefix string) asm.Instructions {
	p := asm.Instructions{
		asm.LoadMem(asm.R0, asm.RFP, buf+at, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, buf+at+8, asm.DWord),
	}
	for i, a := range addrs {
		b := a.As16()
		other := fmt.Sprintf("%s not %d", prefix, i)
		p = append(p,
			asm.LoadImm(asm.R2, native64(b[:8]), asm.DWord),
			asm.JNE.Reg(asm.R0, asm.R2, other),
			asm.LoadImm(asm.R2, native64(b[8:]), asm.DWord),
			asm.JEq.Reg(asm.R1, asm.R2, label),
			asm.Mov.Reg(asm.R0, asm.R0).WithSymbol(other))
	}
	return p
}

func arp(mac net.HardwareAddr, v4 []netip.Addr) asm.Instructions {
	p := load(arpSenderIP)
	p = append(p,
		// Hardware type 1, protocol 0x0800, lengths 6 and 4 (RFC 826).
		asm.LoadMem(asm.R0, asm.RFP, buf, asm.Word),
		asm.HostTo(asm.BE, asm.R0, asm.Word),
		asm.JNE.Imm(asm.R0, 0x0001_0800, "drop"),
		asm.LoadMem(asm.R0, asm.RFP, buf+4, asm.Half),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.JNE.Imm(asm.R0, 0x0604, "drop"),
	)
	p = append(p, sameMAC(8, mac)...)
	// The stack requires aligned access, so the address is copied again.
	p = append(p, asm.Add.Imm(offset, arpSenderIP))
	p = append(p, load(4)...)
	p = append(p, goto4(0, append([]netip.Addr{netip.IPv4Unspecified()}, v4...), "pass")...)
	return append(p, asm.Ja.Label("drop"))
}

func ipv4(v4 []netip.Addr) asm.Instructions {
	p := load(ip4Len)
	p[0] = p[0].WithSymbol("ipv4")
	p = append(p, goto4(12, v4, "pass")...)
	return append(p, asm.Ja.Label("drop"))
}

// ipv6 records in r9 whether the source was ::, then walks the extension headers to find
// ICMPv6.
func ipv6(v6 []netip.Addr) asm.Instructions {
	const unspecified = asm.R9
	p := load(ip6Len)
	p[0] = p[0].WithSymbol("ipv6")
	p = append(p, asm.Mov.Imm(unspecified, 0))
	p = append(p, goto6(8, v6, "source is own", "source")...)
	p = append(p, asm.Mov.Imm(unspecified, 1))
	p = append(p, goto6(8, []netip.Addr{netip.IPv6Unspecified()}, "source is own", "any")...)
	p = append(p,
		asm.Ja.Label("drop"),
		asm.LoadMem(next, asm.RFP, buf+6, asm.Byte).WithSymbol("source is own"),
		asm.Add.Imm(offset, ip6Len),
	)
	for i := range maxExtHeaders {
		p = append(p, extHeader(i)...)
	}
	p = append(p,
		asm.Ja.Label("drop"), // a longer chain has no use
		asm.JNE.Imm(unspecified, 0, "drop").WithSymbol("no icmp"),
		asm.Ja.Label("pass"),
	)
	icmp := load(4)
	icmp[0] = icmp[0].WithSymbol("icmp")
	p = append(p, icmp...)
	p = append(p,
		asm.LoadMem(asm.R0, asm.RFP, buf, asm.Byte),
		asm.JEq.Imm(asm.R0, icmpRouterAdv, "drop"),
		asm.JEq.Imm(asm.R0, icmpRedirect, "drop"),
		asm.JEq.Imm(unspecified, 0, "own icmp"),
		asm.JEq.Imm(asm.R0, icmpNeighbourSol, "pass"),
		asm.JEq.Imm(asm.R0, icmpRouterSol, "pass"),
		asm.JEq.Imm(asm.R0, icmpMLDReport, "pass"),
		asm.JEq.Imm(asm.R0, icmpMLDv2Report, "pass"),
		asm.Ja.Label("drop"),
		asm.JNE.Imm(asm.R0, icmpNeighbourAdv, "pass").WithSymbol("own icmp"),
	)
	p = append(p, load(24)...) // RFC 4861 section 4.4: the target is at byte 8
	p = append(p, goto6(8, v6, "pass", "target")...)
	return append(p, asm.Ja.Label("drop"))
}

// extHeader is one step of the walk: next is the type of the header at offset.
func extHeader(i int) asm.Instructions {
	step, fragment, routing := fmt.Sprintf("extension %d", i), fmt.Sprintf("fragment %d", i), fmt.Sprintf("routing %d", i)
	done := fmt.Sprintf("extension %d done", i)
	p := asm.Instructions{
		asm.JEq.Imm(next, protoICMPv6, "icmp"),
		asm.JEq.Imm(next, protoHopByHop, step),
		asm.JEq.Imm(next, protoRouting, routing),
		asm.JEq.Imm(next, protoDestOpts, step),
		asm.JEq.Imm(next, protoFragment, fragment),
		asm.Ja.Label("no icmp"),
	}
	route := load(4)
	route[0] = route[0].WithSymbol(routing)
	p = append(p, route...)
	p = append(p,
		asm.LoadMem(asm.R0, asm.RFP, buf+3, asm.Byte), // segments left
		asm.JNE.Imm(asm.R0, 0, "drop"),
	)
	body := load(2)
	body[0] = body[0].WithSymbol(step)
	p = append(p, body...)
	p = append(p,
		asm.LoadMem(next, asm.RFP, buf, asm.Byte),
		asm.LoadMem(asm.R0, asm.RFP, buf+1, asm.Byte), // in units of 8 bytes, the first not counted
		asm.LSh.Imm(asm.R0, 3),
		asm.Add.Imm(asm.R0, 8),
		asm.Add.Reg(offset, asm.R0),
		asm.Ja.Label(done),
	)
	// The first fragment contains the upper-layer header, later ones do not; receivers
	// ignore fragmented neighbour discovery (RFC 6980).
	frag := load(4)
	frag[0] = frag[0].WithSymbol(fragment)
	p = append(p, frag...)
	p = append(p, asm.LoadMem(asm.R0, asm.RFP, buf, asm.Byte)) // what begins the fragmented part, in each fragment
	for _, h := range []int32{protoHopByHop, protoRouting, protoFragment, protoAH, protoDestOpts} {
		p = append(p, asm.JEq.Imm(asm.R0, h, "drop"))
	}
	return append(p,
		asm.LoadMem(asm.R0, asm.RFP, buf+2, asm.Half),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.And.Imm(asm.R0, 0xfff8),
		asm.JNE.Imm(asm.R0, 0, "no icmp"),
		asm.LoadMem(next, asm.RFP, buf, asm.Byte),
		asm.Add.Imm(offset, 8),
		asm.Mov.Reg(asm.R0, asm.R0).WithSymbol(done),
	)
}
