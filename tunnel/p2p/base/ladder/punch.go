package ladder

import (
	"slices"
	"time"
)

const (
	// demandFor is how long after its last traffic a peer's paths are still improved.
	demandFor = 30 * time.Second
	// flapTime: a direct path lost within this time of the one before flaps.
	flapTime = time.Minute
	// firstFlaps is how many losses are answered without a pause: one cut takes the paths over TCP and QUIC one by one.
	firstFlaps = 2
	// flapMax and holdMax bound what flapping adds: a path that is back for good is used within a minute all the same.
	flapMax = 15 * time.Second
	holdMax = 10 * time.Second
	// nudgeGap is the least time between two nudges, sent to a peer or obeyed.
	nudgeGap = 5 * time.Second
	// hopelessTries is how many attempts are made where both NATs map per destination, and doubtfulTries where one does and
	// the other might let in only whom it knows. Then one follows every hopelessPause, or doubtfulPause, since the kinds
	// of NATs are guesses, and NATs are replaced.
	hopelessTries = 2
	doubtfulTries = 6
	hopelessPause = 15 * time.Minute
	doubtfulPause = 10 * time.Minute
	// LongestPause is the longest time between two attempts with a peer in demand.
	LongestPause = hopelessPause + hopelessPause/10 + time.Millisecond
	// oneMissing is how much longer the pauses are while only one of the two direct transports is missing, up to
	// oneMissingMax.
	oneMissing    = 5
	oneMissingMax = 5 * time.Minute
	// laterPause is how long after an attempt that could not be made in full the next one follows, laterTries how many such
	// attempts do not count.
	laterPause = 8 * time.Second
	laterTries = 60
)

// NAT is what stands between a node and the world, from its own observations.
type NAT uint8

const (
	// NATUnknown: nothing is known.
	NATUnknown NAT = iota
	// NATNone: no translation.
	NATNone
	// NATStable: the same outer port for every destination.
	NATStable
	// NATSequential: a port of its own for every destination, in sequence.
	NATSequential
	// NATRandom: a port of its own for every destination, unforeseeable.
	NATRandom
)

// natNames are the kinds on the wire, and in logs.
var natNames = [...]string{"unknown", "none", "stable", "sequential", "random"} //nolint:gochecknoglobals // a constant

func (n NAT) String() string {
	if int(n) < len(natNames) {
		return natNames[n]
	}
	return natNames[NATUnknown]
}

// ParseNAT reads what String wrote; anything else is NATUnknown.
func ParseNAT(s string) NAT { return NAT(max(0, slices.Index(natNames[:], s))) }

// PerDestination reports whether every destination sees a port of its own.
func (n NAT) PerDestination() bool { return n == NATSequential || n == NATRandom }

// Hopeless reports whether two nodes can hardly get a direct path: neither can tell the other where to dial. An address of
// the same LAN, IPv6 or a forwarded port may help nevertheless, which is why some attempts are made.
func Hopeless(mine, theirs NAT) bool {
	return mine.PerDestination() && theirs.PerDestination() ||
		mine == NATRandom && theirs == NATStable || mine == NATStable && theirs == NATRandom
}

// tries returns how many attempts are worth while between two NATs; 0: any number.
func tries(mine, theirs NAT) int {
	switch {
	case !Hopeless(mine, theirs):
		return 0
	case mine.PerDestination() && theirs.PerDestination():
		return hopelessTries
	default:
		return doubtfulTries
	}
}

// punch is what the machine knows of attempts to get direct paths. Of two nodes only the coordinator begins them.
type punch struct {
	running  bool
	missed   int // transports missing when it began
	attempts int // since the last change for the better
	next     Time
	tries    int  // after so many attempts the NATs' kinds are believed; 0: never
	worked   bool // there was a direct path between these NATs
	later    int  // attempts that did not count, since the last change for the better
	lost     Time // when the last direct path was lost
	flaps    int  // direct paths lost within flapTime of each other
	nudged   Time // the last nudge, sent or obeyed
}

// pause is how long after the kth failed attempt the next one follows. The last one leaves room for an attempt within a
// minute of a path's return.
func pause(k int) Time {
	steps := []Time{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
		10 * time.Second, 20 * time.Second, 40 * time.Second}
	return steps[min(max(k, 0), len(steps)-1)]
}

// note plans what follows the loss of a direct path: an attempt without a pause, unless direct paths are lost repeatedly.
func (s *punch) note(now Time) {
	if now-s.lost < flapTime {
		s.flaps++
	} else {
		s.flaps = 0
	}
	s.lost, s.attempts = now, 0
	s.next = now + min(pause(s.flaps-firstFlaps+1), flapMax)
}

// holdDown is how long a new direct path has to stay before it is preferred to a relayed one.
func (s *punch) holdDown(now Time) Time {
	if now-s.lost >= flapTime {
		return 0
	}
	return min(pause(s.flaps-firstFlaps), holdMax)
}

// restart has everything tried again from the beginning.
func (s *punch) restart(now Time) { s.attempts, s.later, s.next = 0, 0, now }

// Missing returns the direct transports there is no path over.
func (m *Machine) Missing() []Transport {
	return slices.DeleteFunc([]Transport{TCP, QUIC}, m.paths.has)
}

// punched plans the next attempt. later: the one that has ended is to be made again soon.
func (m *Machine) punched(later bool) {
	s := &m.punch
	if !s.running {
		return
	}
	s.running = false
	missing := len(m.Missing())
	if missing == 0 {
		s.attempts, s.later = 0, 0
		return
	}
	if later && s.later < laterTries {
		s.later++
		s.next = m.now + laterPause + m.jitter(laterPause)
		return
	}
	if missing < s.missed { // what let one transport through may let the other
		s.attempts = 0
	}
	s.attempts++
	wait := pause(s.attempts)
	switch {
	case missing == 1: // one direct transport is there: no hurry
		wait = min(oneMissing*wait, oneMissingMax)
	case s.tries > 0 && s.attempts >= s.tries && !s.worked:
		wait = doubtfulPause
		if s.tries == hopelessTries {
			wait = hopelessPause
		}
	}
	s.next = m.now + wait + m.jitter(wait/10+time.Millisecond)
}

// InDemand reports whether better paths are worth some effort.
func (m *Machine) InDemand(now Time) bool { return now-m.use.last < demandFor }

func (m *Machine) inDemand() bool { return m.InDemand(m.now) }

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

// punchDue returns when to try next; Never while nothing is missing or needed.
func (m *Machine) punchDue() Time {
	if !m.cfg.Coordinator || m.punch.running || !m.inDemand() || m.coordination() == nil || len(m.Missing()) == 0 {
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
	m.punch.restart(m.now)
	m.use.rests.forget(m.now)
	if m.cfg.Coordinator || m.now-m.punch.nudged < nudgeGap {
		return
	}
	if p := m.coordination(); p != nil {
		m.punch.nudged = m.now
		m.order(Nudge{Via: p.id})
	}
}

// nudged has everything tried and learned again, unless there was a nudge a moment ago.
func (m *Machine) nudged() {
	if m.now-m.punch.nudged >= nudgeGap {
		m.punch.nudged = m.now
		m.punch.restart(m.now)
		m.use.rests.forget(m.now)
	}
}
