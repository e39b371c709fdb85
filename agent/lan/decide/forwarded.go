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
	tagSize   = 8
	slotBits  = 3
	synHeader = 40 // bytes of TCP's header with options
	synTag    = 28 // where its timestamps are
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
	be := func(a, b uint16) []byte {
		return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, a), b)
	}
	switch {
	case kind == kindUDP:
		return inet.Packet(src, dst, unix.IPPROTO_UDP, slices.Concat(be(mesh.ForwardFrom, mesh.ForwardTo), be(uint16(8+len(body)), 0), body))
	case kind == kindFlow:
		return inet.Packet(src, dst, unix.IPPROTO_UDP, slices.Concat(be(mesh.ForwardFlow, mesh.ForwardFlow), be(uint16(8+len(body)), 0), body))
	case kind == kindSYN: // MSS, SACK, timestamps, window scale
		return inet.Packet(src, dst, unix.IPPROTO_TCP, slices.Concat(be(mesh.ForwardFrom, mesh.ForwardTo), body[:4], []byte{0, 0, 0, 0, synHeader / 4 << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0},
			[]byte{2, 4, 0x05, 0xb4, 4, 2, 8, 10}, body[4:4+tagSize], []byte{1, 3, 3, 7}))
	case v6:
		return inet.Packet(src, dst, unix.IPPROTO_ICMPV6, slices.Concat([]byte{128, 0, 0, 0}, be(mesh.ForwardID, uint16(number)), body))
	}
	return inet.Packet(src, dst, unix.IPPROTO_ICMP, slices.Concat([]byte{8, 0, 0, 0}, be(mesh.ForwardID, uint16(number)), body))
}

// taken is a forwarded probe that was taken.
type taken struct {
	V6     bool
	from   netip.Addr // others' rules may have translated it
	kind   int
	number uint32
	tag    []byte
}

// parseForwarded parses a packet, perhaps cut behind the tag, whose authenticity is not checked yet. The error is ErrBadProbe.
func parseForwarded(b []byte) (p taken, err error) {
	head, protoAt, fromAt, size := 20, 9, 12, 4
	if len(b) > 0 && b[0]>>4 == 6 {
		p.V6, head, protoAt, fromAt, size = true, 40, 6, 8, 16
	}
	if len(b) < head+8 || !p.V6 && b[0] != 0x45 {
		return p, ErrBadProbe
	}
	t, numberAt, tagAt := b[head:], 8, 12
	switch to := binary.BigEndian.Uint16(t[2:]); b[protoAt] {
	case unix.IPPROTO_UDP:
		p.kind = kindUDP
		if to == mesh.ForwardFlow {
			p.kind = kindFlow
		}
	case unix.IPPROTO_TCP:
		p.kind, numberAt, tagAt = kindSYN, 4, synTag
	default:
		p.kind = kindEcho
	}
	if len(t) < tagAt+tagSize {
		return p, ErrBadProbe
	}
	p.from, _ = netip.AddrFromSlice(b[fromAt : fromAt+size])
	p.number, p.tag = binary.BigEndian.Uint32(t[numberAt:]), bytes.Clone(t[tagAt:tagAt+tagSize])
	return p, nil
}
