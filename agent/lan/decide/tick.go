package decide

import (
	"slices"
	"time"

	"edgemesh/internal/membership/mesh"
)

// Orders are what is due.
type Orders struct {
	Probes []Send // to be sent once the kernel holds Paths
	Offers []*Exchange
	// Suspects have a path in use that does not answer: their path through the tunnel
	// may be dead, too.
	Suspects []mesh.PeerID
	Next     time.Duration // to the next Tick
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
		if due {
			p.orderProbes(now, &out)
		}
		if due || all {
			m.choose(p, now)
		}
		if x := m.offer(p, now, connected); x != nil {
			out.Offers = append(out.Offers, x)
		}
		if p.works() {
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
