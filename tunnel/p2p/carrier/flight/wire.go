package flight

import (
	"encoding/binary"

	"edgemesh/tunnel/pull"
)

// The payload of a sealed packet is frames; integers are big-endian. The packet's number is the counter that it is sealed with.
//
//	STREAM    1 | bucket 1 | generation 1 | offset 4 | length 2 | data
//	DATAGRAM  2 | length 2 | data
//	ACK       3 | newest packet 4 | its arrival, µs 4 | since then, 10 µs 2 | bytes arrived with it 8 | packets computed 4 |
//	          n 1 | n × (missing 2, arrived 2), from the newest packet down
//	PARITY    4 | newest packet 4 | mask of it and the 31 before it 4 | XOR of lengths 2 | length 2 | XOR of their STREAM frames
//
// A packet has one ACK and one PARITY at most, and its STREAM frames last. One that has more than ACK is acknowledged.
const (
	kindStream   = 1
	kindDatagram = 2
	kindAck      = 3
	kindParity   = 4

	streamHeader   = 9
	datagramHeader = 3
	ackHeader      = 24
	parityHeader   = 13

	maxRanges  = 32 // of an ACK
	maxPieces  = 32 // STREAM frames of a packet
	maxPayload = 9000
)

var order = binary.BigEndian

// stream is a STREAM frame.
type stream struct {
	bucket, generation byte
	offset             uint32
	data               []byte
}

func appendStreamHeader(b []byte, s stream, n int) []byte {
	b = append(b, kindStream, s.bucket, s.generation)
	b = order.AppendUint32(b, s.offset)
	return order.AppendUint16(b, uint16(n))
}

func parseStream(b []byte) (s stream, rest []byte, ok bool) {
	if len(b) < streamHeader {
		return s, nil, false
	}
	end := streamHeader + int(order.Uint16(b[7:]))
	if end == streamHeader || len(b) < end || b[1] >= pull.Buckets {
		return s, nil, false
	}
	return stream{b[1], b[2], order.Uint32(b[3:]), b[streamHeader:end]}, b[end:], true
}

func appendDatagram(b, data []byte) []byte {
	b = order.AppendUint16(append(b, kindDatagram), uint16(len(data)))
	return append(b, data...)
}

func parseDatagram(b []byte) (data, rest []byte, ok bool) {
	if len(b) < datagramHeader {
		return nil, nil, false
	}
	end := datagramHeader + int(order.Uint16(b[1:]))
	if len(b) < end {
		return nil, nil, false
	}
	return b[datagramHeader:end], b[end:], true
}

// run is packets that are missing, and those below them that arrived.
type run struct{ missing, arrived uint16 }

// ack is an ACK frame.
type ack struct {
	newest   uint32
	arrived  uint32 // µs
	delay    uint16 // 10 µs
	got      uint64
	computed uint32
	runs     [maxRanges]run
	n        int
}

func (a *ack) append(b []byte) []byte {
	b = order.AppendUint32(append(b, kindAck), a.newest)
	b = order.AppendUint32(b, a.arrived)
	b = order.AppendUint16(b, a.delay)
	b = order.AppendUint64(b, a.got)
	b = order.AppendUint32(b, a.computed)
	b = append(b, byte(a.n))
	for _, r := range a.runs[:a.n] {
		b = order.AppendUint16(order.AppendUint16(b, r.missing), r.arrived)
	}
	return b
}

func (a *ack) parse(b []byte) (rest []byte, ok bool) {
	if len(b) < ackHeader {
		return nil, false
	}
	a.newest, a.arrived, a.delay = order.Uint32(b[1:]), order.Uint32(b[5:]), order.Uint16(b[9:])
	a.got, a.computed, a.n = order.Uint64(b[11:]), order.Uint32(b[19:]), int(b[23])
	b = b[ackHeader:]
	if a.n == 0 || a.n > maxRanges || len(b) < 4*a.n {
		return nil, false
	}
	for i := range a.n {
		a.runs[i] = run{order.Uint16(b[4*i:]), order.Uint16(b[4*i+2:])}
	}
	// The newest packet arrived.
	return b[4*a.n:], a.runs[0].missing == 0 && a.runs[0].arrived > 0
}

// sum is a PARITY frame.
type sum struct {
	newest, mask uint32
	length       uint16
	data         []byte
}

func (s *sum) append(b []byte) []byte {
	b = order.AppendUint32(append(b, kindParity), s.newest)
	b = order.AppendUint32(b, s.mask)
	b = order.AppendUint16(b, s.length)
	b = order.AppendUint16(b, uint16(len(s.data)))
	return append(b, s.data...)
}

func (s *sum) parse(b []byte) (rest []byte, ok bool) {
	if len(b) < parityHeader {
		return nil, false
	}
	s.newest, s.mask, s.length = order.Uint32(b[1:]), order.Uint32(b[5:]), order.Uint16(b[9:])
	end := parityHeader + int(order.Uint16(b[11:]))
	if len(b) < end {
		return nil, false
	}
	s.data = b[parityHeader:end]
	return b[end:], true
}
