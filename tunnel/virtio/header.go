// Package virtio knows the frames a TUN exchanges with its kernel: a struct virtio_net_hdr (linux/virtio_net.h) and one
// IP packet, which may be a super-segment with a partial checksum. The tunnel and its devices share it, so that there is
// one form of the header, one gate for it, and one function that cuts a super-segment.
//
//	header.go   the header, its one form on the wire, and what brings a kernel's header into it
//	segment.go  a super-segment cut into the packets it stands for
package virtio

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
)

// Values of struct virtio_net_hdr, linux/virtio_net.h.
const (
	NeedsChecksum = 1 // Flags: the transport checksum is partial

	GSONone  = 0
	GSOTCPv4 = 1
	GSOTCPv6 = 4
	GSOUDP   = 5
	GSOECN   = 0x80 // the TCP flow has CWR set on its first segment only
)

const (
	// HeaderLen is the size of struct virtio_net_hdr without num_buffers.
	HeaderLen = 10
	// MaxPacket is the largest IP packet: 65535 bytes, IPv4 total length or IPv6 payload length plus header (a
	// super-segment stays below).
	MaxPacket = 65535 + 40
	// MaxFrame is the longest frame.
	MaxFrame = HeaderLen + MaxPacket
	// MinTCPSegment is the kernel's TCP_MIN_GSO_SIZE, MaxUDPSegments its UDP_MAX_SEGMENTS (linux/udp.h): one frame
	// must not become 65535 packets.
	MinTCPSegment  = 8
	MaxUDPSegments = 128
)

// Header is a struct virtio_net_hdr. On the wire it has one form only, the one Normalize makes and Valid accepts:
//   - Flags are 0 or NeedsChecksum; with it, CsumStart is the TCP or UDP header and CsumOffset its checksum field,
//     without it both are 0;
//   - without segmentation HdrLen and GSOSize are 0; with it, NeedsChecksum is set, GSOType matches IP version and
//     protocol, HdrLen is the end of the transport header and there is payload behind it.
//
// Lengths and offsets are in bytes from the start of the packet.
type Header struct {
	Flags, GSOType                         uint8
	HdrLen, GSOSize, CsumStart, CsumOffset uint16
}

// Get reads the header that b begins with.
func Get(b []byte) Header {
	le := binary.LittleEndian
	return Header{b[0], b[1], le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint16(b[8:])}
}

// Put writes the header to the beginning of b.
func (v Header) Put(b []byte) {
	le := binary.LittleEndian
	b[0], b[1] = v.Flags, v.GSOType
	le.PutUint16(b[2:], v.HdrLen)
	le.PutUint16(b[4:], v.GSOSize)
	le.PutUint16(b[6:], v.CsumStart)
	le.PutUint16(b[8:], v.CsumOffset)
}

// Partial is the header of a packet that leaves its checksum to the device; ok is false where no device does that.
func Partial(h *inet.Header) (v Header, ok bool) {
	off, ok := h.ChecksumOffset()
	if !ok {
		return Header{}, false
	}
	return Header{Flags: NeedsChecksum, CsumStart: uint16(h.L4), CsumOffset: uint16(off)}, true
}

// Super is the header of a super-segment whose segments, but the last, hold size bytes.
func Super(h *inet.Header, size int) Header {
	v, _ := Partial(h)
	v.HdrLen, v.GSOSize = uint16(h.L4+h.L4Len), uint16(size)
	switch {
	case h.Proto == inet.ProtoUDP:
		v.GSOType = GSOUDP
	case h.Version == 4:
		v.GSOType = GSOTCPv4
	default:
		v.GSOType = GSOTCPv6
	}
	return v
}

// Check reads a frame and its packet's headers into h, and reports whether they fit: a packet whose header is Valid.
func Check(frame []byte, h *inet.Header) (v Header, ok bool) {
	if len(frame) < HeaderLen || len(frame) > MaxFrame {
		return Header{}, false
	}
	v, pkt := Get(frame), frame[HeaderLen:]
	return v, h.Parse(pkt, 0) == nil && v.Valid(h, pkt)
}

// Valid is the gate for headers from outside: it reports whether v has its one form; h was parsed from pkt.
func (v Header) Valid(h *inet.Header, pkt []byte) bool {
	switch v.Flags {
	case 0:
		if v.CsumStart != 0 || v.CsumOffset != 0 {
			return false
		}
	case NeedsChecksum:
		if !v.covers(h) {
			return false
		}
	default:
		return false
	}
	if v.GSOType == GSONone {
		return v.HdrLen == 0 && v.GSOSize == 0
	}
	if v.Flags != NeedsChecksum || int(v.HdrLen) != h.L4+h.L4Len || len(pkt) <= int(v.HdrLen) {
		return false
	}
	payload := len(pkt) - int(v.HdrLen)
	switch v.GSOType {
	case GSOTCPv4, GSOTCPv4 | GSOECN:
		return h.Version == 4 && h.Proto == inet.ProtoTCP && v.GSOSize >= MinTCPSegment
	case GSOTCPv6, GSOTCPv6 | GSOECN:
		return h.Version == 6 && h.Proto == inet.ProtoTCP && v.GSOSize >= MinTCPSegment
	case GSOUDP:
		return h.Proto == inet.ProtoUDP && v.GSOSize > 0 && int(v.GSOSize)*MaxUDPSegments >= payload
	}
	return false
}

// covers reports whether the checksum left to the device is the one of the transport header.
func (v Header) covers(h *inet.Header) bool {
	off, ok := h.ChecksumOffset()
	return ok && int(v.CsumStart) == h.L4 && int(v.CsumOffset) == off
}

// Normalize brings the header b of a packet that the own kernel sent into the wire's form. The kernel's hdr_len is only
// a hint (it may cover the linear part of the buffer), DATA_VALID means nothing to a peer, and a partial checksum may
// belong to a header inside another one (VXLAN or IPIP of a pod): that one is completed here. It reports false where
// the header does not fit the packet.
func Normalize(b []byte, h *inet.Header, pkt []byte) bool {
	v := Get(b)
	needs := v.Flags&NeedsChecksum != 0
	ours := v.covers(h)
	if v.GSOType == GSONone {
		n := Header{}
		switch {
		case needs && ours:
			n, _ = Partial(h)
		case needs:
			if !inet.Complete(pkt, int(v.CsumStart), int(v.CsumOffset)) {
				return false
			}
		}
		n.Put(b)
		return true
	}
	n, known := Partial(h)
	if !known || needs && !ours {
		return false
	}
	if !needs { // segments of a packet with a finished checksum: make it partial again
		h.SetPartial(pkt)
	}
	if end := h.L4 + h.L4Len; len(pkt) > end { // else there is nothing to cut
		n.GSOType, n.HdrLen, n.GSOSize = v.GSOType, uint16(end), v.GSOSize
	}
	if !n.Valid(h, pkt) {
		return false
	}
	n.Put(b)
	return true
}

// Complete finishes the checksum of a frame that is not a super-segment, where that is left to the device. It reports
// false, and changes nothing, where the frame is not valid.
func Complete(frame []byte) bool {
	var h inet.Header
	v, ok := Check(frame, &h)
	if !ok || v.GSOType != GSONone || v.Flags == 0 {
		return ok && v.GSOType == GSONone
	}
	return inet.Complete(frame[HeaderLen:], int(v.CsumStart), int(v.CsumOffset))
}
