package decide

import (
	"crypto/hmac"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Times of forwarded probes.
const (
	forwardBusy   = 2 * time.Second        // between two rounds of all kinds, with traffic
	forwardIdle   = 10 * time.Second       // between two probes of one kind in turn, without
	forwardAsk    = 20 * time.Millisecond  // after a round, for a path that waits for it
	forwardLate   = 100 * time.Millisecond // a gateway probe that leaves so much later overtakes no forwarded one
	tunnelLate    = time.Second            // nor one through the tunnel
	forwardTries  = 5
	forwardRounds = 3                // without a loss, before a path is taken back
	roundMost     = 10 * time.Second // then something else is wrong: the round says nothing
	routeTime     = 5 * time.Millisecond
	leftFirst     = 10 * time.Second // after which a path that was left is tried again
	leftMost      = 5 * time.Minute
)

// tunnelSlot is that of forwarded probes through the tunnel.
const tunnelSlot = mesh.ProbeSlots

// kindSet is a set of kinds of forwarded probes.
type kindSet uint8

const allKinds kindSet = 1<<kinds - 1

func (s kindSet) has(kind int) bool { return s>>kind&1 != 0 }

// less reports whether s is a part of o, and not all of it.
func (s kindSet) less(o kindSet) bool { return s&^o == 0 && s != o }

// names lists the kinds.
func (s kindSet) names() (out []string) {
	for kind, name := range [kinds]string{"UDP", "TCP", "ICMP", "UDP of known connections"} {
		if s.has(kind) {
			out = append(out, name)
		}
	}
	return out
}

// forwarding is what forwarded probes say of the paths to a peer, for its pods of one IP version.
type forwarding struct {
	ours, theirs netip.Addr // where either end takes them; invalid: it does not
	since        time.Time  // answers to earlier gateway probes do not count
	ready        bool       // the peer takes ours
	number       uint32     // of the last one sent
	taken        [kinds]uint32
	tunnel       *track    // stands for the tunnel
	due          time.Time // the next round on the path in use
	turn         int
	round
}

// round is one test of a path.
type round struct {
	on               *track    // nil: there is none
	began            time.Time //
	sends            time.Time // when probes, or those of the next round, are to be sent; zero: they are under way
	asks, left, lost kindSet   // which kinds it has, which have no outcome yet, which are lost
	flight           [kinds]flight
}

// flight is a probe on its way; number 0: it is to be sent.
type flight struct {
	number uint32
	at     time.Time
	lost   int
}

// outcome is what forwarded probes said of a path.
type outcome struct {
	tested  time.Time // zero: never
	cut     kindSet   // kinds that it loses
	cutAt   time.Time
	clean   int           // rounds in a row without a loss, since then
	cleared time.Time     // the last time that it was taken back
	penalty time.Duration // before it is tried again
	retest  time.Time
}

func newForwarding(v6 bool) forwarding {
	return forwarding{tunnel: &track{c: candidate{v6: v6, slot: tunnelSlot}}}
}

// proves reports whether forwarded probes are to prove paths, beside gateway probes; works, whether they may be sent.
func (f *forwarding) proves() bool { return f.ours.IsValid() && f.theirs.IsValid() }
func (f *forwarding) works() bool  { return f.proves() && f.ready }

// cutOf are the kinds that a path is known to lose.
func (f *forwarding) cutOf(t *track) kindSet {
	if !f.proves() {
		return 0
	}
	return t.cut
}

// passes reports whether t is known to pass what o loses, and to lose nothing that o passes.
func (f *forwarding) passes(t, o *track) bool {
	return t.tested.After(o.cutAt) && f.cutOf(t).less(f.cutOf(o))
}

// again begins again: what is under way says nothing.
func (f *forwarding) again(now time.Time) { f.since, f.ready, f.round = now, false, round{} }

// note notes what a round said.
func (o *outcome) note(now time.Time, asks, lost kindSet) {
	before := o.cut
	o.tested = now
	switch cut := before&^asks | lost; {
	case cut == 0 && before != 0 && o.clean+1 < forwardRounds:
		o.clean++
		o.retest = now
		return
	case cut == 0 && before != 0:
		o.cleared = now
		o.cut = 0
	case before == 0 && cut != 0:
		o.penalty = leftFirst
		if !o.cleared.IsZero() && now.Sub(o.cleared) < leftMost {
			o.penalty = min(2*max(o.penalty, leftFirst), leftMost)
		}
		o.cut, o.cutAt = cut, now
	default:
		o.cut = cut
	}
	o.clean, o.retest = 0, now.Add(o.penalty)
}

// SetProbeAddrs says where this node takes forwarded probes, IPv4 and IPv6, and sends them from; invalid: it does not.
func (m *Machine) SetProbeAddrs(now time.Time, addrs [2]netip.Addr) {
	if m.probeAddrs == addrs {
		return
	}
	m.probeAddrs, m.unapplied = addrs, true
	for _, p := range m.peers {
		for v := range p.forwards {
			p.forwards[v].ours = addrs[v]
			p.forwards[v].again(now)
		}
		m.choose(p, now)
	}
}

// Caught handles a packet that was taken, perhaps cut, and came in on an interface.
func (m *Machine) Caught(b []byte, link string) {
	k, err := parseForwarded(b)
	if err != nil {
		return
	}
	v := version(k.V6)
	p := m.probers[k.from]
	if p == nil { // a rule of this host has given it another source
		for _, o := range m.probers {
			if o.sent(k) {
				p = o
			}
		}
	}
	if p == nil || !p.sent(k) {
		return
	}
	slot := int(k.number & (1<<slotBits - 1))
	t := p.tracks[trackKey{k.V6, slot}]
	if t != nil && m.cfg.mayArrive(t, link) || slot == tunnelSlot && link == m.cfg.TUNName {
		p.forwards[v].taken[k.kind] = k.number
	}
}

// sent reports whether the peer sent a probe, after those that were taken.
func (p *peer) sent(k taken) bool {
	return p.sess != nil && k.number > p.forwards[version(k.V6)].taken[k.kind] && hmac.Equal(k.tag, forwardedTag(p.sess.in, k.V6, k.kind, k.number))
}

// reports takes what a gateway probe says of forwarded ones; asked is when the request left that it answers, zero if it is a request.
func (m *Machine) reports(p *peer, k Packet, asked time.Time) {
	f := &p.forwards[version(k.V6)]
	theirs := k.report.addr
	if !mesh.Inside(mesh.OfVersion(m.members[p.id].blocks, k.V6), netip.PrefixFrom(theirs, theirs.BitLen())) || theirs == p.gateways[version(k.V6)] {
		theirs = netip.Addr{}
	}
	if theirs != f.theirs {
		delete(m.probers, f.theirs)
		if f.theirs = theirs; theirs.IsValid() {
			m.probers[theirs] = p
		}
		f.again(k.At)
		m.unapplied = true
	}
	if asked.IsZero() || !asked.After(f.since) {
		return
	}
	f.ready = f.theirs.IsValid()
	if f.works() && f.on != nil {
		p.judge(f, k.report.taken, asked, k.At)
	}
}

// judge compares what is in flight with what the peer had taken when it answered a gateway probe that left at asked.
func (p *peer) judge(f *forwarding, taken [kinds]uint32, asked, now time.Time) {
	late := forwardLate
	if f.on == f.tunnel {
		late = tunnelLate
	}
	for kind := range f.flight {
		x := &f.flight[kind]
		switch {
		case !f.left.has(kind) || x.number == 0:
		case taken[kind] == x.number:
			f.left &^= 1 << kind
		case asked.Sub(x.at) >= late:
			if x.lost++; x.lost < forwardTries {
				x.number, f.sends = 0, now
				continue
			}
			f.left, f.lost = f.left&^(1<<kind), f.lost|1<<kind
		}
	}
	if f.left != 0 {
		p.hasten(f, now.Add(late/2))
		return
	}
	f.on.note(now, f.asks, f.lost)
	if f.lost != 0 && f.asks != allKinds {
		f.due = now // the others, too
	}
	f.round, f.sends = round{}, now // the next one may follow immediately
}

// hasten has a gateway probe ask soon what became of forwarded ones, on the path that they took or on another one that answers.
func (p *peer) hasten(f *forwarding, at time.Time) {
	t := f.on
	if !t.usable() {
		t = nil
		for _, o := range p.tracks {
			if o.usable() && o.c.v6 == f.tunnel.c.v6 {
				t = o
			}
		}
	}
	if t != nil && t.state == up && t.unanswered == 0 {
		t.next, t.rest = minTime(t.next, at), minTime(t.rest, at)
	}
}

// ranked lists the usable paths for pods of one IP version, best first.
func (p *peer) ranked(v6 bool) (out []*track) {
	for _, t := range p.tracks {
		if t.c.v6 == v6 && t.usable() {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *track) int {
		if better(a, b) {
			return -1
		}
		return 1
	})
	return out
}

// nextRound decides which path is tested now, and which kinds it has.
func (p *peer) nextRound(v int, now time.Time) (*track, kindSet) {
	f, using := &p.forwards[v], p.using[v]
	all := p.ranked(v == 1)
	var cutAt time.Time // of the best one, until one passes what it loses
	for i, t := range append(all, f.tunnel) {
		switch {
		case t != f.tunnel && t.tested.IsZero():
			return t, allKinds
		case i > 0 && !cutAt.IsZero() && !t.tested.After(cutAt):
			return t, allKinds
		case t != using && t.cut != 0 && (t != f.tunnel || using != nil && using.cut != 0) && !now.Before(t.retest):
			return t, allKinds
		}
		if i == 0 && t.cut != 0 {
			cutAt = t.cutAt
		} else if t.cut == 0 {
			cutAt = time.Time{}
		}
	}
	if using == nil {
		return nil, 0
	}
	if using.active(now) && f.due.After(now.Add(forwardBusy)) {
		f.due = now // traffic begins
	}
	switch {
	case now.Before(f.due):
		return nil, 0
	case using.active(now) || using.cut != 0:
		f.due = now.Add(forwardBusy)
		return using, allKinds
	}
	f.due = now.Add(forwardIdle)
	f.turn++
	return using, 1 << (f.turn % kinds)
}

// orderForwarded adds what of a peer's forwarded probes is due.
func (p *peer) orderForwarded(v int, now time.Time, out *Orders) {
	f := &p.forwards[v]
	if !f.works() || p.sess == nil {
		return
	}
	switch {
	case f.on == nil:
	case f.on != f.tunnel && !f.on.usable():
		f.round = round{}
	case now.Sub(f.began) > roundMost:
		f.on.tested = now
		f.round = round{}
	}
	if f.on == nil {
		f.sends = time.Time{}
		t, asks := p.nextRound(v, now)
		if t == nil {
			return
		}
		f.round = round{on: t, began: now, sends: now, asks: asks, left: asks}
		if t != p.using[v] {
			f.sends = now.Add(routeTime) // Paths has its route before
			return
		}
	}
	if f.sends.IsZero() || now.Before(f.sends) {
		return
	}
	f.sends = time.Time{}
	f.turn++
	for kind := range f.flight {
		x := &f.flight[kind]
		if !f.left.has(kind) || x.number != 0 {
			continue
		}
		f.number++
		x.number, x.at = f.number<<slotBits|uint32(f.on.c.slot), now
		size := 0
		if f.asks == allKinds && f.on != f.tunnel && (f.turn+kind)%kinds == 0 {
			size = f.on.c.mtu
		}
		out.Forwarded = append(out.Forwarded, forwarded(p.sess.out, kind, f.ours, f.theirs, x.number, size))
	}
	if f.on != p.using[v] || slices.ContainsFunc(f.flight[:], func(x flight) bool { return x.lost > 0 }) {
		p.hasten(f, now.Add(forwardAsk))
	}
}
