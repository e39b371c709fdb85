package ladder

import "time"

// A relayed path can be the shorter one: where the internet takes a detour between two sites, and not on the way to the
// relay. The choice then follows what probes measure, and slowly, since the direct way costs nobody's relay anything.
const (
	// detourEvery is how often the path that is not in use is probed to compare the two. A direct path within detourGain is
	// compared with nothing.
	detourEvery = 5 * time.Second
	// A relayed path is taken once the mean of its round trips was shorter than the shortest of the direct path for
	// detourAfter, by detourGain and by 30 %. A relay under load shows in the mean; own bulk data delay the probes of the
	// path in use, hence its shortest.
	detourAfter = 30 * time.Second
	detourGain  = 20 * time.Millisecond
	// It is left once it was less than detourStay better for detourLeave: here too the shortest counts, of both. And it is
	// neither taken nor kept while the relay is loaded, or does not say.
	detourStay  = 10 * time.Millisecond
	detourLeave = 10 * time.Second
	// Who has left one waits for detourPause, twice as long every time, before the next.
	detourPause    = time.Minute
	detourPauseMax = time.Hour
	// tripWindow is how long round trips count, to twice that.
	tripWindow = 15 * time.Second
)

// span is some round trips.
type span struct {
	least, sum Time
	n          int
}

func (s span) and(t span) span {
	switch {
	case s.n == 0:
		return t
	case t.n == 0:
		return s
	}
	return span{min(s.least, t.least), s.sum + t.sum, s.n + t.n}
}

// mean is Never of none.
func (s span) mean() Time {
	if s.n == 0 {
		return Never
	}
	return s.sum / Time(s.n)
}

// trips are the round trips of a path lately.
type trips struct {
	began       Time // of the present window
	now, before span // in the present window and the one before
}

func (t *trips) add(now, rtt Time) {
	if rtt <= 0 {
		return
	}
	switch age := now - t.began; {
	case age >= 2*tripWindow:
		*t = trips{began: now}
	case age >= tripWindow:
		t.began, t.before, t.now = now, t.now, span{}
	}
	t.now = t.now.and(span{rtt, rtt, 1})
}

// lately returns what was measured.
func (t *trips) lately(now Time) span {
	if now-t.began >= 2*tripWindow {
		return span{}
	}
	return t.before.and(t.now)
}

// detour is the choice between the direct paths and a relayed one.
type detour struct {
	relay string // whose paths come before the direct ones; "": none
	began Time
	due   Time // when to change it, if nothing else is measured until then; 0: not
	retry Time // not taken before
	left  int  // how often one was left
	full  bool // one would be taken, if its relay had room
}

// compare takes a relayed path, or leaves it.
func (m *Machine) compare() {
	d := &m.use.detour
	d.full = false
	for _, p := range m.paths {
		p.compared = false
	}
	if !m.inDemand() {
		d.due = 0
		return
	}
	direct, relayed := m.comparable()
	switch {
	case d.relay == "":
		if direct == nil || relayed == nil || m.now < d.retry {
			d.due = 0
			return
		}
		was := direct.trips.lately(m.now)
		if relayed.compared = was.least > detourGain; !relayed.compared {
			d.due = 0
			return
		}
		is := relayed.trips.lately(m.now).mean()
		shorter := is <= was.least-detourGain && is <= was.least*7/10
		d.full = shorter && !relayed.room
		if m.lasts(shorter && relayed.room, detourAfter) {
			d.relay, d.began, d.due = relayed.link.Relay, m.now, 0
		}
	case relayed == nil:
		m.leave()
	case direct == nil: // nothing is passed
		d.relay, d.due = "", 0
	default:
		direct.compared = true
		was, is := direct.trips.lately(m.now), relayed.trips.lately(m.now)
		if m.lasts(!relayed.room || was.n > 0 && is.n > 0 && is.least+detourStay > was.least, detourLeave) {
			m.leave()
		}
	}
	for _, p := range m.paths {
		p.detour = d.relay != "" && p.link.Relay == d.relay
	}
}

// comparable returns the best direct path, and the best relayed one or that in use; nil where there is none that can be
// trusted.
func (m *Machine) comparable() (direct, relayed *path) {
	for _, p := range m.paths {
		switch {
		case p.state != Proven || m.now < p.trust:
		case !p.link.Relayed:
			if direct == nil || p.beats(direct, m.now, StreamLane) {
				direct = p
			}
		case m.use.relay != "" && p.link.Relay != m.use.relay:
		case relayed == nil || p.beats(relayed, m.now, StreamLane):
			relayed = p
		}
	}
	return direct, relayed
}

// lasts reports whether a condition has held for so long.
func (m *Machine) lasts(holds bool, d Time) bool {
	switch {
	case !holds:
		m.use.due = 0
	case m.use.due == 0:
		m.use.due = m.now + d
	default:
		return m.now >= m.use.due
	}
	return false
}

// leave returns to the direct paths, for longer every time.
func (m *Machine) leave() {
	d := &m.use.detour
	if m.now-d.began > detourPauseMax {
		d.left = 0
	}
	pause := min(detourPause<<min(d.left, 10), detourPauseMax)
	*d = detour{retry: m.now + pause, left: d.left + 1}
}

// Shortcut is a relayed path that is shorter than the direct one.
type Shortcut struct {
	Relayed, Direct Time // the shortest round trips
	Relay           string
	Taken           bool // false: since the relay has no room
}

// Detour returns the relayed path that is preferred to a direct one, or would be if its relay had room; ok is false if there
// is none.
func (m *Machine) Detour() (s Shortcut, ok bool) {
	d, r := m.comparable()
	if m.use.relay == "" && !m.use.full || d == nil || r == nil {
		return Shortcut{}, false
	}
	return Shortcut{Relayed: r.trips.lately(m.now).least, Direct: d.trips.lately(m.now).least, Relay: r.link.Relay,
		Taken: m.use.relay != ""}, true
}
