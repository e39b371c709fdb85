package reach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	pb "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"

	"edgemesh/internal/cause"
	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/endpoint"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/relay/relays"
	"edgemesh/tunnel/p2p/relay/relays/choice"
	"edgemesh/tunnel/p2p/who/members"
)

const (
	// relayPatience is how long a peer's first packet waits for this node's own first
	// relay, as when it has just started.
	relayPatience = 2 * time.Second
	// relayStagger is how long one relay has for a circuit before the next one is tried beside it.
	relayStagger = 150 * time.Millisecond
	// improveAgain is the wait after an attempt to get a better circuit.
	improveAgain = 10 * time.Second
	// circuitPatience is how long one circuit is waited for, and maxHanging bounds those to one peer that continue
	// unwatched.
	circuitPatience = 3 * time.Second // longer than a relay has to answer
	maxHanging      = 24
)

// ErrNoReservation means that the peer has no reservation at a relay: it is offline, or was just started.
var ErrNoReservation = errors.New("the peer is not there (NO_RESERVATION)")

// errCircuit means that a relay answered, and gave no circuit for another reason: the peer may well be there.
var errCircuit = errors.New("the relay gives no circuit")

// Absent reports whether every relay that answered, and at least one did, has no reservation of the peer.
func Absent(err error) bool { return errors.Is(err, ErrNoReservation) && !errors.Is(err, errCircuit) }

// Cause is why a round of attempts made no path.
func Cause(err error) cause.Cause {
	switch {
	case err == nil:
		return cause.Cause{}
	case errors.Is(err, members.ErrQuarantined):
		return cause.Quarantined
	case Absent(err):
		return cause.Absent
	case errors.Is(err, errCircuit):
		return cause.NoCircuit
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return cause.NoAnswer
	}
	return cause.Other
}

// ByRelay makes a circuit to the peer, through the relays one after the other with little time between them.
func (s *Search) ByRelay(ctx context.Context) error {
	if len(s.Relays.Infos()) == 0 {
		return errors.New("no relay is configured")
	}
	s.Relays.AwaitAny(ctx, relayPatience)
	ranked := choice.Rank(s.Candidates(s.peer.ID()))
	_, err := conns.Tries[struct{}]{
		N: len(ranked), Stagger: relayStagger, Patience: circuitPatience, Spawn: s.Spawn, Drop: func(struct{}) {},
		Late: func(i int) error {
			return s.unlessConnected(fmt.Errorf("relay %s: no answer for %v", ranked[i].Relay, circuitPatience))
		},
		Try: func(ctx context.Context, i int, begun func()) (struct{}, error) {
			return struct{}{}, s.unlessConnected(s.circuit(ctx, ranked[i].Relay, begun))
		},
	}.First(ctx)
	return err
}

// unlessConnected is err, or nil once there is a path to the peer, over whatever.
func (s *Search) unlessConnected(err error) error {
	if s.peer.Connected() {
		return nil
	}
	return err
}

// circuit makes a circuit to the peer through one relay, which is connected for it where it is not. A dial of a circuit may
// hang on a dead connection: it is given roundTimeout, whatever becomes of the round, and its path is used if it
// comes after all. begun is called when the relay is connected and the circuit's dial begins.
func (s *Search) circuit(ctx context.Context, relay peer.ID, begun func()) error {
	at, err := s.Relays.Connect(ctx, relay)
	if err != nil {
		return err
	}
	hanging := &s.circuits.hanging
	defer hanging.Add(-1)
	if hanging.Add(1) > maxHanging {
		return errors.New("earlier circuits are still pending")
	}
	t := time.AfterFunc(relayStagger, func() { s.Relays.Suspect(relay) }) // no answer yet: the relay may be dead
	defer t.Stop()
	begun()
	s.Log.Debug("dialing a circuit", "peer", s.peer.Name(), "relay", relay)
	dctx, cancel := context.WithTimeout(s.Ctx, roundTimeout)
	defer cancel()
	err = s.Dialer.Dial(dctx, endpoint.Circuit(relay, at), s.peer.ID())
	if said := dialer.RefusedCircuit(0); errors.As(err, &said) {
		if pb.Status(said) == pb.Status_NO_RESERVATION {
			err = ErrNoReservation
		} else {
			err = fmt.Errorf("%w: %w", errCircuit, err)
		}
	}
	if err != nil {
		return fmt.Errorf("relay %s: %w", relay, conns.Plain(err))
	}
	return nil
}

// Order is the rank of relayed paths through relay: 0 for the one that is best for both ends, else its position.
func (s *Search) Order(relay peer.ID) int {
	s.circuits.mu.Lock()
	best := s.circuits.best
	s.circuits.mu.Unlock()
	if best == relay {
		return 0
	}
	return s.Relays.Position(relay)
}

// Improve moves the circuits of a busy peer to the best relay, and keeps a second one in case the first one
// dies: it dials at most one. have are the relays with a live circuit. It reports whether Order has changed.
func (s *Search) Improve(have map[peer.ID]bool, now time.Time) (reordered bool) {
	s.circuits.mu.Lock()
	defer s.circuits.mu.Unlock()
	best := choice.Best(s.Candidates(s.peer.ID()), s.circuits.best)
	if len(best) == 0 {
		return false
	}
	reordered = best[0].Relay != s.circuits.best
	s.circuits.best = best[0].Relay
	i := slices.IndexFunc(best, func(c choice.Candidate) bool { return !have[c.Relay] && s.mayImprove(c) })
	if i < 0 || now.Before(s.circuits.improved.Add(improveAgain)) {
		return reordered
	}
	s.circuits.improved = now
	s.Spawn(func() {
		ctx, cancel := context.WithTimeout(s.Ctx, relays.DialTimeout)
		defer cancel()
		if err := s.circuit(ctx, best[i].Relay, func() {}); err != nil {
			s.Log.Debug("better circuit failed", "peer", s.peer.Name(), "err", err)
		}
	})
	return reordered
}

// mayImprove reports whether this node should make the circuit: the far end needs a reservation, and where both have one,
// one end does it.
func (s *Search) mayImprove(c choice.Candidate) bool {
	return c.Theirs && !(c.Mine && s.Self > s.peer.ID())
}
