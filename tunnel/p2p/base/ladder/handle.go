package ladder

import (
	"slices"
	"time"
)

const (
	// idleTimeout is how long the paths to a peer without streams are kept, as after a ping. The owner of streams says when
	// to disconnect.
	idleTimeout = time.Minute
	// secondAfter is how long a direct path that is not the one for streams is kept without traffic.
	secondAfter = 15 * time.Second
	// spareAfter is how old a superfluous path must be to be closed.
	spareAfter = 10 * time.Second
	// standbyRetry is the pause between attempts to get a relayed path beside the direct ones.
	standbyRetry = 10 * time.Second
	// redialMin and redialMax bound the pause after a round of connecting that made no path, so that repeated requests do not
	// make one round after the other.
	redialMin = 50 * time.Millisecond
	redialMax = 400 * time.Millisecond
	// asleep is how late a wake-up must be to mean that this process did not run meanwhile. Silence in that time says nothing
	// of the paths.
	asleep = 1500 * time.Millisecond
)

// Handle takes an event at its time and returns what is to be done, in this order.
func (m *Machine) Handle(now Time, e Event) []Action {
	late := m.next != Never && now-m.next > asleep
	m.now, m.out = max(m.now, now), nil
	if late {
		m.awake()
	}
	e.apply(m)
	m.decide()
	return m.out
}

// awake follows a time in which this process did not run: nothing could be heard, so no path is dead because of that, and
// all are probed now.
func (m *Machine) awake() {
	for _, p := range m.paths {
		p.heard, p.waiting = m.now, false
		p.wake(m.now)
	}
}

// decide orders what is due after every event.
func (m *Machine) decide() {
	m.choose()
	out, wanted := m.openings.serve(m.best, m.dial.running, m.dial.over, m.refused)
	m.out, m.dial.wanted, m.dial.over = append(m.out, out...), wanted, false
	best := m.use.lanes[StreamLane]
	for _, p := range m.paths {
		p.reserve = p.link.Relayed && best != nil && !best.link.Relayed && best.state == Proven
		if p.due(m.now) <= m.now {
			p.request(m.now)
			m.order(Probe{p.id})
		}
	}
	if m.punchDue() <= m.now {
		m.punch.running, m.punch.missed = true, len(m.Wanted())
		m.order(Punch{Via: m.coordination().id, Want: m.Wanted(), Attempt: m.punch.attempts})
	}
	if m.standbyDue() <= m.now {
		m.standby.running = true
		m.order(Standby{})
	}
	if m.dial.wanted && m.dial.next <= m.now {
		m.dial.wanted, m.dial.running = false, true
		m.order(Connect{})
	}
	m.next = m.plan()
}

// plan returns when something is due next.
func (m *Machine) plan() Time {
	next := Never
	if m.dial.wanted {
		next = m.dial.next
	}
	if len(m.paths) == 0 {
		return next
	}
	next = min(next, m.punchDue(), m.standbyDue())
	if !m.paths.hasStreams() && !m.use.kept {
		next = min(next, m.use.last+idleTimeout+time.Millisecond)
	}
	for _, p := range m.paths {
		next = min(next, p.due(m.now), p.look(m.now))
		if p.isBusy(m.now) { // to notice that nothing answers, and the end of its traffic
			next = min(next, p.busy+BusyFor, m.now+ProbeBusy/2)
		}
		if m.second(p) {
			next = min(next, m.unused(p))
		}
		if m.now < p.trust {
			next = min(next, p.trust)
		}
		if m.spare(p) {
			next = min(next, p.opened+spareAfter+time.Millisecond)
		}
	}
	return max(next, m.now+time.Millisecond)
}

// connected ends a round of connecting.
func (m *Machine) connected() {
	if !m.dial.running {
		return
	}
	m.dial.running, m.dial.over = false, true
	if len(m.paths) > 0 {
		m.dial.failed = 0
		return
	}
	m.dial.next = m.now + min(redialMin<<min(m.dial.failed, 8), redialMax)
	m.dial.failed++
}

// idle reports whether to disconnect from the peer: nothing has used it for long enough.
func (m *Machine) idle() bool {
	return len(m.paths) > 0 && m.now-m.use.last > idleTimeout && !m.paths.hasStreams() && !m.use.kept
}

// closeAll gives up all paths as one event; ending them one by one would look to the streams as if each had a path left.
func (m *Machine) closeAll(why Reason) {
	if len(m.paths) == 0 {
		return
	}
	gone := m.paths
	m.forget()
	for _, p := range gone {
		m.order(Close{Path: p.id, Why: why})
	}
	m.order(Moved{Lost: why != Unused, Unused: why == Unused})
}

// forget drops all paths, and with them what was learnt of failures.
func (m *Machine) forget() {
	m.paths, m.use.lanes, m.use.since = nil, [lanes]*path{}, m.now
	m.punch.attempts, m.punch.spares = 0, spares{}
}

// remove takes a path out. Losing the last one says nothing of direct paths: the peer has disconnected, or is unreachable.
func (m *Machine) remove(p *path) {
	m.paths = m.paths.without(p)
	if len(m.paths) == 0 {
		m.punch.attempts = 0
	}
	if !p.link.Relayed && p.state != Unproven && !m.unneeded(p) {
		m.punch.note(m.now)
	}
}

// lose gives a path up. What has cut one has often cut similar ones, and an idle one would not be missed for long: they are
// suspected.
func (m *Machine) lose(p *path, why Reason, text string) {
	p.failed = true
	m.remove(p)
	for _, q := range m.paths {
		if q.link.Relayed == p.link.Relayed && q.link.Relay == p.link.Relay {
			m.suspect(q)
		}
	}
	m.order(Close{Path: p.id, Why: why, Text: text, Over: m.Best(StreamLane, nil)})
}

// spare reports whether the coordinator may close p: there is a better one, direct over the same transport or through the
// same relay, as happens when both sides dial at the same time.
func (m *Machine) spare(p *path) bool {
	if m.second(p) && m.now >= m.unused(p) {
		return true
	}
	if !m.cfg.Coordinator || p.streams > 0 {
		return false
	}
	resting := m.use.kept && m.now-m.use.last > idleTimeout && p.link.Relayed
	return slices.ContainsFunc(m.paths, func(q *path) bool {
		if resting && !q.link.Relayed && q.state == Proven { // one is enough
			return true
		}
		return p != q && q.link.like(p.link) && q.state == Proven && q.beats(p, m.now, StreamLane)
	})
}

// second reports whether p is a direct path beside the one for streams, or for sealed packets that carry them, which the coordinator
// closes when it is not used: the next bulk or datagrams have it made again. Streams that belong to no lane would be cut.
func (m *Machine) second(p *path) bool {
	best := m.use.lanes[StreamLane]
	if q := m.paths.sealed(); q != nil && !(q.rest.failed > 0 && m.now < q.rest.again) { // behind a NAT that forgets UDP soon TCP rests cheaper
		best = q
	}
	return m.cfg.Coordinator && !m.use.kept && !p.link.Relayed && p.streams <= p.lanes && p != best &&
		best != nil && !best.link.Relayed && best.state == Proven
}

// unused is when a second path has not been used for long enough. One beside sealed packets is there for trials as long as there is bulk.
func (m *Machine) unused(p *path) Time {
	at := p.busy + secondAfter
	if m.paths.sealed() != nil {
		at = max(at, m.use.bulk+demandFor)
	}
	return at + time.Millisecond
}

// dropSpare closes one spare path, once nothing has used it for a while.
func (m *Machine) dropSpare() {
	for _, p := range m.paths {
		if m.now-p.opened > spareAfter && m.spare(p) {
			if m.second(p) {
				m.punch.spare(m.now, p.spell.last-p.opened, m.paths.sealed() != nil)
			}
			m.paths = m.paths.without(p)
			m.order(Close{Path: p.id, Why: Spare})
			return
		}
	}
}
