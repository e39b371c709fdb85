package decide

import (
	"net/netip"
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Orders are what is due.
type Orders struct {
	Probes []Send // to be sent once the kernel holds Paths
	// Forwarded are packets to be sent as pods' are. The kernel holds their routes since the last call of Paths.
	Forwarded []Forwarded
	Offers    []*Exchange
	// Suspects have a path in use that does not answer: their path through the tunnel
	// may be dead, too.
	Suspects []mesh.PeerID
	Silent   []Silence     // the kernel may know why; see Explain
	Next     time.Duration // to the next Tick
}

// Silence is a native path on which no probe is answered, now that proving it was given up.
type Silence struct {
	Peer mesh.PeerID
	Link string
	Via  netip.Addr
	key  trackKey
}

// Explain says of a silence which MAC the kernel has for Via on that link, none if it looked without success, and when that was confirmed.
func (m *Machine) Explain(s Silence, mac MAC, confirmed time.Time) {
	p := m.peers[s.Peer]
	if p == nil || p.tracks[s.key] == nil || p.tracks[s.key].why != NoAnswer {
		return
	}
	switch t := p.tracks[s.key]; {
	case mac == MAC{}:
		t.why = Unresolved
	case !confirmed.After(t.answered): // of the time when it was there
	case mac == t.c.mac:
		t.why = Filtered
	case t.c.mac != MAC{}:
		t.why = Taken
	}
}

// Tick does what is due. connected reports whether there is a connection to a member.
func (m *Machine) Tick(now time.Time, connected func(mesh.PeerID) bool) Orders {
	all := now.Sub(m.chosen) >= chooseEvery
	if all {
		m.chosen = now
	}
	out := Orders{Next: restEvery}
	for _, p := range m.peers {
		at, ok := p.next()
		due := ok && !now.Before(at)
		if due || all {
			p.orderForwarded(0, now, all, &out)
			p.orderForwarded(1, now, all, &out)
		}
		if due {
			p.orderProbes(now, &out)
		}
		if due || all {
			m.choose(p, now)
		}
		if x := m.offer(p, now, connected); x != nil {
			out.Offers = append(out.Offers, x)
		}
		if p.proved() { // also while the tunnel stands in
			out.Next = min(out.Next, chooseEvery)
		}
		if at, ok := p.next(); ok {
			out.Next = min(out.Next, at.Sub(now))
		}
		if at, ok := p.nextExchange(); ok && !m.off.mutes(p) && connected(p.id) {
			out.Next = min(out.Next, at.Sub(now))
		}
	}
	return out
}

// orderProbes adds what of a peer's probes is due.
func (p *peer) orderProbes(now time.Time, out *Orders) {
	for _, t := range p.tracks {
		probe, ok := t.tick(now)
		if !ok {
			if t.state == down && t.since.Equal(now) && t.why == NoAnswer && t.c.kind == mesh.Native {
				out.Silent = append(out.Silent, Silence{p.id, t.c.link, t.c.via, t.c.key()})
			}
			continue
		}
		if t.state == failing && t.since.Equal(now) && slices.Contains(p.using[:], t) {
			out.Suspects = append(out.Suspects, p.id)
		}
		size := smallProbe
		if probe.full {
			size = t.c.mtu
		}
		if p.sess != nil {
			out.Probes = append(out.Probes, newSend(now, p, p.sess, t, typeRequest, probe.seq, size))
		}
	}
}
