package p2p

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/causes"
	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/identity"
)

const (
	// relayStagger is how long one relay has for a circuit before the next one is
	// tried beside it.
	relayStagger = 150 * time.Millisecond
	// maxRoute bounds the relays that are tried for one peer.
	maxRoute = 12
	// improveEvery is how often the choice of relay for busy relayed peers is
	// looked at, and improveAgain the wait after an attempt to better it.
	improveEvery = time.Second
	improveAgain = 10 * time.Second
)

// way is a relay as a way to one peer.
type way struct {
	l         *relayLink
	connected bool
	mine      bool          // this node has a reservation there
	theirs    bool          // the peer has one
	known     bool          // the peer has told of its relays
	cost      time.Duration // both distances together; 0: not known
	home      int           // position among the peer's homes
	failed    bool
}

// ways returns all relays as ways to p, in the membership's order.
func (rs *relaySet) ways(p peer.ID) []way {
	links := rs.all()
	rs.mu.Lock()
	t := rs.told[p]
	rs.mu.Unlock()
	var all []peer.ID
	for _, l := range links {
		all = append(all, l.info.ID)
	}
	order := homes(p, all)
	out := make([]way, 0, len(links))
	for _, l := range links {
		if l.info.ID == p {
			continue // a member that is a relay is not reached through itself
		}
		st := l.status()
		w := way{l: l, connected: st.Connected, mine: st.Reserved, known: t != nil, cost: st.RTT,
			home: slices.Index(order, l.info.ID), failed: l.candidate().failed}
		if t != nil {
			w.theirs = t.held[l.info.ID]
			if w.cost > 0 {
				w.cost += t.rtt[l.info.ID]
			}
		}
		out = append(out, w)
	}
	return out
}

// route orders the relays for reaching a peer: where it said it is, then where
// this node is connected anyway, then the peer's homes. What the peer said may be
// old, so nothing is left out but what is beyond maxRoute.
func route(ways []way) []way {
	class := func(w way) int {
		switch {
		case w.connected && w.theirs:
			return 0
		case w.connected && !w.known:
			return 1
		case w.theirs && !w.failed:
			return 2
		case w.connected:
			return 3
		case !w.failed:
			return 4
		}
		return 5
	}
	out := slices.Clone(ways)
	slices.SortStableFunc(out, func(a, b way) int {
		if c := cmp.Compare(class(a), class(b)); c != 0 {
			return c
		}
		if class(a) >= 4 {
			return cmp.Compare(a.home, b.home)
		}
		return compareCost(a.cost, b.cost)
	})
	return out[:min(len(out), maxRoute)]
}

// compareCost calls distances equal that differ by less than nearBy.
func compareCost(a, b time.Duration) int {
	if d := a - b; a == 0 || b == 0 || d < nearBy && d > -nearBy {
		return 0
	}
	return cmp.Compare(a, b)
}

// reachByRelay makes a circuit to the peer, through the relays one after the
// other with little time between them.
func (r *remote) reachByRelay(ctx context.Context) error {
	n := r.set.n
	if len(n.relays.all()) == 0 {
		return errors.New("no relay is configured")
	}
	n.relays.awaitOne(ctx, relayPatience)
	ways := route(n.relays.ways(r.id))
	return race(ctx, n.spawn, len(ways), relayStagger, func(ctx context.Context, i int) error {
		err := r.circuit(ctx, ways[i].l)
		if err != nil && r.connected() {
			return nil
		}
		return err
	})
}

// circuit makes a circuit to the peer through one relay, which is connected for it
// where it is not.
func (r *remote) circuit(ctx context.Context, l *relayLink) error {
	conns := l.conns()
	if len(conns) == 0 {
		if l.holds() { // it is being dialed all the time
			return fmt.Errorf("relay %s is not connected: %s", l.info.ID, l.status().Error)
		}
		l.visit()
		if conns = l.awaitConns(ctx); len(conns) == 0 {
			return fmt.Errorf("relay %s is not connected: %s", l.info.ID, l.status().Error)
		}
	}
	t := time.AfterFunc(relayStagger, l.suspect) // no answer yet: is it there at all?
	defer t.Stop()
	err := r.dialCircuit(ctx, circuitAddr(l.info.ID, conns[0].RemoteMultiaddr()))
	if err == nil {
		err = r.arrived(ctx)
	}
	if err != nil {
		return fmt.Errorf("relay %s: %w", l.info.ID, err)
	}
	return nil
}

// awaitConns waits until a relay that is visited is connected, or cannot be.
func (l *relayLink) awaitConns(ctx context.Context) []network.Conn {
	ctx, cancel := context.WithTimeout(ctx, relayDialTimeout)
	defer cancel()
	l.mu.Lock()
	rounds := l.rounds
	l.mu.Unlock()
	for {
		if conns := l.conns(); len(conns) > 0 {
			return conns
		}
		l.mu.Lock()
		over := l.rounds > rounds && l.failed
		l.mu.Unlock()
		if over || !wake.Sleep(ctx, awaitPoll) {
			return nil
		}
	}
}

// race runs try for 0 to n-1, each one stagger after the one before or as soon as
// that has failed. It returns nil as soon as one succeeds, when the others are
// cancelled, else all errors.
func race(ctx context.Context, spawn func(func()) bool, n int, stagger time.Duration, try func(context.Context, int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	results := make(chan error, n)
	var errs []error
	for started, running := 0, 0; ; {
		if started < n {
			i := started
			wg.Add(1)
			if !spawn(func() { defer wg.Done(); results <- try(ctx, i) }) {
				wg.Done()
				return ErrClosed
			}
			started++
			running++
		}
		if running == 0 {
			return causes.Join(errs...)
		}
		var next <-chan time.Time
		if started < n {
			next = time.After(stagger)
		}
		select {
		case err := <-results:
			if err == nil {
				return nil
			}
			errs = append(errs, err)
			running--
		case <-next:
		case <-ctx.Done():
			return causes.Join(append(errs, ctx.Err())...)
		}
	}
}

// order says where a relayed path to p stands among others: first the one both
// ends are nearest to.
func (rs *relaySet) order(p, relay peer.ID) int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.prefer[p] == relay {
		return 0
	}
	for i, l := range rs.links {
		if l.info.ID == relay {
			return min(i+1, 100)
		}
	}
	return 100
}

// best returns the relay that circuits between this node and a peer should use,
// nil if nothing is known, and the next best one. The one in use stays unless
// another is clearly nearer.
func best(ways []way, now peer.ID) (first, second *way) {
	usable := slices.DeleteFunc(slices.Clone(ways), func(w way) bool {
		return !w.known || w.cost == 0 || !(w.mine && w.connected || w.theirs && !w.failed)
	})
	slices.SortStableFunc(usable, func(a, b way) int {
		return cmp.Compare(costWith(a, now), costWith(b, now))
	})
	if len(usable) > 0 {
		first = &usable[0]
	}
	if len(usable) > 1 {
		second = &usable[1]
	}
	return first, second
}

func costWith(w way, now peer.ID) time.Duration {
	return candidate{rtt: w.cost, held: w.l.info.ID == now}.cost()
}

// improve moves the circuits of busy relayed peers to the best relay, and keeps a
// second one beside it for the case that the first one dies. It is called often,
// and looks every improveEvery.
func (rs *relaySet) improve(now time.Time) {
	if now.Before(rs.nextLook) {
		return
	}
	rs.nextLook = now.Add(improveEvery)
	for _, x := range rs.n.peers.relayed() {
		ways := rs.ways(x.r.id)
		rs.mu.Lock()
		old := rs.prefer[x.r.id]
		rs.mu.Unlock()
		first, second := best(ways, old)
		if first == nil {
			continue
		}
		if id := first.l.info.ID; id != old {
			rs.mu.Lock()
			rs.prefer[x.r.id] = id
			rs.mu.Unlock()
			x.r.wake() // the order of its paths has changed
		}
		for _, w := range []*way{first, second} {
			if w != nil && !x.have[w.l.info.ID] && rs.mayDial(x.r, w, now) {
				rs.n.spawn(func() {
					ctx, cancel := context.WithTimeout(rs.n.ctx, relayDialTimeout)
					defer cancel()
					if err := x.r.circuit(ctx, w.l); err != nil {
						rs.n.log.Debug("no better circuit", "peer", x.r.name(), "err", err)
					}
				})
				break
			}
		}
	}
}

// mayDial says whether this node should make the circuit: the far end needs a
// reservation, and where both have one, one end does it.
func (rs *relaySet) mayDial(r *remote, w *way, now time.Time) bool {
	if !w.theirs || w.mine && rs.n.ID() > r.id || now.Before(r.improved.Add(improveAgain)) {
		return false
	}
	r.improved = now
	return true
}

// relayedPeer is a peer that is in use, and reached through relays only.
type relayedPeer struct {
	r    *remote
	have map[peer.ID]bool // relays with a live circuit
}

// relayed returns those.
func (ps *peerSet) relayed() []relayedPeer {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var out []relayedPeer
	for _, r := range ps.m {
		p := r.pick(identity.StreamProtocol, nil)
		if p == nil || !p.relayed() || !r.m.InDemand(ps.n.now()) {
			continue
		}
		x := relayedPeer{r: r, have: make(map[peer.ID]bool)}
		for _, p := range r.paths {
			if !p.dead && p.relayed() && !p.conn.IsClosed() {
				x.have[p.relay] = true
			}
		}
		out = append(out, x)
	}
	return out
}

// relayTraffic is what went through one relay.
type relayTraffic struct {
	moved uint64    // bytes so far on circuits that are open
	heard time.Time // when something last came in
}

// through returns the traffic of the relays that have circuits.
func (ps *peerSet) through() map[peer.ID]relayTraffic {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := make(map[peer.ID]relayTraffic)
	for _, p := range ps.paths {
		if p.relay == "" {
			continue
		}
		t := out[p.relay]
		t.moved += p.tx.Load() + p.rx.Load()
		if at := p.heardAt(); at.After(t.heard) {
			t.heard = at
		}
		out[p.relay] = t
	}
	return out
}

// bestConns returns one connection to every connected peer.
func (ps *peerSet) bestConns() []network.Conn {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var out []network.Conn
	for _, r := range ps.m {
		if p := r.pick(identity.StreamProtocol, nil); p != nil {
			out = append(out, p.conn)
		}
	}
	return out
}
