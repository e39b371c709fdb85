package tun

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

// sum is the Internet checksum's one's-complement sum (RFC 1071) of b as 16-bit
// big-endian words, folded but not complemented.
func sum(b []byte) uint16 {
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
	return bits.ReverseBytes16(fold(acc + carry))
}

// fold adds the 16-bit words of s with end-around carry.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// finish replaces the partial sum at pkt[start+offset:], which covers the pseudo
// header, by the checksum of pkt[start:]. Zero becomes 0xffff: the same number,
// and in UDP zero would say that there is no checksum (RFC 768).
func finish(pkt []byte, start, offset int) {
	c := ^sum(pkt[start:])
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(pkt[start+offset:], c)
}

// completeChecksum does what VIRTIO_NET_HDR_F_NEEDS_CSUM asks for in a frame that
// is no super-segment. The sum must lie behind the IP header: a peer could
// otherwise have it written over the addresses that were just checked.
func completeChecksum(frame []byte) error {
	if frame[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
		return nil
	}
	h, pkt := parseHeader(frame), frame[vnetHdrLen:]
	if h.csumStart < ipHeaderLen(pkt) || h.csumStart+h.csumOffset+2 > len(pkt) {
		return ErrFrame
	}
	finish(pkt, h.csumStart, h.csumOffset)
	return nil
}
