package stun

import (
	"encoding/binary"
	"net/netip"
)

// What of a message is needed here (RFC 8489, section 5 and 14):
//
//	 0                   16                  32
//	+-------------------+-------------------+
//	| kind              | bytes after these |  20 bytes in all
//	| magic cookie                          |
//	| transaction ID, 12 bytes              |
//	+-------------------+-------------------+
//	| attribute         | bytes of value    |  any number of them
//	| value, filled up to a multiple of 4   |
//	+-------------------+-------------------+
const (
	headLen = 20
	cookie  = 0x2112a442

	bindingRequest = 0x0001
	bindingSuccess = 0x0101

	attrXORMapped = 0x0020
	attrXORFormer = 0x8020 // XOR-MAPPED-ADDRESS before RFC 5389
	attrPadding   = 0x0026 // RFC 5780, as the next
	attrOther     = 0x802c

	family4, family6 = 1, 2
)

// minRequest is the length of the shortest request that is answered, in bytes: an answer must not be longer than its request,
// whose source may be forged.
const minRequest = 64

type transactionID [12]byte

// start begins a message; finish writes its length into it.
func start(kind uint16, id transactionID) []byte {
	b := binary.BigEndian.AppendUint16(make([]byte, 0, minRequest), kind)
	b = binary.BigEndian.AppendUint32(append(b, 0, 0), cookie)
	return append(b, id[:]...)
}

func add(b []byte, attribute uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, attribute)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(value))), value...)
	return append(b, make([]byte, -len(value)&3)...)
}

func finish(b []byte) []byte {
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-headLen))
	return b
}

// is reports whether p begins as a message does.
func is(p []byte) bool { return len(p) >= headLen && binary.BigEndian.Uint32(p[4:]) == cookie }

// message is one that was read.
type message struct {
	kind       uint16
	id         transactionID
	attributes []byte // well-formed
}

// read reads a message, behind which may be something else. ok is false if it is torn.
func read(p []byte) (m message, ok bool) {
	if !is(p) {
		return m, false
	}
	m.kind, m.id = binary.BigEndian.Uint16(p), transactionID(p[8:headLen])
	n := int(binary.BigEndian.Uint16(p[2:]))
	if n > len(p)-headLen {
		return m, false
	}
	m.attributes = p[headLen : headLen+n]
	for rest := m.attributes; len(rest) > 0; {
		if _, _, rest, ok = next(rest); !ok {
			return m, false
		}
	}
	return m, true
}

// next divides the first attribute from the rest.
func next(b []byte) (attribute uint16, value, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, nil, false
	}
	attribute, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
	b = b[4:]
	if n+-n&3 > len(b) {
		return 0, nil, nil, false
	}
	return attribute, b[:n], b[n+-n&3:], true
}

// address is the first attribute of one of these kinds, as an address; XORed ones are restored.
func (m message) address(kinds ...uint16) netip.AddrPort {
	for rest := m.attributes; len(rest) > 0; {
		attribute, value, more, _ := next(rest)
		rest = more
		for _, k := range kinds {
			if attribute != k {
				continue
			}
			if attribute == attrOther {
				return addrPort(value)
			}
			return addrPort(xor(value, m.id))
		}
	}
	return netip.AddrPort{}
}

// value is an address as attributes have it.
func value(a netip.AddrPort) []byte {
	family := byte(family6)
	if a.Addr().Is4() {
		family = family4
	}
	return append(binary.BigEndian.AppendUint16([]byte{0, family}, a.Port()), a.Addr().AsSlice()...)
}

// addrPort reads value's result; invalid where that is malformed, or has no port.
func addrPort(v []byte) netip.AddrPort {
	if len(v) < 4 || len(v) != map[byte]int{family4: 8, family6: 20}[v[1]] {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(v[4:])
	port := binary.BigEndian.Uint16(v[2:])
	if port == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), port)
}

// xor hides value's result from routers that rewrite addresses in packets, and shows it again: port and address are XORed with
// cookie and ID.
func xor(v []byte, id transactionID) []byte {
	out := append([]byte(nil), v...)
	mask := append(binary.BigEndian.AppendUint32(nil, cookie), id[:]...)
	for i := 2; i < len(out); i++ {
		if i < 4 {
			out[i] ^= mask[i-2]
		} else if i-4 < len(mask) {
			out[i] ^= mask[i-4]
		}
	}
	return out
}
