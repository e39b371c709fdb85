package decide

import (
	"crypto/hmac"
	"encoding/binary"
)

// A probe is a UDP payload (all numbers big-endian):
//
//	 0  magic    "EMp1"
//	 4  type     1 request, 2 answer
//	 5  flags    1: the sender has seen traffic lately; 2: it takes forwarded probes
//	 6  slot
//	 7  zero
//	 8  session  8 bytes
//	16  number   8 bytes; of a request it grows, an answer has the request's
//	24  with flag 2: 16 bytes, the address where it takes them, and the last number that it took of each kind, 4 bytes each
//	    zeros up to the wanted size
//	-16 the first 16 bytes of HMAC-SHA256 over all before, with the sender's key
const (
	probeMagic  = "EMp1"
	typeRequest = 1
	typeAnswer  = 2
	flagBusy    = 1
	flagTakes   = 2
	probeHeader = 24
	probeMAC    = 16
	smallProbe  = 128 // bytes of a small probe's packet, IP header included
	headers4    = 28  // bytes of IPv4 and UDP headers
	headers6    = 48  // of IPv6 and UDP headers
	MaxProbe    = biggestPath
)

// Message is a probe on the wire.
type Message struct {
	typ, flags byte
	slot       int
	session    uint64
	seq        uint64
	report     report // with flagTakes
}

// report says where the sender takes forwarded probes, and the last number of each kind that it took.
type report struct {
	Addr  [16]byte // IPv4 as RFC 4291, section 2.5.5.2, has it
	Taken [kinds]uint32
}

// headers is how many bytes of a packet come before the UDP payload.
func headers(v6 bool) int {
	if v6 {
		return headers6
	}
	return headers4
}

// seal makes a packet's payload of n bytes.
func (m Message) seal(key []byte, n int) []byte {
	b := make([]byte, max(n, probeHeader+probeMAC))
	copy(b, probeMagic)
	b[4], b[5], b[6] = m.typ, m.flags, byte(m.slot)
	binary.BigEndian.PutUint64(b[8:], m.session)
	binary.BigEndian.PutUint64(b[16:], m.seq)
	if m.flags&flagTakes != 0 {
		_, _ = binary.Encode(b[probeHeader:], binary.BigEndian, m.report)
	}
	copy(b[len(b)-probeMAC:], sum(key, b[:len(b)-probeMAC]))
	return b
}

// Parse parses a payload whose authenticity is not checked yet.
func Parse(b []byte) (Message, error) {
	if len(b) < probeHeader+probeMAC || len(b) > MaxProbe || string(b[:4]) != probeMagic || b[7] != 0 {
		return Message{}, ErrBadProbe
	}
	m := Message{typ: b[4], flags: b[5], slot: int(b[6]), session: binary.BigEndian.Uint64(b[8:]), seq: binary.BigEndian.Uint64(b[16:])}
	if m.typ != typeRequest && m.typ != typeAnswer || m.seq == 0 {
		return Message{}, ErrBadProbe
	}
	if m.flags&flagTakes != 0 {
		if _, err := binary.Decode(b[probeHeader:len(b)-probeMAC], binary.BigEndian, &m.report); err != nil {
			return Message{}, ErrBadProbe
		}
	}
	return m, nil
}

// authentic checks the MAC of a payload that Parse took.
func authentic(key, b []byte) bool {
	return hmac.Equal(b[len(b)-probeMAC:], sum(key, b[:len(b)-probeMAC])[:probeMAC])
}
