package decide

import (
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Packet is a probe, or the answer to one, that came in.
type Packet struct {
	Message
	V6      bool
	From    netip.Addr
	Link    string // the interface it came in on, "" when that is gone
	Hops    int    // its hop limit on arrival
	Payload []byte
	At      time.Time
}

// maxHops is the hop limit of probes between global addresses: no router can pass one on without lowering it (RFC 5082). Those
// between private addresses have 1, and no router passes them on.
const maxHops = 255

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
	if sess == nil || t == nil || k.From != p.gateways[version(k.V6)] || !m.cfg.mayArrive(t, k.Link) || t.c.global() && k.Hops != maxHops || !authentic(sess.in, k.Payload) {
		return nil, time.Time{}
	}
	if k.flags&flagBusy != 0 {
		t.tells(k.At)
	}
	before := p.seen(t, k.At)
	if k.typ == typeAnswer {
		s := t.at[k.seq%uint64(len(t.at))]
		changed := t.answer(k.At, k.seq)
		if sess == p.sess && s.seq == k.seq {
			m.reports(p, t, k, s.at)
		}
		if f := &p.forwards[version(k.V6)]; changed && f.on == nil {
			f.sends = k.At // the path may have to be tested
		}
	} else {
		if last := sess.lastSeen[t.c.key()]; k.seq <= last {
			return nil, time.Time{} // seen before, or overtaken
		}
		sess.lastSeen[t.c.key()] = k.seq
		t.request(k.At)
		t.in = k.Link
		if sess == p.sess {
			m.reports(p, t, k, time.Time{})
		}
		answer = []Send{newSend(k.At, p, sess, t, typeAnswer, k.seq, len(k.Payload)+headers(k.V6))}
	}
	if p.seen(t, k.At) != before {
		m.choose(p, k.At)
	}
	next, _ = p.next()
	return answer, next
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
