package gate

import (
	"errors"
	"iter"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// turnsEach is how many handshakes over TCP are under way at a time for each processor. With a round trip of 100 ms, two
	// for each handshake, that is 160 a second; a processor computes fewer.
	turnsEach = 32
	// longestTurn is when a handshake that waits for its peer loses its turn.
	longestTurn = time.Second
	// longestWait is how long one waits for its turn: go-libp2p ends it after 15 s, and the other end waits for 16.
	longestWait = 12 * time.Second
	// A prefix from which no member has come gets one strangersPart of the turns at most, another one membersPart: a silent
	// peer keeps its turn for longestTurn.
	strangersPart, membersPart = 8, 2
)

var errTurn = errors.New("too many handshakes are ahead of this one")

// turns lets few handshakes compute at a time. When thousands return to a restarted relay, all of them side by side would
// take so long that each gives up before it is done. The next turn goes to a prefix that members have come from, then to
// whoever has waited least: an attacker's many connections wait, and a member overtakes them.
type turns struct {
	mu              sync.Mutex // a leaf: guards what follows, and each turn
	all, free       int
	longest         time.Duration        // of one
	held            map[netip.Prefix]int // by prefix
	members, others []*turn              // those that wait, in the order of their arrival
}

func newTurns() *turns {
	n := turnsEach * runtime.GOMAXPROCS(0)
	return &turns{all: n, free: n, longest: longestTurn, held: make(map[netip.Prefix]int)}
}

// turn is that of one handshake.
type turn struct {
	prefix netip.Prefix
	member bool
	begun  bool
	over   bool          // the handshake does not need it, or has had it
	change chan struct{} // closed when it has begun, or is over
	late   *time.Timer   // ends it once it has begun
}

func newTurn() *turn { return &turn{change: make(chan struct{})} }

// await waits for x's turn, at most for longestWait and until it is over, and reports whether it came.
func (t *turns) await(x *turn, prefix netip.Prefix, member bool) bool {
	t.mu.Lock()
	x.prefix, x.member = prefix, member
	switch {
	case x.over:
	case t.free > 0 && t.may(x):
		t.begin(x)
	default:
		queue := t.queue(x)
		*queue = append(*queue, x)
	}
	t.mu.Unlock()
	select {
	case <-x.change:
	case <-time.After(longestWait):
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !x.begun {
		t.endLocked(x)
	}
	return x.begun // and perhaps over already: then it continues without a turn
}

func (t *turns) queue(x *turn) *[]*turn {
	if x.member {
		return &t.members
	}
	return &t.others
}

// may reports whether x's prefix may have one more turn. The caller holds mu.
func (t *turns) may(x *turn) bool {
	part := strangersPart
	if x.member {
		part = membersPart
	}
	return t.held[x.prefix] < max(t.all/part, 1)
}

// begin gives x its turn. The caller holds mu.
func (t *turns) begin(x *turn) {
	t.free--
	t.held[x.prefix]++
	x.begun = true
	x.late = time.AfterFunc(t.longest, func() { t.end(x) })
	close(x.change)
}

// end ends x, whether it has begun or not, and gives the turn to the next.
func (t *turns) end(x *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(x)
}

func (t *turns) endLocked(x *turn) {
	if x.over {
		return
	}
	x.over = true
	if !x.begun {
		queue := t.queue(x)
		*queue = slices.DeleteFunc(*queue, func(other *turn) bool { return other == x })
		close(x.change)
		return
	}
	x.late.Stop()
	t.free++
	if t.held[x.prefix]--; t.held[x.prefix] == 0 {
		delete(t.held, x.prefix)
	}
	for t.free > 0 && (t.next(&t.members, slices.All(t.members)) || t.next(&t.others, slices.Backward(t.others))) {
	}
}

// next gives a turn to the first in queue, in this order, that may have one, and reports whether it found any. The caller
// holds mu.
func (t *turns) next(queue *[]*turn, order iter.Seq2[int, *turn]) bool {
	for i, x := range order {
		if t.may(x) {
			*queue = slices.Delete(*queue, i, i+1)
			t.begin(x)
			return true
		}
	}
	return false
}
