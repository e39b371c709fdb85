package lan

import (
	"net"
	"net/netip"
	"time"

	"edgemesh/agent/mesh"
)

// send sends one probe of a track.
func (s *Service) send(p *peer, sess *session, t *track, typ byte, seq uint64, size int) {
	v := 0
	if t.c.v6 {
		v = 1
	}
	sock := s.sockets[v]
	if sock == nil || sess == nil {
		return
	}
	m := message{typ: typ, slot: t.c.slot, session: sess.id, seq: seq}
	if t.active(time.Now()) {
		m.flags |= flagBusy
	}
	b := m.seal(sess.out, payload(size, t.c.v6))
	if err := sock.send(s.cfg.Mark(t.c.slot), netip.AddrPortFrom(p.gateways[v], p.them.ProbePort), b); err != nil && typ == typeRequest {
		t.sendFailed(err)
	}
}

// receive takes one packet from a socket.
func (s *Service) receive(b []byte, a arrival) {
	m, err := open(b)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.sessions[m.session]
	if p == nil || s.closed {
		return
	}
	now := time.Now()
	v, size := 0, len(b)+headers4
	if a.v6 {
		v, size = 1, len(b)+headers6
	}
	sess := p.sessionOf(m.session, now)
	t := p.tracks[trackKey{a.v6, m.slot}]
	if sess == nil || t == nil || a.from != p.gateways[v] || s.linkName(a.link) != s.arrivesOn(t) || !authentic(sess.in, b) {
		return
	}
	if m.flags&flagBusy != 0 {
		t.busy = now
	}
	if m.typ == typeAnswer {
		if t.answer(now, m.seq) && s.settle(p, now) {
			s.apply()
		}
		s.poke()
		return
	}
	if last := sess.lastSeen[t.c.key()]; m.seq <= last {
		return // seen before, or overtaken
	}
	sess.lastSeen[t.c.key()] = m.seq
	t.request(now)
	if s.settle(p, now) {
		s.apply()
	}
	s.send(p, sess, t, typeAnswer, m.seq, size)
	s.poke()
}

// arrivesOn is the interface on which the peer's probes of a track must come in.
func (s *Service) arrivesOn(t *track) string {
	if t.c.kind == mesh.VXLAN {
		return s.cfg.VXLANName
	}
	return t.c.link
}

// linkName is the name of an interface, "" when there is none of that number.
func (s *Service) linkName(index int) string {
	name, ok := s.links[index]
	if !ok {
		if i, err := net.InterfaceByIndex(index); err == nil {
			name = i.Name
		}
		s.links[index] = name
	}
	return name
}
