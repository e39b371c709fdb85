package gate

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	manet "github.com/multiformats/go-multiaddr/net"

	"edgemesh/tunnel/p2p/admission/pool"
)

// from is a prefix.
func from(i int) netip.Prefix {
	return pool.Prefix(netip.AddrFrom4([4]byte{5, 5, byte(i >> 8), byte(i)}))
}

// turnsOf is turns of which n are free, of many.
func turnsOf(n int) *turns {
	return &turns{all: 64, free: n, longest: longestTurn, held: make(map[netip.Prefix]int)}
}

// take waits for a turn until closed is closed; pass ends it.
func (t *turns) take(at netip.Prefix, member bool, closed <-chan struct{}) (pass func(), ok bool) {
	x, done := newTurn(), make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-closed:
			t.end(x)
		case <-done:
		}
	}()
	return func() { t.end(x) }, t.await(x, at, member)
}

// Members' prefixes have the next turns in the order in which they came, then the newest of the others; who waits too long, or
// goes away, has none.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts, closed := turnsOf(1), make(chan struct{})
		ts.longest = time.Hour
		pass, ok := ts.take(from(0), false, nil)
		if !ok {
			t.Fatal("no turn")
		}
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		prefixes := 0
		wait := func(name string, member bool, closed <-chan struct{}) {
			prefixes++
			at := from(prefixes)
			wg.Go(func() {
				pass, got := ts.take(at, member, closed)
				mu.Lock()
				defer mu.Unlock()
				if order = append(order, name); got {
					defer pass()
				}
				if goes := name == "gone" || name == "late"; got == goes {
					t.Errorf("%s: %t", name, got)
				}
			})
			synctest.Wait()
		}
		wait("late", false, nil)
		time.Sleep(longestWait / 2)
		wait("old", false, nil)
		wait("member", true, nil)
		wait("its mate", true, nil)
		wait("gone", true, closed)
		wait("new", false, nil)
		close(closed)
		time.Sleep(longestWait * 3 / 4)
		pass()
		wg.Wait()
		if want := []string{"gone", "late", "member", "its mate", "new", "old"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
		ts.check(t, 1)
	})
}

// check fails unless nobody has a turn, or waits for one.
func (t *turns) check(tb testing.TB, free int) {
	tb.Helper()
	if t.free != free || len(t.members)+len(t.others)+len(t.held) != 0 {
		tb.Errorf("%d turns are free, want %d; %d wait, prefixes have %v", t.free, free, len(t.members)+len(t.others), t.held)
	}
}

// However many come and go away, no turn is lost.
func TestTurnsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := turnsOf(3)
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				closed := make(chan struct{})
				time.AfterFunc(time.Duration(i%40)*time.Millisecond, func() { close(closed) })
				if pass, ok := ts.take(from(i%50), i%3 == 0, closed); ok {
					time.Sleep(time.Duration(i%30) * time.Millisecond)
					pass()
				}
			})
		}
		wg.Wait()
		ts.check(t, 3)
	})
}

// A turn that came counts, even if its time was over before the goroutine that waited for it could run.
func TestTurnIsOverBeforeItIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts, x := turnsOf(1), newTurn()
		ts.longest = 0
		ts.mu.Lock()
		x.prefix = from(1)
		ts.begin(x)
		ts.mu.Unlock()
		time.Sleep(time.Millisecond)
		ts.mu.Lock()
		came := x.begun && x.over
		ts.mu.Unlock()
		if !came || !ts.await(x, from(1), false) {
			t.Error("it counts as one that did not come")
		}
		ts.check(t, 1)
	})
}

// A stranger that takes turns again and again, and keeps them, leaves seven of eight to others, at a member's prefix half.
func TestTurnsAreShared(t *testing.T) {
	for _, c := range []struct {
		known bool
		most  int
	}{{false, 64 / strangersPart}, {true, 64 / membersPart}} {
		synctest.Test(t, func(t *testing.T) {
			ts := turnsOf(64)
			var wg sync.WaitGroup
			over := make(chan struct{})
			for range 500 {
				wg.Go(func() {
					for {
						pass, ok := ts.take(from(0), c.known, over)
						if ok {
							time.Sleep(longestTurn)
							pass()
						}
						select {
						case <-over:
							return
						default:
						}
					}
				})
			}
			time.Sleep(longestTurn / 2)
			for i := range 1000 {
				start := time.Now()
				pass, ok := ts.take(from(1+i), false, nil)
				if took := time.Since(start); !ok || took > longestTurn {
					t.Fatalf("a turn: %t after %v", ok, took)
				}
				if n := ts.held[from(0)]; n > c.most {
					t.Fatalf("the stranger has %d turns, at most %d are its", n, c.most)
				}
				pass()
				time.Sleep(time.Millisecond)
			}
			close(over)
			wg.Wait()
			ts.check(t, 64)
		})
	}
}

// arrives has a connection accepted that has sent a byte, and returns both ends.
func arrives(t *testing.T, g *Gate) (conn manet.Conn, scope network.ConnManagementScope, far net.Conn) {
	near, far := net.Pipe()
	conn, scope, err := inTurns{g.Upgrader(one{gate: g, conn: near}).GateMaListener(nil), g}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = far.Write([]byte{1}) }()
	return conn, scope, far
}

// A turn ends when the peer is known, when the connection ends, or after longestTurn.
func TestTurnOfAConnection(t *testing.T) {
	for name, c := range map[string]struct {
		then func(manet.Conn, network.ConnManagementScope) // after a while
		want time.Duration                                 // until the next has its turn
	}{
		"says whose it is": {func(_ manet.Conn, s network.ConnManagementScope) { _ = s.SetPeer(peer.ID("member")) }, longestTurn / 4},
		"closed":           {func(c manet.Conn, _ network.ConnManagementScope) { c.Close() }, longestTurn / 4},
		"done":             {func(_ manet.Conn, s network.ConnManagementScope) { s.Done() }, longestTurn / 4},
		"silent":           {func(manet.Conn, network.ConnManagementScope) {}, longestTurn},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate(64)
				g.turns = turnsOf(1)
				first, scope, far1 := arrives(t, g)
				second, scope2, far2 := arrives(t, g)
				defer far1.Close()
				defer far2.Close()
				if n, err := first.Read(make([]byte, 8)); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				start := time.Now()
				time.AfterFunc(longestTurn/4, func() { c.then(first, scope) })
				n, err := second.Read(make([]byte, 8))
				if took := time.Since(start); n != 1 || err != nil || took != c.want {
					t.Errorf("%d bytes, %v after %v, want %v", n, err, took, c.want)
				}
				first.Close()
				second.Close()
				scope2.Done()
				time.Sleep(longestTurn)
				if g.turns.free != 1 {
					t.Errorf("%d turns are free, want 1", g.turns.free)
				}
			})
		})
	}
}

// Who waits is not closed for its silence, and reads an error when the turn does not come.
func TestTurnDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(64)
		g.turns = turnsOf(0)
		conn, _, far := arrives(t, g)
		defer far.Close()
		start := time.Now()
		if _, err := conn.Read(make([]byte, 8)); !errors.Is(err, errTurn) || time.Since(start) != longestWait {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		conn.Close()
	})
}
