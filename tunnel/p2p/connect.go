package p2p

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
)

const (
	// directTime bounds the direct dials of a round: those that fail must not keep
	// the next round, in which a relay may know better.
	directTime = 4 * time.Second
	// circuitPatience is how long one circuit is waited for, and maxHanging bounds
	// those to one peer that go on unwatched.
	circuitPatience = 3 * time.Second // longer than hopPatience
	maxHanging      = 24
)

// connect makes one round of attempts to reach the peer.
func (r *remote) connect() {
	ctx, cancel := context.WithTimeout(r.set.n.ctx, connectTimeout)
	defer cancel()
	err := r.reach(ctx)
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.connectErr = err
	r.rounds++
	r.tell(ladder.Connected{})
	r.changed.Broadcast()
}

// reach dials through the relays one after the other, and meanwhile directly at
// the addresses the peer was last known at and where it is heard on the local
// network; when all that fails, it asks the DHT. It returns nil as soon as there is a path.
func (r *remote) reach(ctx context.Context) error {
	n := r.set.n
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dctx, dcancel := context.WithTimeout(ctx, directTime)
	defer dcancel()
	var direct sync.WaitGroup
	beside := func(f func()) {
		direct.Add(1)
		if !n.spawn(func() { defer direct.Done(); f() }) {
			direct.Done()
		}
	}
	for _, e := range r.punch.Known() {
		if !r.punch.Worth(e) {
			continue
		}
		beside(func() {
			err := n.dialer.Dial(dctx, e.Multiaddr(), r.id)
			if err == nil {
				err = r.arrived(dctx)
			}
			if err != nil {
				r.punch.NoteStranger(e, err)
				n.log.Debug("dial where the peer was last", "peer", r.name(), "at", e, "err", err)
			}
		})
	}
	beside(func() { r.dialOnLAN(dctx) })
	if l := n.relays.link(r.id); l != nil { // a member that is a relay
		beside(func() { l.visit(); l.awaitConns(dctx) })
	}
	err := r.reachByRelay(ctx)
	if err == nil || r.connected() {
		return nil
	}
	if derr := r.reachByDHT(ctx); derr == nil {
		return nil
	} else {
		err = causes.Join(err, derr)
	}
	direct.Wait()
	if r.connected() {
		return nil
	}
	return err
}

// arrived waits until the swarm has taken a connection that was dialed.
func (r *remote) arrived(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if r.changed.Until(ctx, r.connected) != nil {
		return errors.New("refused after the handshake")
	}
	return nil
}

func (r *remote) connected() bool {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	return r.pick(identity.StreamProtocol, nil) != nil
}

// dialCircuit dials a circuit, and waits for it no longer than circuitPatience. The
// dial goes on, and is welcome if it succeeds after all.
func (r *remote) dialCircuit(ctx context.Context, a ma.Multiaddr) error {
	n := r.set.n
	if r.hanging.Add(1) > maxHanging {
		r.hanging.Add(-1)
		return errors.New("circuits asked for before are still being waited for")
	}
	done := make(chan error, 1)
	if !n.spawn(func() {
		defer r.hanging.Add(-1)
		ctx, cancel := context.WithTimeout(n.ctx, connectTimeout)
		defer cancel()
		done <- n.dialer.Dial(ctx, a, r.id)
	}) {
		r.hanging.Add(-1)
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
