package decide

import (
	"net/netip"
	"slices"
	"time"

	"edgemesh/agent/mesh"
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
	v := 0
	if t.c.v6 {
		v = 1
	}
	return Send{
		V6: t.c.v6, Slot: t.c.slot, To: netip.AddrPortFrom(p.gateways[v], p.them.ProbePort),
		Payload: m.seal(sess.out, payload(size, t.c.v6)), track: t, request: typ == typeRequest,
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

// Hear takes one packet. It returns whose it is, "" for nobody's, and what to answer once
// the kernel holds Paths: who sees an answer may send.
func (m *Machine) Hear(k Packet) (from mesh.PeerID, answer []Send) {
	p := m.sessions[k.session]
	if p == nil {
		return "", nil
	}
	v, size := 0, len(k.Payload)+headers4
	if k.V6 {
		v, size = 1, len(k.Payload)+headers6
	}
	sess := p.sessionOf(k.session, k.At)
	t := p.tracks[trackKey{k.V6, k.slot}]
	if sess == nil || t == nil || k.From != p.gateways[v] || !m.mayArrive(t, k.Link) || !authentic(sess.in, k.Payload) {
		return "", nil
	}
	if k.flags&flagBusy != 0 {
		t.busy = k.At
	}
	if k.typ == typeAnswer {
		if t.answer(k.At, k.seq) {
			m.choose(p, k.At)
		}
		return p.id, nil
	}
	if last := sess.lastSeen[t.c.key()]; k.seq <= last {
		return "", nil // seen before, or overtaken
	}
	sess.lastSeen[t.c.key()] = k.seq
	t.request(k.At)
	t.in = k.Link
	m.choose(p, k.At)
	return p.id, []Send{newSend(k.At, p, sess, t, typeAnswer, k.seq, size)}
}

// mayArrive reports whether the peer's probes of a track may come in by an interface. By
// which uplink native ones do is the peer's choice and ARP's: Linux answers for an address
// on each of its interfaces in that LAN.
func (m *Machine) mayArrive(t *track, link string) bool {
	if t.c.kind == mesh.VXLAN {
		return link == m.cfg.VXLANName
	}
	return link != "" && link != m.cfg.VXLANName && !slices.Contains(m.cfg.Inside, link)
}
