package decide

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

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
	tagSize  = 8
	slotBits = 3
)

// forwardedTag authenticates a probe's kind and number.
func forwardedTag(key []byte, v6 bool, kind int, number uint32) []byte {
	return sum(key, binary.BigEndian.AppendUint32([]byte{'E', 'M', 'f', '1', byte(version(v6)), byte(kind)}, number))[:tagSize]
}

// forwarded makes a packet of at least size bytes.
func forwarded(key []byte, kind int, src, dst netip.Addr, number uint32, size int) []byte {
	tag := forwardedTag(key, src.Is6(), kind, number)
	body := append(binary.BigEndian.AppendUint32(nil, number), tag...)
	body = append(body, make([]byte, max(0, size-headers(src.Is6())-len(body)))...)
	proto, ports, rest := uint8(inet.ProtoUDP), []uint16{mesh.ForwardFrom, mesh.ForwardTo}, []uint16{uint16(8 + len(body)), 0}
	switch {
	case kind == kindFlow:
		ports = []uint16{mesh.ForwardFlow, mesh.ForwardFlow}
	case kind == kindSYN: // MSS, SACK, timestamps, window scale
		proto, rest = inet.ProtoTCP, nil
		body = slices.Concat(body[:4], []byte{0, 0, 0, 0, 10 << 4, inet.SYN, 0xfa, 0xf0, 0, 0, 0, 0, 2, 4, 5, 0xb4, 4, 2, 8, 10}, tag, []byte{1, 3, 3, 7})
	case kind == kindEcho && src.Is4():
		proto, ports, rest = inet.ProtoICMP, []uint16{8 << 8, 0}, []uint16{mesh.ForwardID, uint16(number)}
	case kind == kindEcho:
		proto, ports, rest = inet.ProtoICMPv6, []uint16{128 << 8, 0}, []uint16{mesh.ForwardID, uint16(number)}
	}
	t, _ := binary.Append(nil, binary.BigEndian, append(ports, rest...))
	return inet.Packet(src, dst, proto, append(t, body...))
}

// taken is a forwarded probe that was taken, or one of this node's that a rule rejects.
type taken struct {
	V6      bool
	from    netip.Addr // others' rules may have translated it
	to      netip.Addr
	kind    int
	number  uint32
	tag     []byte // of the packet
	answers string // who rejects it, and how; "" for nobody
}

// parseForwarded parses a packet whose authenticity is not checked yet. The error is ErrBadProbe.
func parseForwarded(b []byte) (p taken, err error) {
	var h inet.Header
	if h.Parse(b, 0) != nil || h.L4 == 0 {
		return p, ErrBadProbe
	}
	t, numberAt, tagAt := b[h.L4:], 8, 12
	if p, ok := parseRejection(h, t); ok {
		return p, nil
	}
	switch p.kind = kindEcho; h.Proto {
	case inet.ProtoUDP:
		p.kind = kindUDP
		if binary.BigEndian.Uint16(t[2:]) == mesh.ForwardFlow {
			p.kind = kindFlow
		}
	case inet.ProtoTCP:
		p.kind, numberAt, tagAt = kindSYN, 4, 28 // of the timestamps
	}
	if len(t) < tagAt+tagSize {
		return p, ErrBadProbe
	}
	p.V6, p.from, p.to, p.number, p.tag = h.Version == 6, h.Src, h.Dst, binary.BigEndian.Uint32(t[numberAt:]), t[tagAt:tagAt+tagSize]
	return p, nil
}

// parseRejection parses what is answered in place of letting a probe pass: a RST, which acknowledges the number behind the probe's (RFC 9293,
// section 3.10.7.1), or ICMP for what is unreachable (RFC 792; RFC 4443, section 3.1), which has the probe, perhaps cut.
func parseRejection(h inet.Header, t []byte) (p taken, ok bool) {
	switch {
	case h.Proto == inet.ProtoTCP:
		return taken{V6: h.Version == 6, to: h.Src, kind: kindSYN, number: binary.BigEndian.Uint32(t[8:]) - 1, answers: "a rule that answers with a TCP reset"}, t[13]&inet.RST != 0
	case h.Proto == inet.ProtoICMP && len(t) >= 8+20 && t[0] == 3:
		binary.BigEndian.PutUint16(t[8+2:], uint16(len(t)-8))
	case h.Proto == inet.ProtoICMPv6 && len(t) >= 8+40 && t[0] == 1:
		binary.BigEndian.PutUint16(t[8+4:], uint16(len(t)-8-40))
	default:
		return p, false
	}
	p, err := parseForwarded(t[8:])
	p.answers = fmt.Sprintf("%s, which answers with ICMP type %d, code %d", h.Src, t[0], t[1])
	return p, err == nil
}
