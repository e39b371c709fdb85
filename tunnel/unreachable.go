package tunnel

import "encoding/binary"

// unreachable answers the sender of a packet that found no path to its peer in
// time, or whose destination no member owns: ICMP host unreachable (RFC 792) or
// ICMPv6 address unreachable (RFC 4443 section 3.1), so that connect fails with
// EHOSTUNREACH instead of hanging. The source is the gateway of the peer's block,
// the host that cannot be reached, or the destination where there is none: the
// own gateway is an address of this host, and Linux drops packets that arrive
// with one as martians. Not more than 100 a second are sent.
func (t *Tunnel) unreachable(ip []byte) {
	var h header
	if h.parse(ip, t.seed) != 0 || !answerable(&h, ip) {
		return
	}
	src := h.dst
	if o, ok := t.table.Load().lookup(h.dst); ok {
		if o.peer == nil {
			return
		}
		src = o.prefix.Addr().Next()
	}
	if !t.icmp.Allow() {
		return
	}
	out := t.pools.get(smallLen)
	defer t.pools.put(out)
	b := out.buf[:VnetHdrLen]
	clear(b)
	if h.version == 4 {
		b = appendICMP4(b, src.As4(), h.src.As4(), ip)
	} else {
		b = appendICMP6(b, src.As16(), h.src.As16(), ip)
	}
	if err := t.cfg.Device.Write(b); err != nil {
		t.lost.drop(DropDevice)
	}
}

// answerable holds what RFC 1122 section 3.2.2 and RFC 4443 section 2.4 forbid:
// no error about an error or a later fragment.
func answerable(h *header, ip []byte) bool {
	if h.fragment {
		return false // the first one, too: its rest is not coming either
	}
	switch h.proto {
	case protoICMP:
		return h.version == 4 && len(ip) > h.l4 && (ip[h.l4] == 8 || ip[h.l4] == 13) // echo, timestamp
	case protoICMPv6:
		return h.version == 6 && len(ip) > h.l4 && ip[h.l4] >= 128
	}
	return true
}

func appendICMP4(b []byte, src, dst [4]byte, about []byte) []byte {
	about = about[:min(len(about), 576-28)]
	at := len(b)
	b = append(b, 0x45, 0xc0, 0, 0, 0, 0, 0, 0, 64, protoICMP, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	b = append(b, 3, 1, 0, 0, 0, 0, 0, 0) // destination unreachable, host
	b = append(b, about...)
	ip := b[at:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[10:], ^checksum(0, ip[:20]))
	binary.BigEndian.PutUint16(ip[22:], ^checksum(0, ip[20:]))
	return b
}

func appendICMP6(b []byte, src, dst [16]byte, about []byte) []byte {
	about = about[:min(len(about), 1280-48)]
	at := len(b)
	n := 8 + len(about)
	b = append(b, 0x60, 0, 0, 0, byte(n>>8), byte(n), protoICMPv6, 64)
	b = append(append(b, src[:]...), dst[:]...)
	b = append(b, 1, 3, 0, 0, 0, 0, 0, 0) // destination unreachable, address
	b = append(b, about...)
	ip := b[at:]
	sum := sumWords(uint32(n)+protoICMPv6, ip[8:40])
	binary.BigEndian.PutUint16(ip[42:], ^checksum(sum, ip[40:]))
	return b
}
