package knock

import (
	"errors"
	"iter"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

const (
	// turnsEach is how many handshakes over TCP are under way at a time for each processor. With a round trip of 100 ms,
	// and two of them in a handshake, that is 160 a second; a processor computes less.
	turnsEach = 32
	// longestTurn is after how long a handshake that waits for its peer no longer has a turn.
	longestTurn = time.Second
	// longestWait is how long one waits for its turn: go-libp2p ends it after 15 s, and the other end waits for 16.
	longestWait = 12 * time.Second
	// strangersPart of the turns is the most that a site has from which no member has come, membersPart that another has: a
	// silent peer keeps its turn for longestTurn.
	strangersPart, membersPart = 8, 2
)

var errTurn = errors.New("too many handshakes come before this one")

// turns has few handshakes under way at a time. When thousands come back to a relay that was restarted, all of them side by
// side would take so long that each gives up before it is done. The next turn is that of a site that members have come
// from, then of who has waited least: strangers with many connections from many sites have them wait, and a member passes
// them by.
type turns struct {
	mu              sync.Mutex // a leaf: guards what follows
	all, free       int
	held            map[netip.Prefix]int // by site
	members, others []*waiter            // who waits, in the order in which they have come
}

// waiter is a handshake that waits.
type waiter struct {
	site   netip.Prefix
	member bool
	turn   chan struct{} // closed when it has its turn
}

func newTurns() *turns {
	n := turnsEach * runtime.GOMAXPROCS(0)
	return &turns{all: n, free: n, held: make(map[netip.Prefix]int)}
}

// may reports whether w's site has not all that it may. The caller holds mu.
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

// take waits for a turn, at most for longestWait and until closed is closed, and reports whether it came. The function that
// it returns gives the turn back.
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
	if i < 0 { // it came meanwhile
		pass()
	}
	return nil, false
}

// pass gives w's turn back, to the next.
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

// next gives a turn to the first in queue, in this order, who may have one, and reports whether there is one. The caller
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

// UpgradeGatedMaListener has what l accepts handshake in turns.
func (u upgrader) UpgradeGatedMaListener(t transport.Transport, l transport.GatedMaListener) transport.Listener {
	return u.Upgrader.UpgradeGatedMaListener(t, inTurns{l, u.guard})
}

// inTurns accepts connections that wait for their turn.
type inTurns struct {
	transport.GatedMaListener
	guard *Guard
}

// Accept implements transport.GatedMaListener.
func (l inTurns) Accept() (manet.Conn, network.ConnManagementScope, error) {
	c, scope, err := l.GatedMaListener.Accept()
	if err != nil {
		return nil, nil, err
	}
	if _, err := c.RemoteMultiaddr().ValueForProtocol(ma.P_WS); err == nil {
		return c, scope, nil // a WebSocket's own handshake is over, and its members do not know of turns
	}
	w := &waiting{Conn: c, guard: l.guard, closed: make(chan struct{}), pass: func() {}}
	w.close = sync.OnceValue(func() error {
		close(w.closed)
		return c.Close()
	})
	if x, ok := scope.(timed); ok {
		w.late = x.late
	}
	return w, turned{scope, w}, nil
}

// waiting is a connection whose first bytes are read when its turn has come: until then the other end hears nothing but
// multistream-select's header.
type waiting struct {
	manet.Conn
	guard  *Guard
	late   *time.Timer // ends it when its peer is silent; nil: something else does
	closed chan struct{}
	close  func() error
	begun  bool // of who reads

	mu   sync.Mutex // a leaf: guards what follows
	over bool       // it needs no turn any longer
	pass func()
}

// Read implements net.Conn.
func (w *waiting) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 && !w.begun {
		w.begun = true
		if !w.wait() {
			return 0, errTurn
		}
	}
	return n, err
}

// wait waits for the turn. The time does not count as the peer's silence.
func (w *waiting) wait() bool {
	if w.late != nil && !w.late.Stop() {
		return false
	}
	at, _ := netip.ParseAddrPort(w.RemoteAddr().String())
	pass, ok := w.guard.turns.take(site(at.Addr()), w.guard.pool.knows(at.Addr()), w.closed)
	if !ok {
		return false
	}
	w.begin(pass)
	if w.late != nil {
		w.late.Reset(w.guard.Patience(calm, pressed))
	}
	return true
}

// begin notes that a turn has begun, which give gives back. It ends after longestTurn at the latest.
func (w *waiting) begin(give func()) {
	pass := sync.OnceFunc(give)
	late := time.AfterFunc(longestTurn, pass)
	w.mu.Lock()
	w.pass = func() {
		late.Stop()
		pass()
	}
	over := w.over
	w.mu.Unlock()
	if over {
		w.end()
	}
}

// end ends the turn, if it has begun.
func (w *waiting) end() {
	w.mu.Lock()
	pass := w.pass
	w.over, w.pass = true, func() {}
	w.mu.Unlock()
	pass()
}

// Close implements net.Conn.
func (w *waiting) Close() error {
	w.end()
	return w.close()
}

// turned is the scope of such a connection.
type turned struct {
	network.ConnManagementScope
	conn *waiting
}

// SetPeer implements network.ConnManagementScope: the handshake is over.
func (t turned) SetPeer(p peer.ID) error {
	t.conn.end()
	return t.ConnManagementScope.SetPeer(p)
}

// Done implements network.ConnManagementScope.
func (t turned) Done() {
	t.conn.end()
	t.ConnManagementScope.Done()
}
