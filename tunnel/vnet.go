package tunnel

import "encoding/binary"

// Values of struct virtio_net_hdr, linux/virtio_net.h.
const (
	vnetNeedsCsum = 1 // flags: the transport checksum is partial

	gsoNone  = 0
	gsoTCPv4 = 1
	gsoTCPv6 = 4
	gsoUDPL4 = 5
	gsoECN   = 0x80 // the TCP flow has CWR set on its first segment only

	tcpCsumOffset = 16
	udpCsumOffset = 6

	// minTCPGSO is the kernel's TCP_MIN_GSO_SIZE, maxUDPSegments its
	// UDP_MAX_SEGMENTS (linux/udp.h).
	minTCPGSO      = 8
	maxUDPSegments = 128
)

// vnetHdr is a struct virtio_net_hdr. On the wire it has one form only, the one
// normalize makes and valid accepts:
//   - flags are 0 or NEEDS_CSUM; with it, csum_start is the TCP or UDP header
//     and csum_offset its checksum field, without it both are 0;
//   - without segmentation hdr_len and gso_size are 0; with it, NEEDS_CSUM is set,
//     gso_type matches IP version and protocol, hdr_len is the end of the
//     transport header and there is payload behind it.
type vnetHdr struct {
	flags, gsoType                         uint8
	hdrLen, gsoSize, csumStart, csumOffset uint16
}

func getVnetHdr(b []byte) vnetHdr {
	le := binary.LittleEndian
	return vnetHdr{b[0], b[1], le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint16(b[8:])}
}

func (v vnetHdr) put(b []byte) {
	le := binary.LittleEndian
	b[0], b[1] = v.flags, v.gsoType
	le.PutUint16(b[2:], v.hdrLen)
	le.PutUint16(b[4:], v.gsoSize)
	le.PutUint16(b[6:], v.csumStart)
	le.PutUint16(b[8:], v.csumOffset)
}

// valid is the gate for headers of peers: h was parsed from pkt.
func (v vnetHdr) valid(h *header, pkt []byte) bool {
	switch v.flags {
	case 0:
		if v.csumStart != 0 || v.csumOffset != 0 {
			return false
		}
	case vnetNeedsCsum:
		off, ok := csumOffset(h)
		if !ok || int(v.csumStart) != h.l4 || v.csumOffset != off {
			return false
		}
	default:
		return false
	}
	if v.gsoType == gsoNone {
		return v.hdrLen == 0 && v.gsoSize == 0
	}
	if v.flags != vnetNeedsCsum || int(v.hdrLen) != h.l4+h.l4Len || len(pkt) <= int(v.hdrLen) {
		return false
	}
	payload := len(pkt) - int(v.hdrLen)
	switch v.gsoType {
	case gsoTCPv4, gsoTCPv4 | gsoECN:
		return h.version == 4 && h.proto == protoTCP && v.gsoSize >= minTCPGSO
	case gsoTCPv6, gsoTCPv6 | gsoECN:
		return h.version == 6 && h.proto == protoTCP && v.gsoSize >= minTCPGSO
	case gsoUDPL4:
		return h.proto == protoUDP && v.gsoSize > 0 && int(v.gsoSize)*maxUDPSegments >= payload
	}
	return false
}

// csumOffset is where the transport header keeps its checksum; only TCP and UDP
// are left to the far kernel.
func csumOffset(h *header) (off uint16, ok bool) {
	if h.l4 == 0 {
		return 0, false
	}
	switch h.proto {
	case protoTCP:
		return tcpCsumOffset, true
	case protoUDP:
		return udpCsumOffset, true
	}
	return 0, false
}

// normalize brings the header b of a packet that the own kernel sent into the
// wire's form. The kernel's hdr_len is no more than a hint (it may cover the
// linear part of the buffer), DATA_VALID means nothing to a peer, and a partial
// checksum may belong to a header inside another one (VXLAN or IPIP of a pod):
// that one is finished here. It returns 0 or DropBadOffload.
func normalize(b []byte, h *header, pkt []byte) Reason {
	v := getVnetHdr(b)
	needs := v.flags&vnetNeedsCsum != 0
	off, known := csumOffset(h)
	ours := known && int(v.csumStart) == h.l4 && v.csumOffset == off
	if v.gsoType == gsoNone {
		n := vnetHdr{}
		switch {
		case needs && ours:
			n = vnetHdr{flags: vnetNeedsCsum, csumStart: v.csumStart, csumOffset: v.csumOffset}
		case needs:
			if !finishChecksum(pkt, int(v.csumStart), int(v.csumOffset)) {
				return DropBadOffload
			}
		}
		n.put(b)
		return 0
	}
	if !known || needs && !ours {
		return DropBadOffload
	}
	if !needs { // segments of a packet with a finished checksum: make it partial again
		partialChecksum(pkt, h, int(off))
	}
	n := vnetHdr{vnetNeedsCsum, v.gsoType, uint16(h.l4 + h.l4Len), v.gsoSize, uint16(h.l4), off}
	if len(pkt) == int(n.hdrLen) { // nothing to cut
		n.gsoType, n.hdrLen, n.gsoSize = gsoNone, 0, 0
	}
	if !n.valid(h, pkt) {
		return DropBadOffload
	}
	n.put(b)
	return 0
}
