package tunnel

// What tells the sender of a flow that its queue stands: a mark where the packet
// may be marked, else the loss of one segment, not of all that were read at once.

// markCE sets "congestion experienced" in an IP packet whose sender understands
// it (RFC 3168 section 5) and reports whether it could.
func markCE(ip []byte) bool {
	const ce = 3
	if ip[0]>>4 == 4 {
		if ip[1]&ce == 0 {
			return false
		}
		if ip[1]&ce != ce {
			ip[1] |= ce
			headerChecksum4(ip)
		}
		return true
	}
	if ip[1]>>4&ce == 0 {
		return false
	}
	ip[1] |= ce << 4
	return true
}

// trim takes the last segment off a TCP super-segment and reports whether p is
// one. Its receiver sees one loss followed by the next super-segment.
func trim(p *packet) bool {
	v := getVnetHdr(p.buf[frameHdrLen:])
	if v.gsoType&^gsoECN != gsoTCPv4 && v.gsoType&^gsoECN != gsoTCPv6 {
		return false
	}
	var h header
	ip := p.ip()
	if h.parse(ip, 0) != 0 || !v.valid(&h, ip) {
		return false
	}
	payload, size := len(ip)-int(v.hdrLen), int(v.gsoSize)
	if payload <= size {
		return false
	}
	kept := (payload - 1) / size * size
	ip = ip[:int(v.hdrLen)+kept]
	ip[h.l4+13] &^= tcpFIN | tcpPSH // of the last segment
	setTCPLength(ip, &h)
	if kept == size { // one is left
		v.gsoType, v.hdrLen, v.gsoSize = gsoNone, 0, 0
	}
	v.put(p.buf[frameHdrLen:])
	p.n = frameHdrLen + VnetHdrLen + len(ip)
	putFrameHdr(p.buf, framePacket, p.n-frameHdrLen)
	return true
}
