package decide

import (
	"net/netip"
	"time"
)

// Send is a probe, or the answer to one, to be sent.
type Send struct {
	V6      bool
	Slot    int
	Hops    int // the hop limit
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
	if t.used(now) {
		m.flags |= flagBusy
	}
	if f := &p.forwards[version(t.c.v6)]; f.ours.IsValid() {
		m.flags |= flagTakes
		m.report = report{f.ours.As16(), sess.taken[version(t.c.v6)]}
	}
	hops := 1
	if t.c.global() {
		hops = maxHops
	}
	return Send{
		V6: t.c.v6, Slot: t.c.slot, Hops: hops, To: netip.AddrPortFrom(p.gateways[version(t.c.v6)], p.them.ProbePort),
		Payload: m.seal(sess.out, size-headers(t.c.v6)), track: t, request: typ == typeRequest,
	}
}
