package tunnel

import (
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
	ip = ip[:int(v.HdrLen)+kept]
	ip[h.L4+13] &^= inet.FIN | inet.PSH // of the last segment
	h.SetLength(ip)
	if kept == size { // one is left
		v.GSOType, v.HdrLen, v.GSOSize = virtio.GSONone, 0, 0
	}
	v.Put(p.buf[frameHdrLen:])
	p.n = frameHdrLen + virtio.HeaderLen + len(ip)
	putFrameHdr(p.buf, framePacket, p.n-frameHdrLen)
	return true
}
