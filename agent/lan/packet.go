package lan

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
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

// maxInbox bounds the packets that wait to be looked at: a thousand peers' requests.
const maxInbox = 2048

// packet is a probe that came in and is not looked at yet.
type packet struct {
	message
	arrival
	b  []byte
	at time.Time
}

// reply is an answer to be sent.
type reply struct {
	p    *peer
	sess *session
	t    *track
	seq  uint64
	size int
}

// receive takes one packet from a socket. Run looks at it: while the kernel is told of a
// change others come in, and one call tells it of all they change.
func (s *Service) receive(b []byte, a arrival) {
	m, err := open(b)
	if err != nil {
		return
	}
	s.inMu.Lock()
	if len(s.inbox) < maxInbox {
		s.inbox = append(s.inbox, packet{m, a, bytes.Clone(b), time.Now()})
	}
	s.inMu.Unlock()
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// takeIn looks at what has come in, and answers. It returns when the first probe of the
// peers concerned is due, the zero time where there is none.
func (s *Service) takeIn() (next time.Time) {
	s.inMu.Lock()
	all := s.inbox
	s.inbox = nil
	s.inMu.Unlock()
	if len(all) == 0 {
		return next
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var replies []reply
	for _, k := range all {
		p, r := s.look(k)
		if p == nil {
			continue
		}
		if r.p != nil {
			replies = append(replies, r)
		}
		if at, ok := p.next(); ok && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	s.tell() // before the answers: who sees one may send
	for _, r := range replies {
		s.send(r.p, r.sess, r.t, typeAnswer, r.seq, r.size)
	}
	return next
}

// look takes one packet. It returns the peer that it is of, nil for none, and what to
// answer. The caller holds mu.
func (s *Service) look(k packet) (*peer, reply) {
	p := s.sessions[k.session]
	if p == nil {
		return nil, reply{}
	}
	v, size := 0, len(k.b)+headers4
	if k.v6 {
		v, size = 1, len(k.b)+headers6
	}
	sess := p.sessionOf(k.session, k.at)
	t := p.tracks[trackKey{k.v6, k.slot}]
	if sess == nil || t == nil || k.from != p.gateways[v] || !s.mayArrive(t, k.link) || !authentic(sess.in, k.b) {
		return nil, reply{}
	}
	if k.flags&flagBusy != 0 {
		t.busy = k.at
	}
	if k.typ == typeAnswer {
		if t.answer(k.at, k.seq) {
			s.settle(p, k.at)
		}
		return p, reply{}
	}
	if last := sess.lastSeen[t.c.key()]; k.seq <= last {
		return nil, reply{} // seen before, or overtaken
	}
	sess.lastSeen[t.c.key()] = k.seq
	t.request(k.at)
	t.in = s.linkName(k.link)
	s.settle(p, k.at)
	return p, reply{p, sess, t, k.seq, size}
}

// mayArrive reports whether the peer's probes of a track may come in by an interface. By
// which uplink native ones do is the peer's choice and ARP's: Linux answers for an address
// on each of its interfaces in that LAN.
func (s *Service) mayArrive(t *track, index int) bool {
	link := s.linkName(index)
	if t.c.kind == mesh.VXLAN {
		return link == s.cfg.VXLANName
	}
	return link != "" && link != s.cfg.VXLANName && !slices.Contains(s.cfg.Inside, link)
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
