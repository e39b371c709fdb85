package decide

import (
	"cmp"
	"crypto/hmac"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wording"
)

// Times of forwarded probes.
const (
	forwardBusy   = 2 * time.Second        // between two rounds on the path in use, with traffic
	forwardIdle   = 10 * time.Second       // without, and while the tunnel stands in
	forwardAsk    = 20 * time.Millisecond  // after probes that something waits for, a gateway probe asks for them
	forwardLate   = 100 * time.Millisecond // one that leaves so much later overtakes none of them
	tunnelLate    = 500 * time.Millisecond // nor any that takes the tunnel
	forwardTries  = 5
	forwardRounds = 3                // without a loss, before a path is taken back
	leftFirst     = 10 * time.Second // after which a path that was left is tried again
	leftMost      = 5 * time.Minute  // likewise, if it does not last so long; what is known of it stays as long while an end has no port
	cutEvery      = 30 * time.Second // between later tries
)

// tunnelSlot is that of forwarded probes through the tunnel.
const tunnelSlot = mesh.ProbeSlots

// kindSet is a set of kinds of forwarded probes.
type kindSet uint8

const allKinds kindSet = 1<<kinds - 1

func (s kindSet) has(kind int) bool { return s>>kind&1 != 0 }

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
	number       uint32     // of the last ones sent
	tunnel       *track     // stands for the tunnel
	began        time.Time  // the last round on the path in use
	recheck      bool       // the next one has all kinds
	turn         int
	round
}

// round is one test of a path.
type round struct {
	on         *track    // nil: there is none
	sends      time.Time // when probes, or those of the next round, are to be sent; zero: they are under way
	asks, left kindSet   // which kinds it has, which are not taken yet
	first      uint32    // number of its first probes
	sent       time.Time // when the last ones left; zero: they did not yet
	tries      int
	answers    string // of whoever rejected some
}

// outcome is what forwarded probes said of a path.
type outcome struct {
	tested  time.Time // zero: never
	cut     kindSet   // kinds that it loses
	answers string    // of whoever rejects them
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

// passes reports whether t is known to pass what o loses, and to lose nothing that o passes.
func passes(t, o *track) bool {
	return t.tested.After(o.cutAt) && t.cut&^o.cut == 0 && t.cut != o.cut
}

// again begins again: what is under way says nothing.
func (f *forwarding) again(now time.Time) { f.since, f.ready, f.round = now, false, round{} }

// note notes which kinds a round lost, and who answered.
func (t *track) note(now time.Time, lost kindSet, answers string) {
	t.tested = now
	if lost&^t.cut != 0 {
		t.cutAt = now
	}
	switch {
	case t.c.slot == tunnelSlot: // its connection comes and goes
		t.retest = now.Add(forwardBusy)
	case lost != 0 && t.cut != 0:
		t.retest = now.Add(max(t.penalty, cutEvery))
	case lost != 0:
		if t.penalty *= 2; t.penalty == 0 || now.Sub(t.cleared) >= leftMost {
			t.penalty = leftFirst
		}
		t.penalty = min(t.penalty, leftMost)
		t.retest = now.Add(t.penalty)
	case t.cut != 0:
		if t.clean++; t.clean < forwardRounds {
			return
		}
		t.cleared = now
	}
	if t.cut, t.answers, t.clean, t.why = lost, answers, 0, ""; lost != 0 {
		t.why = fmt.Sprintf("the peer answers, but pods' packets are dropped (%s), by %s", wording.List(lost.names()),
			cmp.Or(answers, "a rule for forwarded packets or a switch of one of the two hosts"))
	}
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
	}
}

// Recheck has all kinds tested again on the paths in use: what this host does with forwarded packets may have changed.
func (m *Machine) Recheck() {
	for _, p := range m.peers {
		p.forwards[0].recheck, p.forwards[1].recheck = true, true
	}
}

// Caught handles a packet that was taken, perhaps cut, and came in on an interface.
func (m *Machine) Caught(b []byte, link string) {
	k, err := parseForwarded(b)
	if err != nil {
		return
	}
	if k.answers != "" {
		if p := m.probers[k.to]; p != nil {
			f := &p.forwards[version(k.V6)]
			tagged := k.tag == nil || p.sess != nil && hmac.Equal(k.tag, forwardedTag(p.sess.out, k.V6, k.kind, k.number)) // a RST has the number alone
			if f.on != nil && f.first != 0 && reached(k.number, f.first) && tagged {
				f.answers = k.answers
			}
		}
		return
	}
	from, slot := []*peer{m.probers[k.from]}, int(k.number&(1<<slotBits-1))
	if from[0] == nil { // a rule of this host has given it another source
		from = slices.Collect(maps.Values(m.probers))
	}
	for _, p := range from {
		for _, s := range []*session{p.sess, p.old} {
			t := p.tracks[trackKey{k.V6, slot}]
			if s != nil && (t != nil && m.cfg.mayArrive(t, link) || slot == tunnelSlot && link == m.cfg.TUNName) &&
				!reached(s.taken[version(k.V6)][k.kind], k.number) && hmac.Equal(k.tag, forwardedTag(s.in, k.V6, k.kind, k.number)) {
				s.taken[version(k.V6)][k.kind] = k.number
			}
		}
	}
}

// reached reports whether a number, 0 for none, is another one or came after it.
func reached(number, other uint32) bool { return number != 0 && int32(number-other) >= 0 }

// reports takes what the peer says of forwarded probes, on a track. asked is when the gateway probe left that it answers, zero if it is none.
func (m *Machine) reports(p *peer, t *track, k Packet, asked time.Time) {
	f := &p.forwards[version(k.V6)]
	theirs := netip.AddrFrom16(k.report.Addr).Unmap()
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
	f.ready = f.ready || asked.After(f.since)
	if f.works() && f.first != 0 && (t == f.on || f.on == f.tunnel) && asked.After(f.since) {
		p.judge(f, k.report.Taken, asked, k.At)
	}
}

// judge compares what a round sent with what the peer had taken when it answered a gateway probe that left at asked.
func (p *peer) judge(f *forwarding, taken [kinds]uint32, asked, now time.Time) {
	for kind, number := range taken {
		if reached(number, f.first) {
			f.left &^= 1 << kind
		}
	}
	late := forwardLate
	if f.on == f.tunnel {
		late = tunnelLate
	}
	switch {
	case f.left != 0 && (f.sent.IsZero() || asked.Sub(f.sent) < late):
		p.hasten(f, now.Add(late))
	case f.left != 0 && f.asks != allKinds:
		f.begin(f.on, allKinds, now)
	case f.left&^f.on.cut != 0 && f.tries < forwardTries:
		f.sends, f.sent = now, time.Time{}
	default:
		f.on.note(now, f.left, f.answers)
		f.round = round{sends: now} // the next one may follow immediately
	}
}

// hasten has a gateway probe ask soon what became of forwarded ones, on the path that they took or, of the tunnel, on any that answers.
func (p *peer) hasten(f *forwarding, at time.Time) {
	for _, t := range p.tracks {
		if t.state == up && t.unanswered == 0 && (t == f.on || f.on == f.tunnel && t.c.v6 == f.tunnel.c.v6) {
			t.next, t.rest = minTime(t.next, at), minTime(t.rest, at)
			return
		}
	}
}

// ranked lists the usable paths for pods of one IP version, best first.
func (p *peer) ranked(v6 bool) []*track {
	out := slices.DeleteFunc(slices.Collect(maps.Values(p.tracks)), func(t *track) bool { return t.c.v6 != v6 || !t.usable() })
	slices.SortFunc(out, func(a, b *track) int {
		if better(a, b) {
			return -1
		}
		return 1
	})
	return out
}

// nextRound decides which path is tested now, and which kinds it has. What nothing waits for begins with all peers' (all), so that the
// kernel gets the routes for these in one call.
func (p *peer) nextRound(v int, now time.Time, all bool) (*track, kindSet) {
	f, using, paths := &p.forwards[v], p.using[v], append(p.ranked(v == 1), p.forwards[v].tunnel)
	var bad *track // the best path, if none so far passes what it loses
	for i, t := range paths {
		switch {
		case t == f.tunnel && bad == nil: // it is not needed
			t.outcome = outcome{}
		case t.tested.IsZero(), bad != nil && !t.tested.After(bad.cutAt), all && t.cut != 0 && !now.Before(t.retest):
			return t, allKinds
		}
		if t.cut == 0 {
			bad = nil
		} else if i == 0 {
			bad = t
		}
	}
	every, asks := forwardIdle, kindSet(1)<<(f.turn%kinds)
	switch {
	case using == nil && len(paths) > 1:
		using, asks = f.tunnel, allKinds
	case using != nil && using.active(now):
		every, asks = forwardBusy, allKinds
	case f.recheck:
		every, asks = forwardBusy, allKinds
	}
	if using == nil || !all || now.Sub(f.began) < every {
		return nil, 0
	}
	if using.cut != 0 { // one kind would not say whether another is back
		asks = allKinds
	}
	f.began, f.recheck = now, false
	return using, asks
}

// begin begins a round.
func (f *forwarding) begin(t *track, asks kindSet, now time.Time) {
	f.turn++
	f.round = round{on: t, sends: now, asks: asks, left: asks}
}

// orderForwarded adds what of a peer's forwarded probes is due; all: all peers are asked.
func (p *peer) orderForwarded(v int, now time.Time, all bool, out *Orders) {
	f := &p.forwards[v]
	switch {
	case !f.proves() && now.Sub(f.since) > leftMost:
		for _, t := range p.tracks {
			if t.c.v6 == f.tunnel.c.v6 {
				t.cut, t.why = 0, ""
			}
		}
	case f.on != nil && f.on != f.tunnel && (!f.on.usable() || p.tracks[f.on.c.key()] != f.on):
		f.round = round{}
	}
	if !f.works() {
		return
	}
	if f.on == nil {
		f.sends = time.Time{}
		t, asks := p.nextRound(v, now, all)
		if t == nil {
			return
		}
		if f.begin(t, asks, now); t != p.using[v] {
			f.sends = now.Add(forwardAsk) // Paths has its route before
		}
	}
	if f.sends.IsZero() || now.Before(f.sends) {
		return
	}
	f.number = max(f.number+1, uint32(now.UnixMilli()/128)<<slotBits>>slotBits)
	number := f.number<<slotBits | uint32(f.on.c.slot)
	if f.tries++; f.tries == 1 {
		f.first = number
	}
	x := Forwarded{Sent: func(now time.Time) { f.sent = now }}
	for kind := range kinds {
		size := 0
		if f.on != f.tunnel && (f.on.cut != 0 || f.on.active(now) && (f.turn+kind)%kinds == 0) {
			size = f.on.c.mtu
		}
		if f.left.has(kind) {
			x.Packets = append(x.Packets, forwarded(p.sess.out, kind, f.ours, f.theirs, number, size))
		}
	}
	f.sends = time.Time{}
	out.Forwarded = append(out.Forwarded, x)
	if f.tries > 1 || f.on != p.using[v] || !f.on.used(now) {
		p.hasten(f, now.Add(forwardAsk))
	}
}

// Forwarded are forwarded probes of one path.
type Forwarded struct {
	Packets [][]byte
	Sent    func(now time.Time) // is to be called once all of them left: one that did not is never lost
}
