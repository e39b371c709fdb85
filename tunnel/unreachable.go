package tunnel

import (
	"encoding/binary"
	"time"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

const (
	// eachUnreachable a second go to one address, and allUnreachable to all.
	eachUnreachable = 100
	allUnreachable  = 2000
)

// unreachable answers the sender of a packet that found no path to its peer in time, or whose destination no member owns:
// ICMP host unreachable (RFC 792) or ICMPv6 address unreachable (RFC 4443 section 3.1), so that connect fails with
// EHOSTUNREACH instead of hanging. The source is the gateway of the peer's block, which is the host that cannot be
// reached, or the destination if no block has it. It cannot be the own gateway: Linux drops what arrives from an address
// of its own as a martian. No sender can use up the answers of others.
func (t *Tunnel) unreachable(ip []byte) {
	var h inet.Header
	if h.Parse(ip, t.seed) != nil || !answerable(&h, ip) {
		return
	}
	src, own := t.table.Load().gateway(h.Dst)
	if own || !t.icmp.Allow(h.Src, time.Now()) {
		return
	}
	out := t.pools.get(smallLen)
	defer t.pools.put(out)
	b := out.buf[:virtio.HeaderLen]
	clear(b)
	if h.Version == 4 {
		b = appendICMP4(b, src.As4(), h.Src.As4(), ip)
	} else {
		b = appendICMP6(b, src.As16(), h.Src.As16(), ip)
	}
	if err := t.cfg.Device.Write(b); err != nil {
		t.lost.drop(DropDevice)
	}
}

// answerable keeps to RFC 1122 section 3.2.2 and RFC 4443 section 2.4: no error about an error or a later fragment.
func answerable(h *inet.Header, ip []byte) bool {
	if h.Fragment {
		return false // the first one, too: the others are dropped as well
	}
	switch h.Proto {
	case inet.ProtoICMP:
		return h.Version == 4 && len(ip) > h.L4 && (ip[h.L4] == 8 || ip[h.L4] == 13) // echo, timestamp
	case inet.ProtoICMPv6:
		return h.Version == 6 && len(ip) > h.L4 && ip[h.L4] >= 128
	}
	return true
}

func appendICMP4(b []byte, src, dst [4]byte, about []byte) []byte {
	about = about[:min(len(about), 576-28)]
	at := len(b)
	b = append(b, 0x45, 0xc0, 0, 0, 0, 0, 0, 0, 64, inet.ProtoICMP, 0, 0)
	b = append(append(b, src[:]...), dst[:]...)
	b = append(b, 3, 1, 0, 0, 0, 0, 0, 0) // destination unreachable, host
	b = append(b, about...)
	ip := b[at:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	inet.SetChecksum4(ip)
	binary.BigEndian.PutUint16(ip[22:], inet.Checksum(0, ip[20:]))
	return b
}

func appendICMP6(b []byte, src, dst [16]byte, about []byte) []byte {
	about = about[:min(len(about), 1280-48)]
	at := len(b)
	n := 8 + len(about)
	b = append(b, 0x60, 0, 0, 0, byte(n>>8), byte(n), inet.ProtoICMPv6, 64)
	b = append(append(b, src[:]...), dst[:]...)
	b = append(b, 1, 3, 0, 0, 0, 0, 0, 0) // destination unreachable, address
	b = append(b, about...)
	ip := b[at:]
	pseudo := uint64(n) + inet.ProtoICMPv6 + uint64(inet.Sum(ip[8:40]))
	binary.BigEndian.PutUint16(ip[42:], inet.Checksum(pseudo, ip[40:]))
	return b
}
