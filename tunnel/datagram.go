package tunnel

import (
	"encoding/binary"
	"errors"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// What takes packets (pulled.go) carries datagrams, unreliably and in any order: a lost one delays nothing. The datagram lane
// sends what fits so, and the rest as frames. frame.go draws a datagram.
const (
	kindPartial = 1 // the checksum is
	kindFirst   = 2 // half
	kindSecond  = 4 // half

	kindLen = 1
	halfLen = 3 // kind and id
	// ipStart is the offset of the IP packet in a frame.
	ipStart = frameHdrLen + virtio.HeaderLen
)

// errTooLong means that a packet does not fit two datagrams.
var errTooLong = errors.New("packet does not fit two datagrams")

// datagramCarrier takes datagrams, whose first byte is below 128, of up to a size in bytes; 0: none.
type datagramCarrier interface {
	DatagramSize() int
	PutDatagram(b []byte) error
}

// datagrams sends one packet, or the packets a super-segment stands for. It reports whether any part was sent; if none
// was, p is unchanged. An error concerns the part that was not sent.
func (b *batch) datagrams(c datagramCarrier, p *packet) (sent bool, err error) {
	size := c.DatagramSize()
	if size == 0 {
		return false, nil
	}
	v := virtio.Get(p.buf[frameHdrLen:])
	if v.GSOType != virtio.GSONone {
		return b.cut(c, p, v, size)
	}
	err = b.put(c, p.buf[:p.n], ipStart, v.Flags == virtio.NeedsChecksum, size)
	return err == nil, nil
}

// put sends the packet that begins at start of pkt. The bytes before it are used for kind and id, and restored.
func (b *batch) put(c datagramCarrier, pkt []byte, start int, partial bool, size int) error {
	var kind byte
	if partial {
		kind = kindPartial
	}
	n := len(pkt) - start
	var before [halfLen]byte
	room := pkt[start-halfLen : start]
	copy(before[:], room)
	if kindLen+n <= size {
		room[halfLen-kindLen] = kind
		err := c.PutDatagram(pkt[start-kindLen:])
		copy(room, before[:])
		return err
	}
	first := (n + 1) / 2 // halves of equal length leave in one system call
	if halfLen+first > size {
		return errTooLong
	}
	b.halfID++
	room[0] = kind | kindFirst
	binary.BigEndian.PutUint16(room[1:], b.halfID)
	err := c.PutDatagram(pkt[start-halfLen : start+first])
	copy(room, before[:])
	if err != nil {
		return err
	}
	room = pkt[start+first-halfLen : start+first] // of what has been sent
	room[0] = kind | kindSecond
	binary.BigEndian.PutUint16(room[1:], b.halfID)
	if err := c.PutDatagram(pkt[start+first-halfLen:]); err != nil {
		b.p.counters.drop(DropSend) // the first half is sent and the packet changed: no frame can carry it now
	}
	return nil
}

// cut sends a UDP super-segment packet by packet.
func (b *batch) cut(c datagramCarrier, p *packet, v virtio.Header, size int) (sent bool, err error) {
	h := inet.Header{Version: p.ip()[0] >> 4, Proto: inet.ProtoUDP, L4: int(v.CsumStart)}
	var s virtio.Splitter
	if v.GSOType != virtio.GSOUDP || !s.Split(p.buf[frameHdrLen:p.n], v, &h, false) {
		return false, nil
	}
	for frame := s.Next(); frame != nil; frame = s.Next() {
		if err := b.put(c, frame, virtio.HeaderLen, true, size); err != nil {
			if !sent { // only headers have changed
				s.Undo()
				return false, nil
			}
			return true, err
		}
		sent = true
	}
	return true, nil
}
