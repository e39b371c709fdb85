package ladder

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Time is the time since some moment before the machine was made. It must not go back; a jump ahead, as after the host
// slept, is noticed.
type Time = time.Duration

// Never is later than everything.
const Never Time = math.MaxInt64

const (
	// idleTimeout is how long the paths to a peer without streams are kept, as after a ping. The owner of streams says when
	// to disconnect.
	idleTimeout = 3 * time.Minute
	// inUse is how long after its last use a peer is not disconnected, although the owner of the streams wants it: somewhere
	// a ping may run, once a second.
	inUse = 3 * time.Second
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

// State is how the peer can be reached.
type State uint8

const (
	// Idle: no path, and none is wanted.
	Idle State = iota
	// Connecting: no path yet; dials run, or will in a moment.
	Connecting
	// Trying: there are paths, but none is proven.
	Trying
	// Relayed: the best proven path leads through a relay.
	Relayed
	// Direct: the best proven path leads to the peer without a relay.
	Direct
	// Gone: the peer is refused.
	Gone
)

func (s State) String() string {
	return [...]string{"idle", "connecting", "trying", "relayed", "direct", "gone"}[s]
}

// Config is what a machine needs.
type Config struct {
	// Coordinator says that this node, not the peer, begins attempts to get direct paths.
	Coordinator bool
	// Seed makes the pauses of different peers differ.
	Seed uint64
}

// Machine is the state of one peer. It is not safe for concurrent use.
type Machine struct {
	cfg  Config
	rnd  *rand.Rand
	now  Time
	next Time // what Next returned last
	out  []Action

	paths    pathList
	openings openings
	use      use
	refused  bool
	dial     dial
	standby  standby
	punch    punch
	nats     NATs
}

// use is which paths the peer's traffic uses, and how much it is in demand.
type use struct {
	lanes [lanes]*path // the best path of each
	since Time         // of the best path for streams
	last  Time         // when the peer was last used
	kept  bool         // as Wake said
	rests rests        // how long idle paths may be silent
}

// dial is the rounds of connecting.
type dial struct {
	running bool
	wanted  bool // a stream is pending: a round is to begin at next
	over    bool // a round has just ended
	next    Time
	failed  int // rounds in a row that made no path
}

// standby is the attempts to get a relayed path beside the direct ones.
type standby struct {
	running bool
	next    Time
}

// New returns the machine of a peer there is no path to.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0)), next: Never, use: use{last: -Never / 2},
		punch: punch{lost: -Never / 2, nudged: -Never / 2}}
}

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

// Next returns when Handle wants to be called with Wake: Never, or a time after that of the last event.
func (m *Machine) Next() Time { return m.next }

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

func (m *Machine) order(a Action) { m.out = append(m.out, a) }

func (m *Machine) jitter(d Time) Time { return Time(m.rnd.Int64N(int64(max(d, 1)))) }

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
	m.serve()
	for _, p := range m.paths {
		if p.due(m.now) <= m.now {
			p.request(m.now)
			m.order(Probe{p.id})
		}
	}
	if m.punchDue() <= m.now {
		m.punch.running, m.punch.missed = true, len(m.Missing())
		m.order(Punch{Via: m.coordination().id, Want: m.Missing(), Attempt: m.punch.attempts})
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
		if p.isBusy(m.now) { // to notice the end of its traffic
			next = min(next, p.busy+BusyFor)
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
	m.order(Moved{Lost: true, Unused: why == Unused})
}

// forget drops all paths, and with them what was learnt of failures.
func (m *Machine) forget() {
	m.paths, m.use.lanes, m.use.since = nil, [lanes]*path{}, m.now
	m.punch.attempts = 0
}

// remove takes a path out. Losing the last one says nothing of direct paths: the peer has disconnected, or is unreachable.
func (m *Machine) remove(p *path) {
	m.paths = m.paths.without(p)
	if len(m.paths) == 0 {
		m.punch.attempts = 0
	}
	if !p.link.Relayed && p.state != Unproven {
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

// dropSpare closes one spare path, once nothing has used it for a while.
func (m *Machine) dropSpare() {
	for _, p := range m.paths {
		if m.now-p.opened > spareAfter && m.spare(p) {
			m.paths = m.paths.without(p)
			m.order(Close{Path: p.id, Why: Spare})
			return
		}
	}
}
