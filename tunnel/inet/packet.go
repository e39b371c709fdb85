package inet

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// Packet is an IP packet without options (RFC 791, RFC 8200) that is not to be fragmented, with a usual hop limit; t is its transport
// header, whose checksum is filled in, and the payload.
func Packet(src, dst netip.Addr, proto uint8, t []byte) []byte {
	const hops, dontFragment = 64, 0x40
	n, at := len(t), map[uint8]int{ProtoTCP: TCPChecksum, ProtoUDP: UDPChecksum, ProtoICMP: 2, ProtoICMPv6: 2}[proto]
	ip := slices.Concat([]byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), proto, hops}, src.AsSlice(), dst.AsSlice())
	if src.Is4() {
		ip = slices.Concat([]byte{0x45, 0, byte((n + 20) >> 8), byte(n + 20), 0, 1, dontFragment, 0, hops, proto, 0, 0}, src.AsSlice(), dst.AsSlice())
		SetChecksum4(ip)
	}
	b := append(ip, t...)
	if proto != ProtoICMP { // the pseudo header: RFC 9293, section 3.1; RFC 8200, section 8.1
		binary.BigEndian.PutUint16(b[len(ip)+at:], Sum(slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, proto, byte(n >> 8), byte(n)})))
	}
	Complete(b, len(ip), at)
	return b
}
