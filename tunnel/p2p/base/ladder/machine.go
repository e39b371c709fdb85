package ladder

import (
	"math/rand/v2"
	"time"
)

// inUse is how long after its last use a peer is not disconnected, although the owner of the streams wants it: somewhere a ping
// may run, once a second.
const inUse = 3 * time.Second

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
	lanes   [lanes]*path // the best path of each
	since   Time         // of the best path for streams
	last    Time         // when the peer was last used
	bulk    Time         // when it was last used for more than a few packets
	kept    bool         // as Wake said, as is thrifty
	thrifty bool
	rests   rests // how long idle paths may be silent
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
	return &Machine{cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0)), next: Never, use: use{last: -Never / 2, bulk: -Never / 2},
		punch: punch{lost: -Never / 2, sent: -Never / 2, nudged: -Never / 2}}
}

// Next returns when Handle wants to be called with Wake: Never, or a time after that of the last event.
func (m *Machine) Next() Time { return m.next }

func (m *Machine) order(a Action) { m.out = append(m.out, a) }

func (m *Machine) jitter(d Time) Time { return Time(m.rnd.Int64N(int64(max(d, 1)))) }
