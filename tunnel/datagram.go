package tunnel

import (
	"encoding/binary"

	"edgemesh/tunnel/inet"
	"edgemesh/tunnel/virtio"
)

// What takes packets (pulled.go) carries datagrams, unreliably and in any order: a lost one delays nothing. The datagram lane
// sends what fits so, and the rest as frames. frame.go draws a datagram, whose first byte is below 128.
const (
	kindPartial = 1 // the checksum is
	kindFirst   = 2 // half
	kindSecond  = 4 // half

	kindLen = 1
	halfLen = 3 // kind and id
)

// pieceList is the datagrams that a packet was cut into, to be taken one by one.
type pieceList struct {
	all    []byte // what buf is a part of
	buf    []byte // length 2, datagram
	size   int    // of a datagram, at most; 0: none can be sent
	halfID uint16 // of the last packet split in two
}

func (l *pieceList) begin(size int) { l.buf, l.size = l.all[:0], size }
func (l *pieceList) waits() bool    { return len(l.buf) > 0 }

// cut puts one packet, or the packets a super-segment stands for. It reports false, and p is unchanged, where they do not fit.
func (l *pieceList) cut(p *packet) bool {
	v := virtio.Get(p.buf[frameHdrLen:])
	if v.GSOType == virtio.GSONone {
		return l.put(p.ip(), v.Flags == virtio.NeedsChecksum)
	}
	h := inet.Header{Version: p.ip()[0] >> 4, Proto: inet.ProtoUDP, L4: int(v.CsumStart)}
	var s virtio.Splitter
	if v.GSOType != virtio.GSOUDP || !s.Split(p.buf[frameHdrLen:p.n], v, &h, false) {
		return false
	}
	for frame := s.Next(); frame != nil; frame = s.Next() {
		if !l.put(frame[virtio.HeaderLen:], true) { // the first: no other is longer
			s.Undo()
			return false
		}
	}
	return true
}

// put puts one packet as a datagram, or as two of equal length, which leave in one system call.
func (l *pieceList) put(ip []byte, partial bool) bool {
	var kind byte
	if partial {
		kind = kindPartial
	}
	first := (len(ip) + 1) / 2
	switch {
	case kindLen+len(ip) <= l.size:
		l.add(ip, kind)
	case halfLen+first <= l.size:
		l.halfID++
		high, low := byte(l.halfID>>8), byte(l.halfID)
		l.add(ip[:first], kind|kindFirst, high, low)
		l.add(ip[first:], kind|kindSecond, high, low)
	default:
		return false
	}
	return true
}

func (l *pieceList) add(b []byte, head ...byte) {
	l.buf = binary.BigEndian.AppendUint16(l.buf, uint16(len(head)+len(b)))
	l.buf = append(append(l.buf, head...), b...)
	l.all = l.buf
}

// next takes the first, of at most room bytes. What is longer than a packet has room for is given up: the path has become narrower.
func (l *pieceList) next(most, room int, drop func()) []byte {
	for l.waits() {
		end := 2 + int(binary.BigEndian.Uint16(l.buf))
		b := l.buf[2:end]
		if len(b) <= most && len(b) > room {
			return nil
		}
		l.buf = l.buf[end:]
		if len(b) <= most {
			return b
		}
		drop()
	}
	return nil
}
