package inet

import (
	"encoding/binary"
	"math/bits"
)

// Offsets of the checksum in transport headers, bytes.
const (
	TCPChecksum = 16
	UDPChecksum = 6
)

// ChecksumOffset is where the transport header keeps its checksum, for the protocols whose checksum may be left to a
// device: TCP and UDP.
func (h *Header) ChecksumOffset() (off int, ok bool) {
	switch {
	case h.L4 == 0:
		return 0, false
	case h.Proto == ProtoTCP:
		return TCPChecksum, true
	case h.Proto == ProtoUDP:
		return UDPChecksum, true
	}
	return 0, false
}

// SetLength makes the headers of pkt say how long it is: the IP length and the one of UDP. The IPv4 checksum follows,
// and the transport checksum becomes a partial one.
func (h *Header) SetLength(pkt []byte) {
	if h.Version == 4 {
		binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
		SetChecksum4(pkt)
	} else {
		binary.BigEndian.PutUint16(pkt[4:], uint16(len(pkt)-40))
	}
	if h.Proto == ProtoUDP {
		binary.BigEndian.PutUint16(pkt[h.L4+4:], uint16(len(pkt)-h.L4))
	}
	h.SetPartial(pkt)
}

// SetPartial puts the pseudo header's sum (RFC 9293 section 3.1, RFC 8200 section 8.1) into the checksum field of a
// TCP or UDP packet: a partial checksum, which whoever completes it adds the rest to.
func (h *Header) SetPartial(pkt []byte) {
	off, _ := h.ChecksumOffset()
	binary.BigEndian.PutUint16(pkt[h.L4+off:], FoldSum(h.PseudoSum(pkt)+uint64(len(pkt)-h.L4)))
}

// PseudoSum is the sum of the pseudo header without the length, not folded.
func (h *Header) PseudoSum(pkt []byte) uint64 {
	if h.Version == 4 {
		return uint64(Sum(pkt[12:20])) + uint64(h.Proto)
	}
	return uint64(Sum(pkt[8:40])) + uint64(h.Proto)
}

// SetChecksum4 sets the checksum of an IPv4 header.
func SetChecksum4(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], Checksum(0, ip[:int(ip[0]&15)*4]))
}

// Complete turns the partial checksum at pkt[start+off:] into the checksum of pkt[start:]. It reports false, and
// changes nothing, where that lies behind the end.
func Complete(pkt []byte, start, off int) bool {
	if start+off+2 > len(pkt) {
		return false
	}
	c := Checksum(0, pkt[start:])
	if c == 0 {
		c = 0xffff // the same number; in UDP 0 would mean that there is no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(pkt[start+off:], c)
	return true
}

// Checksum is the Internet checksum (RFC 1071) of what start is the sum of, and of b behind it.
func Checksum(start uint64, b []byte) uint16 { return ^FoldSum(start + uint64(Sum(b))) }

// Sum is the Internet checksum's one's-complement sum (RFC 1071) of b as 16-bit
// big-endian words, folded but not complemented.
func Sum(b []byte) uint16 {
	// The sum does not depend on the byte order (RFC 1071, 2 B), so it runs over
	// little-endian words of 64 bits with the carry kept, and is swapped last.
	var acc, carry uint64
	for len(b) >= 64 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[8:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[16:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[24:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[32:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[40:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[48:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[56:]), carry)
		b = b[64:]
	}
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), carry)
		b = b[8:]
	}
	if len(b) > 0 {
		var tail [8]byte
		copy(tail[:], b)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(tail[:]), carry)
	}
	// No overflow: a sum of all ones with a carry would have to come from another.
	return bits.ReverseBytes16(FoldSum(acc + carry))
}

// FoldSum adds the 16-bit words of s with end-around carry.
func FoldSum(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}
