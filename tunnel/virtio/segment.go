package virtio

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
)

// maxHeaders bounds the IP and transport headers that are repeated in each segment, IPv6 extension headers included
// (bytes).
const maxHeaders = 512

// Splitter cuts one super-segment into the packets it stands for. It does not copy payload: each segment's headers are
// written over the tail of the one before, which the caller has sent by then.
type Splitter struct {
	frame    []byte
	headers  [HeaderLen + maxHeaders]byte // as they were: virtio, IP, transport
	virtio   [HeaderLen]byte              // of each segment
	hdrLen   int                          // bytes of headers in use
	ip       inet.Header
	size     int    // payload bytes of each segment but the last
	pseudo   uint64 // sum of the pseudo header without the length
	next     int    // offset of the next segment's payload
	index    int    // its number
	complete bool
}

// Split prepares s for a frame whose header v is Valid for the packet's headers h. With complete, the packets have
// finished checksums, else partial ones. It reports false, and changes nothing, where the frame is not a super-segment or
// its headers are too long to be repeated.
func (s *Splitter) Split(frame []byte, v Header, h *inet.Header, complete bool) bool {
	if v.GSOType == GSONone || v.HdrLen > maxHeaders {
		return false
	}
	s.frame, s.ip, s.complete = frame, *h, complete
	s.hdrLen, s.size = HeaderLen+int(v.HdrLen), int(v.GSOSize)
	s.next, s.index = s.hdrLen, 0
	s.pseudo = h.PseudoSum(frame[HeaderLen:])
	copy(s.headers[:s.hdrLen], frame)
	each := Header{}
	if !complete {
		each, _ = Partial(h)
	}
	each.Put(s.virtio[:])
	return true
}

// Next returns the frame of the next packet, or nil after the last. It is valid until the next call.
func (s *Splitter) Next() []byte {
	if s.next >= len(s.frame) {
		return nil
	}
	at := s.next
	s.next = min(at+s.size, len(s.frame))
	frame := s.frame[at-s.hdrLen : s.next]
	copy(frame, s.virtio[:])
	copy(frame[HeaderLen:], s.headers[HeaderLen:s.hdrLen])
	pkt := frame[HeaderLen:]
	s.putIP(pkt)
	s.putTransport(pkt[s.ip.L4:])
	s.index++
	return frame
}

// Undo makes the frame what it was, as long as Next was called once at most.
func (s *Splitter) Undo() { copy(s.frame, s.headers[:s.hdrLen]) }

// putIP sets the length of a segment, and the identification and header checksum of IPv4.
func (s *Splitter) putIP(pkt []byte) {
	if s.ip.Version == 6 {
		binary.BigEndian.PutUint16(pkt[4:], uint16(len(pkt)-40))
		return
	}
	binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
	binary.BigEndian.PutUint16(pkt[4:], binary.BigEndian.Uint16(pkt[4:])+uint16(s.index))
	inet.SetChecksum4(pkt)
}

// putTransport sets what differs in the TCP or UDP header of a segment, and its checksum.
func (s *Splitter) putTransport(l4 []byte) {
	off := inet.UDPChecksum
	if s.ip.Proto == inet.ProtoUDP {
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	} else {
		off = inet.TCPChecksum
		binary.BigEndian.PutUint32(l4[4:], binary.BigEndian.Uint32(l4[4:])+uint32(s.index*s.size))
		if s.index > 0 {
			l4[13] &^= inet.CWR // RFC 3168, 6.1.2: once per window
		}
		if s.next < len(s.frame) {
			l4[13] &^= inet.FIN | inet.PSH
		}
	}
	binary.BigEndian.PutUint16(l4[off:], inet.FoldSum(s.pseudo+uint64(len(l4))))
	if s.complete {
		inet.Complete(l4, 0, off)
	}
}
