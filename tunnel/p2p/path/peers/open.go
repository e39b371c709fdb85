package peers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/causes"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/members"
)

const (
	// openTimeout bounds the opening of a stream on one path; a path that takes longer is
	// not tried again while there is another one.
	openTimeout = 2 * time.Second
	// maxTries bounds the paths that are tried for one stream.
	maxTries = 8
)

// ErrUnreachable means that no path to the peer could be made.
var ErrUnreachable = errors.New("peer is unreachable")

// OpenStream opens a stream for proto on the best path to a peer that is known now. Where
// there is none it connects first: through a relay, and directly at addresses that worked
// before. It returns an error that wraps members.ErrNotMember, ErrUnreachable with all
// causes, members.ErrQuarantined, dialer.ErrClosed, or ctx's error.
func (t *Table) OpenStream(ctx context.Context, to peer.ID, proto protocol.ID) (*paths.Stream, error) {
	if !t.Members.View().IsMember(to) {
		return nil, fmt.Errorf("open stream to %s: %w", to, members.ErrNotMember)
	}
	s, err := t.open(ctx, to, proto)
	if err != nil {
		return nil, fmt.Errorf("open stream to %s: %w", to, causes.Join(err))
	}
	return s, nil
}

func (t *Table) open(ctx context.Context, to peer.ID, proto protocol.ID) (*paths.Stream, error) {
	failed := make(map[*paths.Conn]bool)
	var errs []error
	for moves := 0; ; {
		p, x, err := t.await(ctx, to, proto, failed)
		if err != nil {
			return nil, causes.Join(append(errs, err)...)
		}
		octx, cancel := context.WithTimeout(ctx, openTimeout)
		if moves < maxTries {
			skip := maps.Clone(failed)
			t.Spawn(func() {
				if p.moves(octx, proto, x, skip) {
					cancel()
				}
			})
		}
		s, err := x.OpenStream(octx, proto)
		moved := errors.Is(octx.Err(), context.Canceled)
		cancel()
		if err == nil {
			p.used()
			return s, nil
		}
		if errors.Is(ctx.Err(), context.Canceled) { // the caller gave up: that says nothing of the path
			return nil, ctx.Err()
		}
		if none := (mss.ErrNotSupported[protocol.ID]{}); errors.As(err, &none) {
			// The peer answers, but is still starting: no other path and no round of dialing
			// changes that. The caller tries again sooner.
			return nil, fmt.Errorf("%w: %s path: %w", ErrUnreachable, x.Path().Kind, err)
		}
		if moved { // what is better now is tried, and this one counts as before
			moves++
			continue
		}
		failed[x] = true
		p.Apply(ladder.Suspect{Path: x.ID})
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s path: %w", x.Path().Kind, ctx.Err())
		}
		errs = append(errs, fmt.Errorf("%s path: %w", x.Path().Kind, err))
		if len(failed) > maxTries {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, causes.Join(errs...))
		}
	}
}

// moves waits for another path than x to be the best one, for as long as a stream is being opened on x: the one that a peer
// is left with when its best path dies may be as dead.
func (p *Peer) moves(ctx context.Context, proto protocol.ID, x *paths.Conn, skip map[*paths.Conn]bool) bool {
	return p.changed.Until(ctx, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		best := p.state.pick(proto, skip)
		return best != nil && best != x
	}) == nil
}

// used records that a stream was opened.
func (p *Peer) used() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.round.wanted = time.Time{}
	p.state.apply(ladder.Use{})
}

// await returns the best path that is not in failed, and connects where there is none.
func (t *Table) await(ctx context.Context, to peer.ID, proto protocol.ID, failed map[*paths.Conn]bool) (*Peer, *paths.Conn, error) {
	rounds := -1 // ended when the wait began
	for {
		p := t.registry.lock(to)
		changed := p.changed.Next()
		x, err := p.state.want(proto, failed, &rounds)
		p.mu.Unlock()
		if x != nil || err != nil {
			return p, x, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-t.Ctx.Done():
			return nil, nil, dialer.ErrClosed
		}
	}
}

// want returns the best path that is not in failed. If there is none, it makes the machine
// connect, and fails once a round has ended since the first call.
func (s *state) want(proto protocol.ID, failed map[*paths.Conn]bool, rounds *int) (*paths.Conn, error) {
	s.round.wanted = time.Now()
	if x := s.pick(proto, failed); x != nil {
		return x, nil
	}
	if err := s.p.t.Members.Refusal(s.p.id); err != nil {
		s.round.err = err
		return nil, err
	}
	if *rounds < 0 {
		*rounds = s.round.ended
	}
	if s.round.ended > *rounds {
		if s.round.err == nil { // a path came and went
			return nil, fmt.Errorf("%w: connection lost immediately", ErrUnreachable)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, s.round.err)
	}
	s.admit()
	s.apply(ladder.Want{})
	return nil, nil
}
