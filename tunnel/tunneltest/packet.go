package tunneltest

import (
	"encoding/binary"
	"net/netip"
)

// IP protocol numbers.
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
)

// Packet builds an IP packet of either version around a transport header and its
// data. Header checksums are left zero: the tunnel does not look at them.
func Packet(src, dst netip.Addr, proto uint8, l4 []byte) []byte {
	if src.Is4() {
		b := make([]byte, 20, 20+len(l4))
		b[0], b[8], b[9] = 0x45, 64, proto
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(l4)))
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		return append(b, l4...)
	}
	b := make([]byte, 40, 40+len(l4))
	b[0], b[6], b[7] = 0x60, proto, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(l4)))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return append(b, l4...)
}

// UDPPacket builds a UDP packet.
func UDPPacket(src, dst netip.AddrPort, data []byte) []byte {
	h := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(h, src.Port())
	binary.BigEndian.PutUint16(h[2:], dst.Port())
	binary.BigEndian.PutUint16(h[4:], uint16(8+len(data)))
	return Packet(src.Addr(), dst.Addr(), UDP, append(h, data...))
}

// TCPPacket builds a TCP packet with a header of 20 bytes.
func TCPPacket(src, dst netip.AddrPort, data []byte) []byte {
	h := make([]byte, 20, 20+len(data))
	binary.BigEndian.PutUint16(h, src.Port())
	binary.BigEndian.PutUint16(h[2:], dst.Port())
	h[12], h[13] = 5<<4, 0x10
	return Packet(src.Addr(), dst.Addr(), TCP, append(h, data...))
}
