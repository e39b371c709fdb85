package ladder

import "slices"

// State returns how the peer can be reached.
func (m *Machine) State() State {
	best := m.best(StreamLane, nil)
	switch {
	case m.refused:
		return Gone
	case best == nil && (m.dial.running || m.dial.wanted):
		return Connecting
	case best == nil:
		return Idle
	case best.state != Proven:
		return Trying
	case best.link.Relayed:
		return Relayed
	default:
		return Direct
	}
}

// Best returns the path a new stream should use, of those that skip does not exclude; 0 if there is none. A nil skip
// excludes none.
func (m *Machine) Best(lane Lane, skip func(PathID) bool) PathID {
	if p := m.best(lane, skip); p != nil {
		return p.id
	}
	return 0
}

// Using returns the path that a lane uses, 0 if none, and since when the stream lane has used its path.
func (m *Machine) Using(lane Lane) (PathID, Time) {
	if p := m.use.lanes[lane]; p != nil {
		return p.id, m.use.since
	}
	return 0, m.use.since
}

// View is what can be seen of a path.
type View struct {
	State  PathState
	Direct bool // an end owns the address at which it is seen
	Quiet  bool // no traffic lately: Wake is wanted when there is some
}

// Path returns the view of a path; ok is false without a path of that name.
func (m *Machine) Path(id PathID) (v View, ok bool) {
	p := m.paths.find(id)
	if p == nil {
		return View{}, false
	}
	return View{State: p.state, Direct: p.direct, Quiet: !p.isBusy(m.now)}, true
}

// Ranked returns all paths, the best for lane first.
func (m *Machine) Ranked(lane Lane) []PathID {
	ps := slices.Clone(m.paths)
	slices.SortStableFunc(ps, func(a, b *path) int {
		if a.beats(b, m.now, lane) {
			return -1
		}
		return 1
	})
	ids := make([]PathID, len(ps))
	for i, p := range ps {
		ids[i] = p.id
	}
	return ids
}

// Plan is when direct paths that are missing are tried next.
type Plan struct {
	Running bool // an attempt is under way
	Mine    bool // this node begins the attempts, not the peer
	Next    Time // of this node's: not before
	Traffic bool // and only if there is traffic by then
}

// Plan returns when direct paths are tried next; ok is false while none is missing, or there is no path at all.
func (m *Machine) Plan(now Time) (p Plan, ok bool) {
	return Plan{Running: m.punch.running, Mine: m.cfg.Coordinator, Next: m.punch.next, Traffic: !m.InDemand(now)},
		len(m.paths) > 0 && len(m.Missing()) > 0
}
