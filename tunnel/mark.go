package tunnel

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// The sender of a flow learns that its queue stands by a mark if the packet may be marked, otherwise by the loss of one
// segment, not of the whole super-segment.

// markCE sets "congestion experienced" in an IP packet whose sender understands it (RFC 3168 section 5), and reports
// whether it does.
func markCE(ip []byte) bool {
	const ce = 3
	if ip[0]>>4 == 4 {
		if ip[1]&ce == 0 {
			return false
		}
		if ip[1]&ce != ce {
			ip[1] |= ce
			inet.SetChecksum4(ip)
		}
		return true
	}
	if ip[1]>>4&ce == 0 {
		return false
	}
	ip[1] |= ce << 4
	return true
}

// trim removes the last segment of a TCP super-segment, and reports whether p is one. The receiver sees a loss before the
// next super-segment.
func trim(p *packet) bool {
	v := virtio.Get(p.buf[frameHdrLen:])
	if v.GSOType&^virtio.GSOECN != virtio.GSOTCPv4 && v.GSOType&^virtio.GSOECN != virtio.GSOTCPv6 {
		return false
	}
	var h inet.Header
	ip := p.ip()
	if h.Parse(ip, 0) != nil || !v.Valid(&h, ip) {
		return false
	}
	payload, size := len(ip)-int(v.HdrLen), int(v.GSOSize)
	if payload <= size {
		return false
	}
	kept := (payload - 1) / size * size
	ip[h.L4+13] &^= inet.FIN | inet.PSH // of the last segment
	p.n = frameHdrLen + virtio.HeaderLen + int(v.HdrLen) + kept
	shorten(p, &h, v)
	return true
}

// leastPiece is how many segments cut takes at least: the headers of one are 5 % of it, and a pod's kernel sends at least two
// together (tcp_min_tso_segs).
const leastPiece = 2

// cut takes the first segments of a TCP super-segment off it, as many as most bytes hold, leastPiece at least. It returns
// nil, and changes nothing, where p is not one, or not longer. On a slow path a whole one would delay all other flows, and
// delay control would act on it once in hundreds of milliseconds; what is cut is joined again at the other end.
func cut(ps *pools, p *packet, most int) *packet {
	if most == 0 || p.n <= most {
		return nil
	}
	v := virtio.Get(p.buf[frameHdrLen:])
	if v.GSOType&^virtio.GSOECN != virtio.GSOTCPv4 && v.GSOType&^virtio.GSOECN != virtio.GSOTCPv6 {
		return nil
	}
	var h inet.Header
	ip := p.ip()
	if h.Parse(ip, 0) != nil || !v.Valid(&h, ip) {
		return nil
	}
	size, headers := int(v.GSOSize), frameHdrLen+virtio.HeaderLen+int(v.HdrLen)
	segments := max(leastPiece, (most-headers)/size)
	taken := segments * size
	if headers+taken >= p.n {
		return nil
	}
	head := ps.get(headers + taken)
	head.n, head.flow, head.at = copy(head.buf, p.buf[:headers+taken]), p.flow, p.at
	head.ip()[h.L4+13] &^= inet.FIN | inet.PSH // of the last segment
	shorten(head, &h, v)

	p.n = headers + copy(p.buf[headers:], p.buf[headers+taken:p.n])
	rest := p.ip()
	binary.BigEndian.PutUint32(rest[h.L4+4:], binary.BigEndian.Uint32(rest[h.L4+4:])+uint32(taken))
	rest[h.L4+13] &^= inet.CWR // RFC 3168, 6.1.2: once per window
	if h.Version == 4 {
		binary.BigEndian.PutUint16(rest[4:], binary.BigEndian.Uint16(rest[4:])+uint16(segments))
	}
	v.GSOType &^= virtio.GSOECN
	shorten(p, &h, v)
	return head
}

// shorten makes the headers of a TCP super-segment, v and h, fit its new length p.n.
func shorten(p *packet, h *inet.Header, v virtio.Header) {
	ip := p.ip()
	h.SetLength(ip)
	if len(ip)-int(v.HdrLen) <= int(v.GSOSize) { // one is left
		v.GSOType, v.HdrLen, v.GSOSize = virtio.GSONone, 0, 0
	}
	v.Put(p.buf[frameHdrLen:])
	putFrameHdr(p.buf, framePacket, p.n-frameHdrLen)
}
