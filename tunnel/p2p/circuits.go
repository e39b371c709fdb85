package p2p

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/wake"
	"edgemesh/tunnel/p2p/conns"
	"edgemesh/tunnel/p2p/endpoint"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/relays"
	"edgemesh/tunnel/p2p/relays/choice"
)

const (
	// relayStagger is how long one relay has for a circuit before the next one is tried beside it.
	relayStagger = 150 * time.Millisecond
	// improveEvery is how often the choice of relay for busy relayed peers is looked at, and improveAgain the wait after
	// an attempt to better it.
	improveEvery = time.Second
	improveAgain = 10 * time.Second
	// circuitPatience is how long one circuit is waited for, and maxHanging bounds those to one peer that go on
	// unwatched.
	circuitPatience = 3 * time.Second // longer than hopPatience
	maxHanging      = 24
)

// circuitState is what a peer's relayed paths need beside the paths themselves.
type circuitState struct {
	hanging atomic.Int32 // being dialed

	// The rest is guarded by peerSet.mu.
	best     peer.ID   // the relay that its circuits should use; "" as long as nothing is known
	improved time.Time // when a better circuit was last tried
}

var _ relays.Peers = (*peerSet)(nil)

// reachByRelay makes a circuit to the peer, through the relays one after the other with little time between them.
func (r *remote) reachByRelay(ctx context.Context) error {
	n := r.set.n
	if len(n.relays.Infos()) == 0 {
		return errors.New("no relay is configured")
	}
	n.relays.AwaitAny(ctx, relayPatience)
	ranked := choice.Rank(n.relays.Reports.Candidates(r.id))
	_, err := conns.Tries[struct{}]{
		N: len(ranked), Stagger: relayStagger, Spawn: n.spawn, Drop: func(struct{}) {},
		Try: func(ctx context.Context, i int) (none struct{}, err error) {
			err = r.circuit(ctx, ranked[i].Relay)
			if err != nil && r.connected() {
				return none, nil
			}
			return none, err
		},
	}.First(ctx)
	return err
}

// circuit makes a circuit to the peer through one relay, which is connected for it where it is not.
func (r *remote) circuit(ctx context.Context, relay peer.ID) error {
	n := r.set.n
	at, err := n.relays.Connect(ctx, relay)
	if err != nil {
		return err
	}
	t := time.AfterFunc(relayStagger, func() { n.relays.Suspect(relay) }) // no answer yet: is it there at all?
	defer t.Stop()
	err = r.dialCircuit(ctx, endpoint.Circuit(relay, at))
	if err == nil {
		err = r.arrived(ctx)
	}
	if err != nil {
		return fmt.Errorf("relay %s: %w", relay, err)
	}
	return nil
}

// dialCircuit dials a circuit, and waits for it no longer than circuitPatience. The
// dial goes on, and is welcome if it succeeds after all.
func (r *remote) dialCircuit(ctx context.Context, a ma.Multiaddr) error {
	n := r.set.n
	if r.circuits.hanging.Add(1) > maxHanging {
		r.circuits.hanging.Add(-1)
		return errors.New("circuits asked for before are still being waited for")
	}
	done := make(chan error, 1)
	if !n.spawn(func() {
		defer r.circuits.hanging.Add(-1)
		ctx, cancel := context.WithTimeout(n.ctx, connectTimeout)
		defer cancel()
		done <- n.dialer.Dial(ctx, a, r.id)
	}) {
		r.circuits.hanging.Add(-1)
		return ErrClosed
	}
	patience := time.NewTimer(circuitPatience)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return fmt.Errorf("no answer for %v", circuitPatience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// relayOrder says where p, a relayed path, stands among others: first the one through the relay that both ends are
// nearest to. The caller holds r.set.mu.
func (p *path) relayOrder() int {
	if p.r.circuits.best == p.relay {
		return 0
	}
	return p.n.relays.Position(p.relay)
}

// improveCircuits moves the circuits of busy relayed peers to the best relay, and keeps a second one beside it for the
// case that the first one dies.
func (ps *peerSet) improveCircuits(ctx context.Context) {
	for wake.Sleep(ctx, improveEvery) {
		for _, x := range ps.relayed() {
			x.r.improveCircuits(x.have, time.Now())
		}
	}
}

// improveCircuits dials at most one circuit; have are the relays with a live one.
func (r *remote) improveCircuits(have map[peer.ID]bool, now time.Time) {
	n := r.set.n
	r.set.mu.Lock()
	old := r.circuits.best
	r.set.mu.Unlock()
	best := choice.Best(n.relays.Reports.Candidates(r.id), old)
	if len(best) == 0 {
		return
	}
	if best[0].Relay != old {
		r.set.mu.Lock()
		r.circuits.best = best[0].Relay
		r.set.mu.Unlock()
		r.wake() // the order of its paths has changed
	}
	i := slices.IndexFunc(best, func(c choice.Candidate) bool { return !have[c.Relay] && r.mayImprove(c, now) })
	if i < 0 {
		return
	}
	n.spawn(func() {
		ctx, cancel := context.WithTimeout(n.ctx, relays.DialTimeout)
		defer cancel()
		if err := r.circuit(ctx, best[i].Relay); err != nil {
			n.log.Debug("better circuit failed", "peer", r.name(), "err", err)
		}
	})
}

// mayImprove says whether this node should make the circuit: the far end needs a reservation, and where both have one,
// one end does it.
func (r *remote) mayImprove(c choice.Candidate, now time.Time) bool {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	if !c.Theirs || c.Mine && r.set.n.ID() > r.id || now.Before(r.circuits.improved.Add(improveAgain)) {
		return false
	}
	r.circuits.improved = now
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

// Traffic returns the traffic of the relays that have circuits.
func (ps *peerSet) Traffic() map[peer.ID]relays.Traffic {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	out := make(map[peer.ID]relays.Traffic)
	for _, p := range ps.paths {
		if p.relay == "" {
			continue
		}
		t := out[p.relay]
		t.Bytes += p.moved()
		if at := p.heardAt(); at.After(t.Heard) {
			t.Heard = at
		}
		out[p.relay] = t
	}
	return out
}

// HeardThrough says when something last came in through a relay.
func (ps *peerSet) HeardThrough(relay peer.ID) time.Time { return ps.Traffic()[relay].Heard }

// Conns returns one connection to every connected peer.
func (ps *peerSet) Conns() []network.Conn {
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

// Has says whether c is a member's connection, which it then has a path on.
func (ps *peerSet) Has(c network.Conn) bool { return ps.pathOf(c) != nil }
