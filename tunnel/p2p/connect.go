package p2p

import (
	"context"
	"errors"
	"sync"
	"time"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
)

const (
	// directTime bounds the direct dials of a round: those that fail must not keep
	// the next round, in which a relay may know better.
	directTime = 4 * time.Second
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
	beside(func() { n.relays.Visit(dctx, r.id) }) // a member may be a relay
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
