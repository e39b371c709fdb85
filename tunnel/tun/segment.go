package tun

import (
	"encoding/binary"
	"io"

	"golang.org/x/sys/unix"
)

const (
	// maxHeaders bounds the IP and transport headers that are repeated in each
	// segment, IPv6 extension headers included (bytes).
	maxHeaders = 512
	// minTCPSegment and maxUDPSegments are the kernel's own bounds
	// (TCP_MIN_GSO_SIZE, UDP_MAX_SEGMENTS): one frame must not become 65535 writes.
	minTCPSegment  = 8
	maxUDPSegments = 128

	tcpChecksum = 16 // offset in the TCP header, bytes
	udpChecksum = 6  // offset in the UDP header, bytes

	tcpFIN, tcpPSH, tcpCWR = 0x01, 0x08, 0x80
)

// header is struct virtio_net_hdr (linux/virtio_net.h), without hdr_len, which is
// a hint only. Lengths and offsets are in bytes from the start of the packet.
type header struct {
	flags, gsoType        uint8
	gsoSize               int
	csumStart, csumOffset int
}

func parseHeader(frame []byte) header {
	return header{
		flags:      frame[0],
		gsoType:    frame[1],
		gsoSize:    int(binary.LittleEndian.Uint16(frame[4:])),
		csumStart:  int(binary.LittleEndian.Uint16(frame[6:])),
		csumOffset: int(binary.LittleEndian.Uint16(frame[8:])),
	}
}

// ipHeaderLen is the length of the IP header that pkt starts with, without IPv6
// extension headers, or more than any packet's length if there is none.
func ipHeaderLen(pkt []byte) int {
	switch {
	case len(pkt) >= 20 && pkt[0]>>4 == 4 && pkt[0]&15 >= 5:
		return int(pkt[0]&15) * 4
	case len(pkt) >= 40 && pkt[0]>>4 == 6:
		return 40
	}
	return maxFrame
}

// splitter cuts one super-segment into the packets it stands for. It does not copy
// payload: each segment's headers are written over the tail of the one before,
// which has been sent by then.
type splitter struct {
	frame   []byte
	headers [vnetHdrLen + maxHeaders]byte // a zero virtio-net header, IP, transport
	hdrLen  int                           // bytes of headers in use
	l4      int                           // offset of the transport header in a segment's frame
	udp     bool
	size    int    // payload bytes of each segment but the last
	partial uint64 // sum of the pseudo header without the length
	first   int    // offset of the payload in frame
	next    int    // offset of the next segment's payload
}

// split prepares s for frame. It returns ErrFrame if the frame's header is not that
// of a TCP or UDP super-segment or does not fit its packet.
func (s *splitter) split(frame []byte) error {
	if len(frame) < vnetHdrLen || len(frame) > maxFrame {
		return ErrFrame
	}
	h, pkt := parseHeader(frame), frame[vnetHdrLen:]
	s.udp = h.gsoType == unix.VIRTIO_NET_HDR_GSO_UDP_L4
	proto, sumOffset, l4Len := byte(unix.IPPROTO_TCP), tcpChecksum, 20
	if s.udp {
		proto, sumOffset, l4Len = unix.IPPROTO_UDP, udpChecksum, 8
	}
	if h.flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 || h.csumOffset != sumOffset ||
		!superIP(pkt, h, proto) || h.csumStart+l4Len > len(pkt) {
		return ErrFrame
	}
	if !s.udp {
		if l4Len = int(pkt[h.csumStart+12]>>4) * 4; l4Len < 20 {
			return ErrFrame
		}
	}
	payload := len(pkt) - h.csumStart - l4Len
	if payload <= 0 || h.csumStart+l4Len > maxHeaders {
		return ErrFrame
	}
	if s.udp && payload > h.gsoSize*maxUDPSegments || !s.udp && h.gsoSize < minTCPSegment {
		return ErrFrame
	}

	s.frame = frame
	s.l4 = vnetHdrLen + h.csumStart
	s.hdrLen = s.l4 + l4Len
	s.size = h.gsoSize
	s.first, s.next = s.hdrLen, s.hdrLen
	clear(s.headers[:vnetHdrLen])
	copy(s.headers[vnetHdrLen:s.hdrLen], pkt)
	// Subtracting in one's complement is adding the complement (RFC 1624).
	s.partial = uint64(binary.BigEndian.Uint16(frame[s.l4+sumOffset:])) + uint64(^uint16(len(frame)-s.l4))
	return nil
}

// superIP says whether pkt is one whole IP packet of the version and protocol that
// the gso_type names, with its transport header where the checksum starts. IPv6
// extension headers are the sender's word: they are repeated as they are.
func superIP(pkt []byte, h header, proto byte) bool {
	ipLen := ipHeaderLen(pkt)
	if ipLen > len(pkt) || h.csumStart < ipLen {
		return false
	}
	v6 := pkt[0]>>4 == 6
	gsoType, want := h.gsoType, uint8(unix.VIRTIO_NET_HDR_GSO_UDP_L4)
	if proto == unix.IPPROTO_TCP {
		gsoType &^= unix.VIRTIO_NET_HDR_GSO_ECN
		want = unix.VIRTIO_NET_HDR_GSO_TCPV4
		if v6 {
			want = unix.VIRTIO_NET_HDR_GSO_TCPV6
		}
	}
	if gsoType != want {
		return false
	}
	if v6 {
		return int(binary.BigEndian.Uint16(pkt[4:])) == len(pkt)-ipLen && (h.csumStart > ipLen || pkt[6] == proto)
	}
	fragment := binary.BigEndian.Uint16(pkt[6:]) & 0x3fff // MF and offset
	return int(binary.BigEndian.Uint16(pkt[2:])) == len(pkt) && h.csumStart == ipLen && pkt[9] == proto && fragment == 0
}

// segment returns the frame of the next packet, with a zero header and all
// checksums finished, or nil after the last. It is valid until the next call.
func (s *splitter) segment() []byte {
	if s.next >= len(s.frame) {
		return nil
	}
	at := s.next
	end := min(at+s.size, len(s.frame))
	s.next = end

	seg := s.frame[at-s.hdrLen : end]
	copy(seg, s.headers[:s.hdrLen])
	index := (at - s.first) / s.size
	patchIP(seg[vnetHdrLen:], index)

	l4 := seg[s.l4:]
	sumOffset := tcpChecksum
	if s.udp {
		sumOffset = udpChecksum
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	} else {
		binary.BigEndian.PutUint32(l4[4:], binary.BigEndian.Uint32(l4[4:])+uint32(at-s.first))
		if index > 0 {
			l4[13] &^= tcpCWR // RFC 3168, 6.1.2: once per window
		}
		if end < len(s.frame) {
			l4[13] &^= tcpFIN | tcpPSH
		}
	}
	binary.BigEndian.PutUint16(l4[sumOffset:], fold(s.partial+uint64(len(l4))))
	finish(l4, 0, sumOffset)
	return seg
}

// patchIP sets the lengths of segment number index, and the identification and
// header checksum of IPv4.
func patchIP(pkt []byte, index int) {
	if pkt[0]>>4 == 6 {
		binary.BigEndian.PutUint16(pkt[4:], uint16(len(pkt)-40))
		return
	}
	binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
	binary.BigEndian.PutUint16(pkt[4:], binary.BigEndian.Uint16(pkt[4:])+uint16(index))
	pkt[10], pkt[11] = 0, 0
	binary.BigEndian.PutUint16(pkt[10:], ^sum(pkt[:ipHeaderLen(pkt)]))
}

// writeSegments writes the packets that frame stands for to w, one Write each,
// without the first skip bytes of the virtio-net header.
func writeSegments(w io.Writer, frame []byte, skip int) error {
	var s splitter
	if err := s.split(frame); err != nil {
		return err
	}
	for seg := s.segment(); seg != nil; seg = s.segment() {
		if _, err := w.Write(seg[skip:]); err != nil {
			return err
		}
	}
	return nil
}
