package tunnel

import "encoding/binary"

// What a packet says of its length, and the checksums that follow from it.

// setUDPLengths makes pkt, whose headers are another packet's, say how long it is:
// IP and UDP length, IPv4 identification and checksum, partial UDP checksum. It is
// number i of the packets with these headers.
func setUDPLengths(pkt []byte, h *header, i int) {
	be := binary.BigEndian
	if h.version == 4 {
		be.PutUint16(pkt[2:], uint16(len(pkt)))
		be.PutUint16(pkt[4:], be.Uint16(pkt[4:])+uint16(i))
		headerChecksum4(pkt)
	} else {
		be.PutUint16(pkt[4:], uint16(len(pkt)-40))
	}
	be.PutUint16(pkt[h.l4+4:], uint16(len(pkt)-h.l4))
	partialChecksum(pkt, h, udpCsumOffset)
}

// setTCPLength makes the headers of a TCP packet fit its length; the TCP checksum
// becomes a partial one.
func setTCPLength(ip []byte, h *header) {
	if h.version == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		headerChecksum4(ip)
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	}
	partialChecksum(ip, h, tcpCsumOffset)
}

// headerChecksum4 sets the checksum of an IPv4 header.
func headerChecksum4(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^checksum(0, ip[:int(ip[0]&15)*4]))
}

// finishChecksum completes a partial checksum (RFC 1071): the field holds the
// sum of the pseudo-header.
func finishChecksum(pkt []byte, start, off int) bool {
	if start+off+2 > len(pkt) {
		return false
	}
	c := ^checksum(0, pkt[start:])
	if c == 0 {
		c = 0xffff // 0 would mean "none" to UDP, and is the same number
	}
	binary.BigEndian.PutUint16(pkt[start+off:], c)
	return true
}

// partialChecksum puts the pseudo-header's sum (RFC 793 section 3.1, RFC 8200
// section 8.1) where the kernel expects it for NEEDS_CSUM.
func partialChecksum(pkt []byte, h *header, off int) {
	var sum uint32
	if h.version == 4 {
		sum = sumWords(0, pkt[12:20])
	} else {
		sum = sumWords(0, pkt[8:40])
	}
	sum += uint32(h.proto) + uint32(len(pkt)-h.l4)
	binary.BigEndian.PutUint16(pkt[h.l4+off:], foldSum(sum))
}

// checksum is the folded one's complement sum of b on top of sum, not inverted.
func checksum(sum uint32, b []byte) uint16 { return foldSum(sumWords(sum, b)) }

// sumWords adds 16-bit words; 64 KiB of them fit the 32 bits.
func sumWords(sum uint32, b []byte) uint32 {
	for len(b) >= 2 {
		sum += uint32(b[0])<<8 | uint32(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func foldSum(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
