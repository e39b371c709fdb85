package tunnel

import (
	"bytes"
	"encoding/binary"
)

const (
	tcpFIN, tcpSYN, tcpRST, tcpPSH, tcpURG, tcpCWR = 0x01, 0x02, 0x04, 0x08, 0x20, 0x80
)

// tcpJoiner makes one super-segment of the TCP packets that lie one behind the
// other in a stream's read buffer, as the kernel's GRO does and under its
// conditions: all but the sequence number is the same. Nothing waits for it; only
// what has arrived already is joined. After a loss on the path all that waited for
// the retransmission comes at once.
type tcpJoiner struct {
	buf  []byte // the reader's, from the virtio header of the first packet on; nil: nothing is held
	n    int    // bytes of virtio header and packet
	h    header
	size int  // payload of each segment but the last
	many bool // something was joined
	more bool // another one fits behind it
}

// hold takes an admitted packet, b[:n] with its virtio header, behind which the
// reader's buffer goes on. It reports false when nothing can be joined to it.
func (j *tcpJoiner) hold(b []byte, n int, h *header) bool {
	ip := b[VnetHdrLen:n]
	v := getVnetHdr(b)
	payload := len(ip) - h.l4 - h.l4Len
	if !plainTCP(h, ip) || v.flags != vnetNeedsCsum || payload < minTCPGSO || ip[h.l4+13]&(tcpFIN|tcpPSH) != 0 {
		return false
	}
	size := payload
	if v.gsoType != gsoNone {
		size = int(v.gsoSize)
	}
	if payload%size != 0 {
		return false
	}
	*j = tcpJoiner{buf: b, n: n, h: *h, size: size, more: true}
	return true
}

// plainTCP: right behind IP, with data, and nothing in it that GRO leaves alone.
func plainTCP(h *header, ip []byte) bool {
	return h.proto == protoTCP && (h.version == 4 && h.l4 == 20 || h.version == 6 && h.l4 == 40) &&
		ip[h.l4+13]&(tcpSYN|tcpRST|tcpURG|tcpCWR) == 0
}

// join appends the packet that follows in the reader's buffer, if it may.
func (j *tcpJoiner) join(b []byte, h *header) bool {
	ip := b[VnetHdrLen:]
	v := getVnetHdr(b)
	payload := len(ip) - h.l4 - h.l4Len
	if !j.more || h.version != j.h.version || h.l4Len != j.h.l4Len || !plainTCP(h, ip) ||
		v.flags != vnetNeedsCsum || payload <= 0 || j.n-VnetHdrLen+payload > 65535 {
		return false
	}
	if v.gsoType == gsoNone && payload > j.size || v.gsoType != gsoNone && int(v.gsoSize) != j.size {
		return false
	}
	if !j.follows(ip) {
		return false
	}
	j.more = payload%j.size == 0 && ip[h.l4+13]&(tcpFIN|tcpPSH) == 0
	j.buf[VnetHdrLen+h.l4+13] |= ip[h.l4+13]
	j.many = true
	j.n += copy(j.buf[j.n:], ip[h.l4+h.l4Len:])
	return true
}

// follows compares headers.
func (j *tcpJoiner) follows(ip []byte) bool {
	first, l4 := j.buf[VnetHdrLen:j.n], j.h.l4
	const df = 0x40
	if j.h.version == 4 {
		segments := (len(first) - l4 - j.h.l4Len) / j.size
		id := binary.BigEndian.Uint16(first[4:]) + uint16(segments)
		if !bytes.Equal(first[:2], ip[:2]) || !bytes.Equal(first[6:10], ip[6:10]) || !bytes.Equal(first[12:20], ip[12:20]) ||
			ip[6]&df == 0 && binary.BigEndian.Uint16(ip[4:]) != id {
			return false
		}
	} else if !bytes.Equal(first[:4], ip[:4]) || !bytes.Equal(first[6:40], ip[6:40]) {
		return false
	}
	a, b := first[l4:l4+j.h.l4Len], ip[l4:l4+j.h.l4Len]
	next := binary.BigEndian.Uint32(a[4:]) + uint32(len(first)-l4-j.h.l4Len)
	return bytes.Equal(a[:4], b[:4]) && binary.BigEndian.Uint32(b[4:]) == next && bytes.Equal(a[8:13], b[8:13]) &&
		(a[13]^b[13])&^(tcpFIN|tcpPSH) == 0 && bytes.Equal(a[14:16], b[14:16]) && bytes.Equal(a[20:], b[20:])
}

// frame returns what was joined, for one Write of the device, and holds nothing
// afterwards; nil when there was nothing.
func (j *tcpJoiner) frame() []byte {
	if j.buf == nil {
		return nil
	}
	b := j.buf[:j.n]
	if j.many {
		v := vnetHdr{vnetNeedsCsum, gsoTCPv4, uint16(j.h.l4 + j.h.l4Len), uint16(j.size), uint16(j.h.l4), tcpCsumOffset}
		if j.h.version == 6 {
			v.gsoType = gsoTCPv6
		}
		v.put(b)
		setTCPLength(b[VnetHdrLen:], &j.h)
	}
	*j = tcpJoiner{}
	return b
}
