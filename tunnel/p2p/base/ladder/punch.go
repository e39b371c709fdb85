package ladder

import (
	"slices"
	"time"
)

const (
	// demandFor is how long after its last traffic a peer's paths are still improved.
	demandFor = 30 * time.Second
	// nudgeGap is the least time between two nudges sent to a peer, and between two of a peer's that are obeyed.
	nudgeGap = 5 * time.Second
)

// Missing returns the direct transports there is no path over.
func (m *Machine) Missing() []Transport {
	return slices.DeleteFunc([]Transport{TCP, QUIC}, m.paths.has)
}

// absent are those, without one that was spared.
func (m *Machine) absent() []Transport {
	if missing := m.Missing(); !m.punch.is || len(missing) != 1 {
		return missing
	}
	return nil
}

// Wanted returns the transports worth an attempt: those absent, and those whose paths are all translated by NATs of IPv4 though
// IPv6, which both nodes have, has worked before over the same transport: it may have come back.
func (m *Machine) Wanted() []Transport {
	absent := m.absent()
	if !m.punch.ipv6 {
		return absent
	}
	return slices.DeleteFunc([]Transport{TCP, QUIC}, func(t Transport) bool {
		return !slices.Contains(absent, t) && (!m.punch.ipv6Worked[t] || !m.paths.has(t) || slices.ContainsFunc(m.paths, func(p *path) bool {
			return !p.link.Relayed && p.link.Transport == t && (p.link.IPv6 || p.direct)
		}))
	})
}

// InDemand reports whether the peer was used a moment ago: better paths are worth some effort then, unless bytes are paid for.
func (m *Machine) InDemand(now Time) bool { return now-m.use.last < demandFor }

// HasBulk reports whether a peer carries more than a few packets now and then.
func (m *Machine) HasBulk(now Time) bool { return now-m.use.bulk < demandFor }

func (m *Machine) inDemand() bool {
	return m.InDemand(m.now) && (!m.use.thrifty || m.HasBulk(m.now))
}

// punchDue returns when to try next; Never while nothing is missing or needed.
func (m *Machine) punchDue() Time {
	if !m.cfg.Coordinator || m.punch.running || !m.inDemand() || m.coordination() == nil || len(m.Wanted()) == 0 {
		return Never
	}
	return m.punch.next
}

// coordination is the path over which attempts are coordinated: the best one, if it is proven.
func (m *Machine) coordination() *path {
	if p := m.best(StreamLane, nil); p != nil && p.state == Proven {
		return p
	}
	return nil
}

// standbyDue returns when to get a relayed path; Never while there is a good one.
func (m *Machine) standbyDue() Time {
	if !m.cfg.Coordinator || m.standby.running || !m.inDemand() || len(m.paths) == 0 || m.use.kept && !m.paths.hasStreams() ||
		slices.ContainsFunc(m.paths, func(p *path) bool { return p.link.Relayed && !p.poor }) {
		return Never
	}
	return m.standby.next
}

// netChanged has everything probed, tried and learned again.
func (m *Machine) netChanged() {
	for _, p := range m.paths {
		p.wake(m.now)
	}
	m.standby.next, m.dial.failed, m.dial.next = m.now, 0, 0
	m.punch.moved(m.now)
	m.use.rests.forget(m.now)
	if p := m.coordination(); p != nil && m.now-m.punch.sent >= nudgeGap {
		m.punch.sent = m.now
		m.order(Nudge{Via: p.id})
	}
}

// nudged has everything tried and learned again, unless there was a nudge a moment ago.
func (m *Machine) nudged() {
	if m.now-m.punch.nudged >= nudgeGap {
		m.punch.nudged = m.now
		m.punch.moved(m.now)
		m.use.rests.forget(m.now)
	}
}
