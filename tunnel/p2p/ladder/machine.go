package ladder

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Time is the time since some moment before the machine was made. It must not go
// back; that it jumps ahead, as when the host was asleep, is noticed.
type Time = time.Duration

// Never is later than everything.
const Never Time = math.MaxInt64

const (
	// idleTimeout is how long the paths to a peer are kept that nobody has streams
	// to, as after a ping. Who has streams says himself when to let go.
	idleTimeout = 3 * time.Minute
	// inUse is how long after its last use, other than by a tunnel that is silent
	// for minutes, a peer is not let go: pings come every second.
	inUse = 3 * time.Second
	// spareAfter is how long a path must have been superfluous to be closed.
	spareAfter = 10 * time.Second
	// standbyRetry is the wait between attempts to get a relayed path beside the
	// direct ones.
	standbyRetry = 10 * time.Second
	// redialMin and redialMax bound the pause after a round of connecting that made
	// no path: who asks again at once does not get one round after the other.
	redialMin = 50 * time.Millisecond
	redialMax = 400 * time.Millisecond
	// asleep is how late a wake-up must be to mean that this process did not run
	// meanwhile. What was not heard then says nothing of the paths.
	asleep = 1500 * time.Millisecond
)

// State is where the peer stands.
type State uint8

const (
	// Idle: no path, and nobody asks for one.
	Idle State = iota
	// Connecting: no path yet; dials are under way, or will be in a moment.
	Connecting
	// Trying: there are paths, but none is proven.
	Trying
	// Relayed: the best proven path leads through a relay.
	Relayed
	// Direct: the best proven path leads straight to the peer.
	Direct
	// Gone: the peer is refused.
	Gone
)

func (s State) String() string {
	return [...]string{"idle", "connecting", "trying", "relayed", "direct", "gone"}[s]
}

// Config is what a machine has to know.
type Config struct {
	// Coordinator says that this node, not the peer, begins attempts to get direct
	// paths.
	Coordinator bool
	// Seed makes the pauses of different peers differ.
	Seed uint64
}

// Machine is the state of one peer. It is not safe for concurrent use.
type Machine struct {
	cfg   Config
	rnd   *rand.Rand
	now   Time
	next  Time // what Next said last
	out   []Action
	paths []*path // the oldest first

	lanes      [lanes]*path // the best path of each
	since      Time         // of the best path for streams
	refused    bool
	connecting bool
	wanted     bool // a round is to begin when redial has come
	redial     Time
	failed     int // rounds in a row that made no path
	lastUse    Time
	kept       bool // as Wake said
	standby    Time // when to try next
	standingBy bool
	punch      punch
	nats       NATs
}

// New returns the machine of a peer there is no path to.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0)), next: Never, lastUse: -Never / 2,
		punch: punch{lost: -Never / 2, nudged: -Never / 2}}
}

// Handle takes an event at its time and returns what is to be done about it, in
// this order.
func (m *Machine) Handle(now Time, e Event) []Action {
	late := m.next != Never && now-m.next > asleep
	m.now, m.out = max(m.now, now), nil
	if late {
		m.awake()
	}
	e.apply(m)
	m.settle()
	return m.out
}

// Next says when Handle wants to be called with Wake: Never, or a time after that
// of the last event.
func (m *Machine) Next() Time { return m.next }

// State says where the peer stands.
func (m *Machine) State() State {
	best := m.best(StreamLane, nil)
	switch {
	case m.refused:
		return Gone
	case best == nil && (m.connecting || m.wanted):
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

// Best returns the path a new stream should use, of those skip does not exclude; 0 if
// there is none. A nil skip excludes none.
func (m *Machine) Best(lane Lane, skip func(PathID) bool) PathID {
	if p := m.best(lane, skip); p != nil {
		return p.id
	}
	return 0
}

// Using returns the path a lane was last told to use, 0 if none, and since when
// the stream lane has been on it.
func (m *Machine) Using(lane Lane) (PathID, Time) {
	if p := m.lanes[lane]; p != nil {
		return p.id, m.since
	}
	return 0, m.since
}

// View is what can be seen of a path.
type View struct {
	State  PathState
	Direct bool // both ends own the addresses they are seen at
	Quiet  bool // no traffic lately: tell (Wake) when there is some
}

// Path returns the view of a path; ok is false when there is none of that name.
func (m *Machine) Path(id PathID) (v View, ok bool) {
	p := m.path(id)
	if p == nil {
		return View{}, false
	}
	return View{State: p.state, Direct: p.direct, Quiet: !p.isBusy(m.now)}, true
}

// Ranked returns all paths, the best for lane first.
func (m *Machine) Ranked(lane Lane) []PathID {
	ps := slices.Clone(m.paths)
	slices.SortStableFunc(ps, func(a, b *path) int {
		if m.better(a, b, lane) {
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

func (m *Machine) path(id PathID) *path {
	for _, p := range m.paths {
		if p.id == id {
			return p
		}
	}
	return nil
}

func (m *Machine) order(a Action) { m.out = append(m.out, a) }

func (m *Machine) jitter(d Time) Time { return Time(m.rnd.Int64N(int64(max(d, 1)))) }

// awake follows a time in which this process did not run: nothing could be heard,
// so nothing is dead because of that; what is dead shows at once.
func (m *Machine) awake() {
	for _, p := range m.paths {
		p.heard, p.waiting = m.now, false
		p.wake(m.now)
	}
}

// settle does what is due after every event.
func (m *Machine) settle() {
	m.choose()
	for _, p := range m.paths {
		if p.due(m.now) <= m.now {
			p.request(m.now)
			m.order(Probe{p.id})
		}
	}
	if m.punchDue() <= m.now {
		m.punch.running, m.punch.missed = true, len(m.Missing())
		m.order(Punch{Via: m.signal().id, Want: m.Missing(), Attempt: m.punch.attempts})
	}
	if m.standbyDue() <= m.now {
		m.standingBy = true
		m.order(Standby{})
	}
	if m.wanted && m.redial <= m.now {
		m.wanted, m.connecting = false, true
		m.order(Connect{})
	}
	m.next = m.plan()
}

// plan says when something is due next.
func (m *Machine) plan() Time {
	next := Never
	if m.wanted {
		next = m.redial
	}
	if len(m.paths) == 0 {
		return next
	}
	next = min(next, m.punchDue(), m.standbyDue())
	if !m.hasStreams() && !m.kept {
		next = min(next, m.lastUse+idleTimeout+time.Millisecond)
	}
	for _, p := range m.paths {
		next = min(next, p.due(m.now), p.look(m.now))
		if p.isBusy(m.now) { // see its traffic end
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
	if !m.connecting {
		return
	}
	m.connecting = false
	if len(m.paths) > 0 {
		m.failed = 0
		return
	}
	m.redial = m.now + min(redialMin<<min(m.failed, 8), redialMax)
	m.failed++
}

// idle says whether the peer is to be let go: nobody uses it, and it is time.
func (m *Machine) idle() bool {
	return len(m.paths) > 0 && m.now-m.lastUse > idleTimeout && !m.hasStreams() && !m.kept
}

// hasStreams says whether either side has a stream open, as far as sampled.
func (m *Machine) hasStreams() bool {
	return slices.ContainsFunc(m.paths, func(p *path) bool { return p.streams > 0 })
}

// closeAll gives up all paths as one event; ending them one by one would look to
// the streams as if each had a path left.
func (m *Machine) closeAll(why Reason) {
	if len(m.paths) == 0 {
		return
	}
	gone := m.paths
	m.forget()
	for _, p := range gone {
		m.order(Close{Path: p.id, Why: why})
	}
	m.order(Moved{Lost: true})
}

// hasDirect says whether a direct path is proven.
func (m *Machine) hasDirect() bool {
	return slices.ContainsFunc(m.paths, func(p *path) bool { return !p.link.Relayed && p.state != Unproven })
}

// forget has no path left; what was learnt of failures goes with the last one.
func (m *Machine) forget() {
	m.paths, m.lanes, m.since = nil, [lanes]*path{}, m.now
	m.punch.attempts = 0
}

// remove takes a path out. Losing the last one says nothing of direct paths: the
// peer has let this node go, or is away.
func (m *Machine) remove(p *path) {
	m.paths = slices.DeleteFunc(m.paths, func(q *path) bool { return p == q })
	if len(m.paths) == 0 {
		m.punch.attempts = 0
	}
	if !p.link.Relayed && p.state != Unproven {
		m.punch.note(m.now)
	}
}

// lose gives a path up. What has cut one has often cut those like it, and an idle one
// would not be missed for long: they have to prove themselves again.
func (m *Machine) lose(p *path, why Reason, text string) {
	m.remove(p)
	for _, q := range m.paths {
		if q.link.Relayed == p.link.Relayed && q.link.Relay == p.link.Relay {
			m.doubt(q)
		}
	}
	m.order(Close{Path: p.id, Why: why, Text: text, Over: m.Best(StreamLane, nil)})
}

// spare says whether the coordinator may close p: there is another direct one over
// the same transport, or another one through the same relay, that is better, as
// both sides dialing at once may make them.
func (m *Machine) spare(p *path) bool {
	if !m.cfg.Coordinator || p.streams > 0 {
		return false
	}
	resting := m.kept && m.now-m.lastUse > idleTimeout && p.link.Relayed
	return slices.ContainsFunc(m.paths, func(q *path) bool {
		if resting && !q.link.Relayed && q.state == Proven { // nobody needs both
			return true
		}
		same := p.link.Relay == q.link.Relay && (p.link.Relayed || p.link.Transport == q.link.Transport)
		return p != q && same && q.state == Proven && m.better(q, p, StreamLane)
	})
}

// dropSpare closes one spare path, once nothing has used it for a while.
func (m *Machine) dropSpare() {
	for _, p := range m.paths {
		if m.now-p.opened > spareAfter && m.spare(p) {
			m.paths = slices.DeleteFunc(m.paths, func(q *path) bool { return p == q })
			m.order(Close{Path: p.id, Why: Spare})
			return
		}
	}
}
