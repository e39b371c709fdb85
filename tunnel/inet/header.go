// Package inet reads the headers of IP packets and computes their checksums: what the tunnel and its devices both
// need to know of a packet. It allocates nothing.
//
//	header.go    parsing, the one gate for packets from outside, and the flow hash
//	checksum.go  the Internet checksum, whole and partial, and the lengths it covers
//	packet.go    a whole packet, from its transport header
package inet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"net/netip"
)

var (
	// ErrMalformed means that the bytes are not an IP packet of the length it claims, or that its transport header
	// is cut.
	ErrMalformed = errors.New("malformed IP packet")
	// ErrSourceRoute means that the packet carries a route of its own (IPv4 LSRR and SSRR, an IPv6 routing header
	// with segments left), which would evade a check of its destination.
	ErrSourceRoute = errors.New("IP packet with a source route")
	// ErrExtension means that an IPv6 extension header follows a fragment header. Who looks at one fragment does not see all
	// of it, and so not what it hides, such as a routing header.
	ErrExtension = errors.New("IPv6 extension header behind a fragment header")
)

// Protocols, as IANA numbers them.
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
)

// Flags of TCP.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	PSH = 0x08
	ACK = 0x10
	URG = 0x20
	CWR = 0x80
)

const (
	ipv6HopByHop = 0
	ipv6Routing  = 43
	ipv6Fragment = 44
	ipv6AH       = 51
	ipv6DestOpts = 60

	// maxExtHeaders bounds the walk over IPv6 extension headers; real packets
	// have one or two.
	maxExtHeaders = 8
)

// Header is what has to be known of an IP packet.
type Header struct {
	Src, Dst netip.Addr
	Version  uint8
	Proto    uint8 // the transport protocol, also of a fragment
	Fragment bool
	L4       int    // offset of the transport header; 0 for fragments
	L4Len    int    // length of a TCP or UDP header, else 0
	Flow     uint32 // the same for all packets of a flow, and for all fragments of a datagram
}

// Parse reads the headers of the IP packet b into h. The error is ErrMalformed, ErrSourceRoute or ErrExtension. b must be exactly
// the packet: its length field says the same (RFC 791 section 3.1, RFC 8200 section 3; jumbograms and the length 0 of
// BIG TCP are refused, no device here produces them). The seed, random per process, keeps outsiders from choosing
// packets that share a flow hash.
func (h *Header) Parse(b []byte, seed uint64) error {
	if len(b) < 20 {
		return ErrMalformed
	}
	switch b[0] >> 4 {
	case 4:
		return h.parse4(b, seed)
	case 6:
		return h.parse6(b, seed)
	}
	return ErrMalformed
}

func (h *Header) parse4(b []byte, seed uint64) error {
	ihl := int(b[0]&15) * 4
	if ihl < 20 || ihl > len(b) || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return ErrMalformed
	}
	if ihl > 20 {
		if err := checkOptions4(b[20:ihl]); err != nil {
			return err
		}
	}
	*h = Header{
		Src:     netip.AddrFrom4([4]byte(b[12:16])),
		Dst:     netip.AddrFrom4([4]byte(b[16:20])),
		Version: 4,
		Proto:   b[9],
	}
	hash := Mix(seed, binary.LittleEndian.Uint64(b[12:20]))
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or an offset
		h.Fragment = true
		h.Flow = Fold(Mix(hash, uint64(binary.BigEndian.Uint16(b[4:]))))
		return nil
	}
	return h.parseL4(b, ihl, hash)
}

// checkOptions4 walks IPv4 options (RFC 791 section 3.1).
func checkOptions4(o []byte) error {
	for len(o) > 0 {
		switch o[0] {
		case 0: // end of the list
			return nil
		case 1: // no operation
			o = o[1:]
			continue
		case 131, 137: // loose and strict source route
			return ErrSourceRoute
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return ErrMalformed
		}
		o = o[o[1]:]
	}
	return nil
}

func (h *Header) parse6(b []byte, seed uint64) error {
	if len(b) < 40 || int(binary.BigEndian.Uint16(b[4:]))+40 != len(b) {
		return ErrMalformed
	}
	*h = Header{
		Src:     netip.AddrFrom16([16]byte(b[8:24])),
		Dst:     netip.AddrFrom16([16]byte(b[24:40])),
		Version: 6,
	}
	hash := Mix(Mix(seed, binary.LittleEndian.Uint64(b[8:])^bits.RotateLeft64(binary.LittleEndian.Uint64(b[24:]), 32)),
		binary.LittleEndian.Uint64(b[16:])^bits.RotateLeft64(binary.LittleEndian.Uint64(b[32:]), 32))
	next, off := b[6], 40
	for range maxExtHeaders {
		n := 0
		switch next {
		case ipv6HopByHop, ipv6DestOpts, ipv6Routing:
			if off+8 > len(b) {
				return ErrMalformed
			}
			if next == ipv6Routing && b[off+3] != 0 {
				return ErrSourceRoute
			}
			n = (int(b[off+1]) + 1) * 8
		case ipv6AH:
			if off+8 > len(b) {
				return ErrMalformed
			}
			n = (int(b[off+1]) + 2) * 4
		case ipv6Fragment:
			if off+8 > len(b) {
				return ErrMalformed
			}
			// An atomic fragment (RFC 6946) is a whole packet; it is hashed as a
			// fragment all the same, since the rest of its flow need not be one.
			h.Fragment = true
			h.Proto = b[off] // each fragment has it (RFC 8200 section 4.5)
			h.Flow = Fold(Mix(hash, uint64(binary.BigEndian.Uint32(b[off+4:]))))
			if extension(h.Proto) {
				return ErrExtension
			}
			return nil
		default:
			h.Proto = next
			return h.parseL4(b, off, hash)
		}
		if off+n > len(b) {
			return ErrMalformed
		}
		next, off = b[off], off+n
	}
	return ErrMalformed
}

// extension reports whether next is an extension header that another header may follow.
func extension(next uint8) bool {
	switch next {
	case ipv6HopByHop, ipv6Routing, ipv6Fragment, ipv6AH, ipv6DestOpts:
		return true
	}
	return false
}

// parseL4 looks at the transport header at off and completes the flow hash.
func (h *Header) parseL4(b []byte, off int, hash uint64) error {
	hash = Mix(hash, uint64(h.Proto))
	switch h.Proto {
	case ProtoTCP:
		if off+20 > len(b) {
			return ErrMalformed
		}
		h.L4Len = int(b[off+12]>>4) * 4
		if h.L4Len < 20 || off+h.L4Len > len(b) {
			return ErrMalformed
		}
		hash = Mix(hash, uint64(binary.LittleEndian.Uint32(b[off:])))
	case ProtoUDP:
		if off+8 > len(b) {
			return ErrMalformed
		}
		h.L4Len = 8
		hash = Mix(hash, uint64(binary.LittleEndian.Uint32(b[off:])))
	}
	h.L4 = off
	h.Flow = Fold(hash)
	return nil
}

// Segment returns the sequence number of a TCP packet's first byte, and the bytes of its payload; 0: there are none, or it is
// not TCP.
func (h *Header) Segment(pkt []byte) (seq uint32, data int) {
	if h.Proto != ProtoTCP || h.L4Len == 0 {
		return 0, 0
	}
	return binary.BigEndian.Uint32(pkt[h.L4+4:]), len(pkt) - h.L4 - h.L4Len
}

// Bare reports whether the transport header stands right behind an IP header without options or extensions.
func (h *Header) Bare() bool { return h.Version == 4 && h.L4 == 20 || h.Version == 6 && h.L4 == 40 }

// Joins reports whether next, which is bare as first is, may become part of a super-segment that begins with first: a
// kernel that cuts it again makes next's IP header of first's. It is number i of the packets. With "don't fragment" the
// identification means nothing (RFC 6864).
func (h *Header) Joins(first, next []byte, i int) bool {
	if h.Version == 6 {
		return bytes.Equal(first[:4], next[:4]) && bytes.Equal(first[6:40], next[6:40])
	}
	const dontFragment = 0x40
	id := binary.BigEndian.Uint16(first[4:]) + uint16(i)
	return bytes.Equal(first[:2], next[:2]) && bytes.Equal(first[6:10], next[6:10]) && bytes.Equal(first[12:20], next[12:20]) &&
		(next[6]&dontFragment != 0 || binary.BigEndian.Uint16(next[4:]) == id)
}

// Mix is one round of a multiply-and-fold hash, Fold its end. Whoever hashes what outsiders choose begins with a
// random seed.
func Mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

func Fold(h uint64) uint32 { return uint32(h ^ h>>32) }

// Noise reports what a kernel sends on every interface unasked (router solicitations, multicast listener reports,
// broadcasts). Nobody misses it.
func (h *Header) Noise() bool {
	return h.Dst.IsMulticast() || h.Dst.IsLinkLocalUnicast() || h.Src.IsLinkLocalUnicast() ||
		h.Src.IsUnspecified() || h.Dst == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
