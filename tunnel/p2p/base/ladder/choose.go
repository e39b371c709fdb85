package ladder

import (
	"slices"
	"time"
)

// forgiveAfter is how long a path must have answered for earlier suspicions to be forgotten.
const forgiveAfter = time.Minute

// missedFor is how long after its last use a peer's path without streams is missed when its connection ends. The peer closes one
// that nothing has used for longer (inUse).
const missedFor = inUse - 500*time.Millisecond

// rank orders paths for a lane, the lowest first: of the lane's transport, of the other one, and of each the direct before the
// punched; relayed by the order of relays; below those, end-to-end paths that have yet to show that they stay, and last those
// that are not proven.
func (p *path) rank(now Time, lane Lane) int {
	class := p.class()
	end := class
	if (p.link.Transport == QUIC) != (lane == DatagramLane) {
		end += 2
	}
	switch {
	case p.state != Proven:
		return 1<<10 + class
	case p.link.Relayed:
		rank := 100 + 2*min(p.link.Order, 100)
		if p.link.Transport == QUIC { // relays carry more over TCP
			rank++
		}
		return rank
	case now < p.trust:
		return 500 + end
	default:
		return end
	}
}

// class is 0 for direct, 1 for punched, 2 for relayed paths.
func (p *path) class() int {
	switch {
	case p.link.Relayed:
		return 2
	case p.direct:
		return 0
	default:
		return 1
	}
}

// beats reports whether p should be used rather than q; of equals, the older one, which both ends know for longer.
func (p *path) beats(q *path, now Time, lane Lane) bool {
	rp, rq := p.rank(now, lane), q.rank(now, lane)
	if rp != rq {
		return rp < rq
	}
	return p.opened < q.opened || p.opened == q.opened && p.id < q.id
}

// best returns the best path for lane that skip does not exclude; nil if there is none.
func (m *Machine) best(lane Lane, skip func(PathID) bool) *path {
	var best *path
	for _, p := range m.paths {
		if skip != nil && skip(p.id) {
			continue
		}
		if best == nil || p.beats(best, m.now, lane) {
			best = p
		}
	}
	return best
}

// choose finds the best path of each lane, and orders what follows from a change.
func (m *Machine) choose() {
	var changed, lost bool
	for lane := range Lane(lanes) {
		old := m.use.lanes[lane]
		alive := slices.Contains(m.paths, old)
		now := m.best(lane, nil)
		if now != nil && now.state != Proven && alive {
			now = old // nothing better is known
		}
		if old == now {
			continue
		}
		m.use.lanes[lane] = now
		if now != nil && now.ready {
			now.wake(m.now) // it may have died while nobody used it
		}
		if lane == StreamLane {
			m.use.since = m.now
		}
		if old != nil {
			changed, lost = true, lost || !alive && m.missed(old)
		}
	}
	if changed {
		m.order(Moved{Lost: lost, Unused: !lost && len(m.paths) == 0})
	}
}

// missed reports whether it is a loss that a path has ended: it was given up, or used a moment ago, or a stream was open on it. A
// peer that closes its streams for lack of use does so later than idleTimeout. A peer that crashes after it was silent for so long
// is no loss either: nobody waited for it, a peer that disconnects looks the same, and the next packet for it says that it is off.
func (m *Machine) missed(p *path) bool {
	unused := m.now - m.use.last
	return !m.unneeded(p) && (p.failed || unused < missedFor || p.streams > 0 && unused < idleTimeout)
}

// unneeded reports whether p, which has ended, was a second direct path without traffic: the coordinator closes those.
func (m *Machine) unneeded(p *path) bool {
	best := m.best(StreamLane, nil)
	return !p.failed && m.now-p.busy > secondAfter/2 && best != nil && best.state == Proven && !best.link.Relayed
}

// suspect takes back that a path is proven until it answers. One that is suspected repeatedly is trusted later and later.
func (m *Machine) suspect(p *path) {
	if p.state == Proven {
		p.state = Suspected
		if m.now-p.suspected > forgiveAfter {
			p.suspicions = 0
		}
		p.suspicions, p.suspected = p.suspicions+1, m.now
	}
	p.wake(m.now)
}

// replaced suspects paths that have been silent since p was made, which is proven now: relayed ones by a relayed path, and a
// direct one by another over the same transport. Why would the peer make another one? It lost them with its address or its
// power, and nothing else says so for seconds.
func (m *Machine) replaced(p *path) {
	for _, q := range m.paths {
		if q != p && q.heard < p.opened && (q.link.Relayed && p.link.Relayed || q.link.like(p.link)) {
			m.suspect(q)
		}
	}
}

// prove notes an answer.
func (m *Machine) prove(p *path, e Answer) {
	p.heard, p.waiting, p.resting.answered = m.now, !e.Last, m.now
	if e.Last && p.exact && p.began >= p.rest.learns {
		p.rest.answered(p.silence)
	}
	m.use.rests.blame(m.now)
	switch p.state {
	case Unproven:
		if !p.link.Relayed {
			p.trust = m.now + m.punch.holdDown(m.now)
		}
		m.replaced(p)
	case Suspected:
		p.trust = m.now + min(pause(p.suspicions-1), holdMax)
	}
	p.state, p.direct = Proven, e.Direct && !p.link.Relayed
	m.punch.worked = m.punch.worked || !p.link.Relayed
	m.punch.ipv6Worked[p.link.Transport] = m.punch.ipv6Worked[p.link.Transport] || p.link.IPv6
}
