package tunnel

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58

	ipv6HopByHop = 0
	ipv6Routing  = 43
	ipv6Fragment = 44
	ipv6AH       = 51
	ipv6DestOpts = 60

	// maxExtHeaders bounds the walk over IPv6 extension headers; real packets
	// have one or two.
	maxExtHeaders = 8
)

// header is what the tunnel needs to know of an IP packet.
type header struct {
	src, dst netip.Addr
	version  uint8
	proto    uint8 // the transport protocol, also of a fragment
	fragment bool
	l4       int    // offset of the transport header; 0 for fragments
	l4Len    int    // length of a TCP or UDP header, else 0
	flow     uint32 // the same for all packets of a flow, and for all fragments of a datagram
}

// parse reads the headers of the IP packet b into h. It returns 0,
// DropMalformed or DropSourceRoute. b must be exactly the packet: its length
// field says the same (RFC 791 section 3.1, RFC 8200 section 3; jumbograms and
// the length 0 of BIG TCP are refused, no device here produces them).
func (h *header) parse(b []byte, seed uint64) Reason {
	if len(b) < 20 {
		return DropMalformed
	}
	switch b[0] >> 4 {
	case 4:
		return h.parse4(b, seed)
	case 6:
		return h.parse6(b, seed)
	}
	return DropMalformed
}

func (h *header) parse4(b []byte, seed uint64) Reason {
	ihl := int(b[0]&15) * 4
	if ihl < 20 || ihl > len(b) || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return DropMalformed
	}
	if ihl > 20 {
		if r := checkOptions4(b[20:ihl]); r != 0 {
			return r
		}
	}
	*h = header{
		src:     netip.AddrFrom4([4]byte(b[12:16])),
		dst:     netip.AddrFrom4([4]byte(b[16:20])),
		version: 4,
		proto:   b[9],
	}
	hash := mix(seed, binary.LittleEndian.Uint64(b[12:20]))
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or an offset
		h.fragment = true
		h.flow = fold(mix(hash, uint64(binary.BigEndian.Uint16(b[4:]))))
		return 0
	}
	return h.parseL4(b, ihl, hash)
}

// checkOptions4 walks IPv4 options (RFC 791 section 3.1).
func checkOptions4(o []byte) Reason {
	for len(o) > 0 {
		switch o[0] {
		case 0: // end of the list
			return 0
		case 1: // no operation
			o = o[1:]
			continue
		case 131, 137: // loose and strict source route
			return DropSourceRoute
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return DropMalformed
		}
		o = o[o[1]:]
	}
	return 0
}

func (h *header) parse6(b []byte, seed uint64) Reason {
	if len(b) < 40 || int(binary.BigEndian.Uint16(b[4:]))+40 != len(b) {
		return DropMalformed
	}
	*h = header{
		src:     netip.AddrFrom16([16]byte(b[8:24])),
		dst:     netip.AddrFrom16([16]byte(b[24:40])),
		version: 6,
	}
	hash := mix(mix(seed, binary.LittleEndian.Uint64(b[8:])^bits.RotateLeft64(binary.LittleEndian.Uint64(b[24:]), 32)),
		binary.LittleEndian.Uint64(b[16:])^bits.RotateLeft64(binary.LittleEndian.Uint64(b[32:]), 32))
	next, off := b[6], 40
	for range maxExtHeaders {
		n := 0
		switch next {
		case ipv6HopByHop, ipv6DestOpts, ipv6Routing:
			if off+8 > len(b) {
				return DropMalformed
			}
			if next == ipv6Routing && b[off+3] != 0 {
				return DropSourceRoute
			}
			n = (int(b[off+1]) + 1) * 8
		case ipv6AH:
			if off+8 > len(b) {
				return DropMalformed
			}
			n = (int(b[off+1]) + 2) * 4
		case ipv6Fragment:
			if off+8 > len(b) {
				return DropMalformed
			}
			// An atomic fragment (RFC 6946) is a whole packet; it is hashed as a
			// fragment all the same, since the rest of its flow need not be one.
			h.fragment = true
			h.proto = b[off]
			h.flow = fold(mix(hash, uint64(binary.BigEndian.Uint32(b[off+4:]))))
			return 0
		default:
			h.proto = next
			return h.parseL4(b, off, hash)
		}
		if off+n > len(b) {
			return DropMalformed
		}
		next, off = b[off], off+n
	}
	return DropMalformed
}

// parseL4 looks at the transport header at off and completes the flow hash.
func (h *header) parseL4(b []byte, off int, hash uint64) Reason {
	hash = mix(hash, uint64(h.proto))
	switch h.proto {
	case protoTCP:
		if off+20 > len(b) {
			return DropMalformed
		}
		h.l4Len = int(b[off+12]>>4) * 4
		if h.l4Len < 20 || off+h.l4Len > len(b) {
			return DropMalformed
		}
		hash = mix(hash, uint64(binary.LittleEndian.Uint32(b[off:])))
	case protoUDP:
		if off+8 > len(b) {
			return DropMalformed
		}
		h.l4Len = 8
		hash = mix(hash, uint64(binary.LittleEndian.Uint32(b[off:])))
	}
	h.l4 = off
	h.flow = fold(hash)
	return 0
}

// lane chooses the way of a packet: a lost bulk segment shall never delay a
// ping or a DNS answer.
func (h *header) lane() Lane {
	if h.proto == protoTCP {
		return StreamLane
	}
	return DatagramLane
}

// noise reports what a kernel says on every interface by itself (router
// solicitations, multicast listener reports, broadcasts): no one's loss.
func (h *header) noise() bool {
	return h.dst.IsMulticast() || h.dst.IsLinkLocalUnicast() || h.src.IsLinkLocalUnicast() ||
		h.src.IsUnspecified() || h.dst == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// mix is one round of a multiply-and-fold hash; the seed, random per process,
// keeps outsiders from choosing collisions.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

func fold(h uint64) uint32 { return uint32(h ^ h>>32) }
