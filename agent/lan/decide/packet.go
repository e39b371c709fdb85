package decide

import (
	"crypto/hmac"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Send is a probe, or the answer to one, to be sent.
type Send struct {
	V6      bool
	Slot    int
	To      netip.AddrPort
	Payload []byte
	track   *track
	request bool
}

// Failed says that it could not be sent.
func (s Send) Failed(err error) {
	if s.request {
		s.track.sendFailed(err)
	}
}

func newSend(now time.Time, p *peer, sess *session, t *track, typ byte, seq uint64, size int) Send {
	m := Message{typ: typ, slot: t.c.slot, session: sess.id, seq: seq}
	if t.active(now) {
		m.flags |= flagBusy
	}
	return Send{
		V6: t.c.v6, Slot: t.c.slot, To: netip.AddrPortFrom(p.gateways[version(t.c.v6)], p.them.ProbePort),
		Payload: m.seal(sess.out, size-headers(t.c.v6)), track: t, request: typ == typeRequest,
	}
}

// Packet is a probe, or the answer to one, that came in.
type Packet struct {
	Message
	V6      bool
	From    netip.Addr
	Link    string // the interface it came in on, "" when that is gone
	Payload []byte
	At      time.Time
}

// Hear handles one packet. It returns what to answer once the kernel holds Paths (a peer
// that sees an answer may send), and when the next probe to the sender is due; the zero
// time if there is none, or the packet is refused.
func (m *Machine) Hear(k Packet) (answer []Send, next time.Time) {
	p := m.sessions[k.session]
	if p == nil {
		return nil, time.Time{}
	}
	sess := p.sessionOf(k.session, k.At)
	t := p.tracks[trackKey{k.V6, k.slot}]
	if sess == nil || t == nil || k.From != p.gateways[version(k.V6)] || !m.cfg.mayArrive(t, k.Link) || !authentic(sess.in, k.Payload) {
		return nil, time.Time{}
	}
	if k.flags&flagBusy != 0 {
		t.busy = k.At
	}
	if k.typ == typeAnswer {
		if t.answer(k.At, k.seq) {
			m.choose(p, k.At)
		}
		next, _ = p.next()
		return nil, next
	}
	if last := sess.lastSeen[t.c.key()]; k.seq <= last {
		return nil, time.Time{} // seen before, or overtaken
	}
	sess.lastSeen[t.c.key()] = k.seq
	t.request(k.At)
	t.in = k.Link
	m.choose(p, k.At)
	next, _ = p.next()
	return []Send{newSend(k.At, p, sess, t, typeAnswer, k.seq, len(k.Payload)+headers(k.V6))}, next
}

// mayArrive reports whether the peer's probes of a track may arrive on an interface. The
// uplink of native ones depends on the peer and on ARP: Linux answers for an address on
// each of its interfaces in that LAN.
func (c Config) mayArrive(t *track, link string) bool {
	if t.c.kind == mesh.VXLAN {
		return link == c.VXLANName
	}
	return link != "" && link != c.VXLANName && !slices.Contains(c.Inside, link)
}

// A probe is a UDP payload (all numbers big-endian):
//
//	 0  magic    "EMp1"
//	 4  type     1 request, 2 answer
//	 5  flags    1: the sender has seen traffic lately
//	 6  slot
//	 7  zero
//	 8  session  8 bytes
//	16  number   8 bytes; of a request it grows, an answer has the request's
//	24  zeros up to the wanted size
//	-16 the first 16 bytes of HMAC-SHA256 over all before, with the sender's key
const (
	probeMagic  = "EMp1"
	typeRequest = 1
	typeAnswer  = 2
	flagBusy    = 1
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
	return m, nil
}

// authentic checks the MAC of a payload that Parse took.
func authentic(key, b []byte) bool {
	return hmac.Equal(b[len(b)-probeMAC:], sum(key, b[:len(b)-probeMAC])[:probeMAC])
}
