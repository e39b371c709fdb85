package ladder

func (e Open) apply(m *Machine) {
	if m.openings.find(e.ID) == nil {
		m.openings = append(m.openings, &opening{id: e.ID, lane: e.Lane})
	}
}

func (e OpenFailed) apply(m *Machine) {
	if o := m.openings.find(e.ID); o != nil {
		o.failed = append(o.failed, e.Path)
		if o.on == e.Path {
			o.on = 0
		}
	}
	Suspect{e.Path}.apply(m)
}

func (e Opened) apply(m *Machine) {
	if o := m.openings.find(e.ID); o != nil && o.lane == DatagramLane {
		m.punch.unspare(m.now)
	}
	m.openings = m.openings.without(e.ID)
	m.use.last = m.now
}

func (e Abandon) apply(m *Machine) { m.openings = m.openings.without(e.ID) }

func (Disconnect) apply(m *Machine) {
	if m.now-m.use.last > inUse {
		m.closeAll(Unused)
	}
}

func (Refuse) apply(m *Machine) {
	m.refused = true
	m.closeAll(Refused)
}

func (Admit) apply(m *Machine) { m.refused = false }

func (e Up) apply(m *Machine) {
	switch {
	case m.paths.find(e.Path) != nil:
	case m.refused:
		m.order(Close{Path: e.Path, Why: Refused})
	default:
		if len(m.paths) == 0 {
			m.standby.next = m.now + standbyRetry
		}
		if m.punch.apart { // the peer may have another uplink, without being able to say so
			m.punch.restart(m.now)
		}
		m.use.last, m.dial.failed, m.dial.next = m.now, 0, 0
		m.paths = append(m.paths, &path{id: e.Path, link: e.Link, opened: m.now, busy: m.now, carrier: -Never,
			probing: probing{heard: m.now, resting: resting{rest: m.use.rests.of(e.Link, m.cfg.Coordinator),
				early: Time(m.cfg.Seed % restEarly)}}, proof: proof{suspected: -Never / 2}})
	}
}

func (e Ready) apply(m *Machine) {
	if p := m.paths.find(e.Path); p != nil && !p.ready {
		p.ready, p.busy, p.heard, p.asked, p.urgent = true, m.now, m.now, m.now-ProbeBusy, true
	}
}

func (e Down) apply(m *Machine) {
	if p := m.paths.find(e.Path); p != nil {
		m.remove(p)
	}
}

func (e Ask) apply(m *Machine) {
	if p := m.paths.find(e.Path); p != nil {
		p.wake(m.now)
	}
}

func (e Suspect) apply(m *Machine) {
	if p := m.paths.find(e.Path); p != nil {
		m.suspect(p)
	}
}

func (e Broken) apply(m *Machine) {
	if p := m.paths.find(e.Path); p != nil {
		if e.Unbound {
			m.punch.moved(m.now)
		}
		m.lose(p, Failed, e.Why)
	}
}

func (e Answer) apply(m *Machine) {
	if p := m.paths.find(e.Path); p != nil {
		m.prove(p, e)
	}
}

func (Connected) apply(m *Machine)   { m.connected() }
func (StandbyDone) apply(m *Machine) { m.standby = standby{next: m.now + standbyRetry} }
func (e Punched) apply(m *Machine) {
	m.punch.ended(m.now, len(m.Wanted()), len(m.absent()), e, m.jitter)
}
func (NetChanged) apply(m *Machine) { m.netChanged() }
func (Nudged) apply(m *Machine)     { m.nudged() }

// apply starts over where attempts have become worth while.
func (e NATs) apply(m *Machine) {
	if e == m.nats {
		return
	}
	was := m.punch.tries
	m.nats, m.punch.tries, m.punch.worked = e, tries(e.Mine, e.Theirs), m.paths.hasDirect()
	if was > 0 && m.punch.tries == 0 || m.punch.apart {
		m.punch.restart(m.now)
	}
}

func (e IPv6) apply(m *Machine) { m.punch.ipv6 = e.Both }

func (e Wake) apply(m *Machine) {
	m.use.kept, m.use.thrifty = e.Kept, e.Thrifty
	for _, s := range e.Samples {
		if p := m.paths.find(s.Path); p != nil && p.sample(m.now, s) {
			m.use.last = m.now
			if p.spell.bulk() {
				m.use.bulk = m.now
				m.punch.unspare(m.now)
			}
		}
	}
	for _, p := range append([]*path(nil), m.paths...) {
		p.kept = e.Kept && !p.link.Relayed
		if why, dead := p.silent(m.now); dead {
			p.doubt(m.now)
			m.lose(p, Silent, why)
		}
	}
	if m.idle() {
		m.closeAll(Unused)
	}
	m.dropSpare()
}
