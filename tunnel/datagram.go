package tunnel

import (
	"encoding/binary"
	"errors"
)

// A DatagramCarrier's path also takes single packets, unreliably and in any order:
// a lost one delays nothing. The datagram lane sends there what fits, and the rest
// as frames on the carrier. One datagram is
//
//	+------+----------------------------+
//	| kind |          IP packet         |
//	+------+--------------+-------------+
//	| kind |   id (2)     | half of one |
//	+------+--------------+-------------+
//
// Kind is 0, or kindPartial when the transport checksum covers the pseudo-header
// only (NEEDS_CSUM of the virtio header, whose other fields follow from that), plus
// kindFirst or kindSecond. Halves of one id belong together. A super-segment is cut:
// a datagram never is one.
const (
	kindPartial = 1
	kindFirst   = 2
	kindSecond  = 4

	kindLen = 1
	halfLen = 3 // kind and id
	// ipStart is where the IP packet of a frame begins.
	ipStart = frameHdrLen + VnetHdrLen
	// maxCutHdr bounds the headers repeated in each packet of a super-segment, bytes.
	maxCutHdr = 256
)

// errTooLong means that a packet does not fit two datagrams.
var errTooLong = errors.New("packet does not fit two datagrams")

// writeDatagrams is write for a carrier that takes datagrams.
func (l *lane) writeDatagrams(c DatagramCarrier) (done int, err error) {
	refused := func(err error) {
		l.p.counters.drop(DropSend)
		l.p.t.log.Debug("send a datagram", "peer", l.p.id, "err", err)
	}
	for i, p := range l.batch {
		sent, err := l.datagrams(c, p)
		if err != nil && sent {
			refused(err)
		}
		if !sent {
			if _, err := c.Write(p.frame()); err != nil {
				_ = c.FlushDatagrams()
				return i, err
			}
		}
	}
	if err := c.FlushDatagrams(); err != nil {
		refused(err)
	}
	return len(l.batch), nil
}

// datagrams sends one packet, or the packets a super-segment stands for. It reports
// whether any of it is sent; if not, p is as it was. An error is of the part that is not.
func (l *lane) datagrams(c DatagramCarrier, p *packet) (sent bool, err error) {
	size := c.DatagramSize()
	if size == 0 {
		return false, nil
	}
	v := getVnetHdr(p.buf[frameHdrLen:])
	if v.gsoType != gsoNone {
		return l.cut(c, p, v, size)
	}
	err = l.put(c, p.buf[:p.n], ipStart, v.flags == vnetNeedsCsum, size)
	return err == nil, nil
}

// put sends the packet that begins at start of b, with the room before it used for
// kind and id and restored after an error.
func (l *lane) put(c DatagramCarrier, b []byte, start int, partial bool, size int) error {
	var kind byte
	if partial {
		kind = kindPartial
	}
	n := len(b) - start
	var before [halfLen]byte
	room := b[start-halfLen : start]
	copy(before[:], room)
	if kindLen+n <= size {
		room[halfLen-kindLen] = kind
		err := c.PutDatagram(b[start-kindLen:])
		copy(room, before[:])
		return err
	}
	first := (n + 1) / 2 // halves alike go in one train
	if halfLen+first > size {
		return errTooLong
	}
	l.halfID++
	room[0] = kind | kindFirst
	binary.BigEndian.PutUint16(room[1:], l.halfID)
	err := c.PutDatagram(b[start-halfLen : start+first])
	copy(room, before[:])
	if err != nil {
		return err
	}
	room = b[start+first-halfLen : start+first] // is sent
	room[0] = kind | kindSecond
	binary.BigEndian.PutUint16(room[1:], l.halfID)
	if err := c.PutDatagram(b[start+first-halfLen:]); err != nil {
		l.p.counters.drop(DropSend) // no way back: the first half is sent, and the packet changed
	}
	return nil
}

// cut sends a UDP super-segment packet by packet. Each one's headers are written over
// the end of the one before, which is sent by then.
func (l *lane) cut(c DatagramCarrier, p *packet, v vnetHdr, size int) (sent bool, err error) {
	hdrLen, seg := int(v.hdrLen), int(v.gsoSize)
	if v.gsoType != gsoUDPL4 || hdrLen > maxCutHdr {
		return false, nil
	}
	var hdr [maxCutHdr]byte
	copy(hdr[:], p.ip()[:hdrLen])
	h := header{version: hdr[0] >> 4, proto: protoUDP, l4: int(v.csumStart)}
	for i, at := 0, ipStart+hdrLen; at < p.n; i, at = i+1, at+seg {
		end := min(at+seg, p.n)
		start := at - hdrLen
		pkt := p.buf[start:end]
		copy(pkt, hdr[:hdrLen])
		setUDPLengths(pkt, &h, i)
		if err := l.put(c, p.buf[:end], start, true, size); err != nil {
			if i == 0 { // nothing is lost but the headers
				copy(pkt, hdr[:hdrLen])
				return false, nil
			}
			return true, err
		}
	}
	return true, nil
}
