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
	// A site from which no member has come gets one strangersPart of the turns at most, another one membersPart: a silent
	// peer keeps its turn for longestTurn.
	strangersPart, membersPart = 8, 2
)

var errTurn = errors.New("too many handshakes are ahead of this one")

// turns lets few handshakes compute at a time. When thousands return to a restarted relay, all of them side by side would
// take so long that each gives up before it is done. The next turn goes to a site that members have come from, then to
// whoever has waited least: an attacker's many connections wait, and a member overtakes them.
type turns struct {
	mu              sync.Mutex // a leaf: guards what follows
	all, free       int
	held            map[netip.Prefix]int // by site
	members, others []*waiter            // in the order of their arrival
}

// waiter is a handshake without a turn.
type waiter struct {
	site   netip.Prefix
	member bool
	turn   chan struct{} // closed when it has its turn
}

func newTurns() *turns {
	n := turnsEach * runtime.GOMAXPROCS(0)
	return &turns{all: n, free: n, held: make(map[netip.Prefix]int)}
}

// may reports whether w's site may have one more turn. The caller holds mu.
func (t *turns) may(w *waiter) bool {
	part := strangersPart
	if w.member {
		part = membersPart
	}
	return t.held[w.site] < max(t.all/part, 1)
}

// give gives w a turn. The caller holds mu.
func (t *turns) give(w *waiter) {
	t.free--
	t.held[w.site]++
	close(w.turn)
}

// take waits for a turn, at most for longestWait and until closed is closed, and reports whether it came. pass gives the turn
// back.
func (t *turns) take(at netip.Prefix, member bool, closed <-chan struct{}) (pass func(), ok bool) {
	w := &waiter{at, member, make(chan struct{})}
	pass = func() { t.pass(w) }
	queue := &t.others
	if member {
		queue = &t.members
	}
	t.mu.Lock()
	if t.free > 0 && t.may(w) {
		t.give(w)
		t.mu.Unlock()
		return pass, true
	}
	*queue = append(*queue, w)
	t.mu.Unlock()
	late := time.NewTimer(longestWait)
	defer late.Stop()
	select {
	case <-w.turn:
		return pass, true
	case <-closed:
	case <-late.C:
	}
	t.mu.Lock()
	i := slices.Index(*queue, w)
	if i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // its turn came meanwhile
		pass()
	}
	return nil, false
}

// pass gives w's turn to the next.
func (t *turns) pass(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	if t.held[w.site]--; t.held[w.site] == 0 {
		delete(t.held, w.site)
	}
	for t.free > 0 && (t.next(&t.members, slices.All(t.members)) || t.next(&t.others, slices.Backward(t.others))) {
	}
}

// next gives a turn to the first in queue, in this order, that may have one, and reports whether it found any. The caller
// holds mu.
func (t *turns) next(queue *[]*waiter, order iter.Seq2[int, *waiter]) bool {
	for i, w := range order {
		if t.may(w) {
			*queue = slices.Delete(*queue, i, i+1)
			t.give(w)
			return true
		}
	}
	return false
}
