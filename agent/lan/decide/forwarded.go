package decide

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"edgemesh/internal/membership/mesh"
	"edgemesh/tunnel/inet"
)

// Kinds of forwarded probes.
const (
	kindUDP  = iota
	kindSYN  // as Linux sends it
	kindEcho // of ICMP or ICMPv6
	kindFlow // UDP of a connection that both ends know
	kinds
)

// A forwarded probe is an IP packet (RFC 791, RFC 8200) without options. UDP and ICMP have behind their header, big-endian:
//
//	 0  number  4 bytes; its last slotBits bits are the slot
//	 4  tag     8 bytes: HMAC-SHA256 over IP version, kind and number, with the sender's key
//	12  zeros up to the wanted size
//
// Of a SYN the number is the sequence number, and the tag stands in the timestamps (RFC 7323, section 3).
const (
	portFrom, portTo = mesh.ForwardFrom, mesh.ForwardTo // of either end: no probe answers another
	portFlow         = mesh.ForwardFlow
	echoID           = mesh.ForwardID
	podHops          = 64
	tagSize          = 8
	slotBits         = 3
	synHeader        = 40 // bytes of TCP's header with options
	synTag           = 28 // where its timestamps are
)

// forwardedTag authenticates a probe's kind and number.
func forwardedTag(key []byte, v6 bool, kind int, number uint32) []byte {
	return sum(key, binary.BigEndian.AppendUint32([]byte{'E', 'M', 'f', '1', byte(version(v6)), byte(kind)}, number))[:tagSize]
}

// forwarded makes a packet of at least size bytes.
func forwarded(key []byte, kind int, src, dst netip.Addr, number uint32, size int) []byte {
	v6 := src.Is6()
	body := append(binary.BigEndian.AppendUint32(nil, number), forwardedTag(key, v6, kind, number)...)
	body = append(body, make([]byte, max(0, size-headers(v6)-len(body)))...)
	ports := func(from, to uint16) []byte {
		return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	}
	var t []byte // transport header and payload
	proto, checksum := byte(unix.IPPROTO_UDP), inet.UDPChecksum
	switch kind {
	case kindUDP, kindFlow:
		from, to := uint16(portFrom), uint16(portTo)
		if kind == kindFlow {
			from, to = portFlow, portFlow
		}
		t = slices.Concat(ports(from, to), ports(uint16(8+len(body)), 0), body)
	case kindSYN:
		proto, checksum = unix.IPPROTO_TCP, inet.TCPChecksum
		t = slices.Concat(ports(portFrom, portTo), body[:4], []byte{0, 0, 0, 0, synHeader / 4 << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0},
			[]byte{2, 4, 0x05, 0xb4, 4, 2, 8, 10}, body[4:4+tagSize], []byte{1, 3, 3, 7}) // MSS, SACK, timestamps, window scale
	case kindEcho:
		proto, checksum = unix.IPPROTO_ICMP, 2
		typ := byte(8)
		if v6 {
			proto, typ = unix.IPPROTO_ICMPV6, 128
		}
		t = slices.Concat([]byte{typ, 0, 0, 0, echoID >> 8, echoID & 0xff}, ports(uint16(number), 0)[:2], body)
	}
	var pseudo []byte
	if proto != unix.IPPROTO_ICMP {
		pseudo = slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, proto}, ports(uint16(len(t)), 0)[:2])
	}
	binary.BigEndian.PutUint16(t[checksum:], inet.Checksum(uint64(inet.Sum(pseudo)), t))
	if v6 {
		return slices.Concat([]byte{0x60, 0, 0, 0}, ports(uint16(len(t)), uint16(proto)<<8|podHops), src.AsSlice(), dst.AsSlice(), t)
	}
	const dontFragment = 0x4000
	h := slices.Concat([]byte{0x45, 0}, ports(uint16(20+len(t)), uint16(number)), ports(dontFragment, podHops<<8|uint16(proto)), []byte{0, 0}, src.AsSlice(), dst.AsSlice())
	inet.SetChecksum4(h)
	return append(h, t...)
}

// Forwarded is a forwarded probe that was taken.
type Forwarded struct {
	V6     bool
	from   netip.Addr // others' rules may have translated it
	kind   int
	number uint32
	tag    []byte
	Link   string // the interface it came in on
}

// ParseForwarded parses a packet, perhaps cut behind the tag, whose authenticity is not checked yet. The error is ErrBadProbe.
func ParseForwarded(b []byte) (p Forwarded, err error) {
	head, protoAt, fromAt, size := 20, 9, 12, 4
	if len(b) > 0 && b[0]>>4 == 6 {
		p.V6, head, protoAt, fromAt, size = true, 40, 6, 8, 16
	}
	if len(b) < head+8 || !p.V6 && b[0] != 0x45 {
		return p, ErrBadProbe
	}
	t := b[head:]
	numberAt, tagAt := 8, 12
	switch from, to := binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:]); {
	case b[protoAt] == unix.IPPROTO_UDP && to == portTo:
		p.kind = kindUDP
	case b[protoAt] == unix.IPPROTO_UDP && from == portFlow && to == portFlow:
		p.kind = kindFlow
	case b[protoAt] == unix.IPPROTO_TCP && to == portTo:
		p.kind, numberAt, tagAt = kindSYN, 4, synTag
	case !p.V6 && b[protoAt] == unix.IPPROTO_ICMP && t[0] == 8, p.V6 && b[protoAt] == unix.IPPROTO_ICMPV6 && t[0] == 128:
		p.kind = kindEcho
	default:
		return p, ErrBadProbe
	}
	if len(t) < tagAt+tagSize {
		return p, ErrBadProbe
	}
	p.from, _ = netip.AddrFromSlice(b[fromAt : fromAt+size])
	p.number, p.tag = binary.BigEndian.Uint32(t[numberAt:]), bytes.Clone(t[tagAt:tagAt+tagSize])
	return p, nil
}
