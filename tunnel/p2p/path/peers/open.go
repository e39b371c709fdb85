package peers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	mss "github.com/multiformats/go-multistream"

	"edgemesh/internal/wake"
	"edgemesh/internal/wording"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/dialer"
	"edgemesh/tunnel/p2p/path/paths"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/members"
)

// openTimeout bounds the opening of a stream on one path; a path that takes longer is not tried again while there is
// another one.
const openTimeout = 2 * time.Second

// OpenStream opens a stream for proto on the best path to a peer that is known now. Where there is none it connects first:
// through a relay, and directly at addresses that worked before. It returns an error that wraps members.ErrNotMember,
// ErrUnreachable with all causes, members.ErrQuarantined, dialer.ErrClosed, or ctx's error.
func (t *Table) OpenStream(ctx context.Context, to peer.ID, proto protocol.ID) (*paths.Stream, error) {
	if !t.Members.View().IsMember(to) {
		return nil, fmt.Errorf("open stream to %s: %w", to, members.ErrNotMember)
	}
	s, err := t.open(ctx, to, proto)
	if err != nil {
		return nil, fmt.Errorf("open stream to %s: %w", to, wording.Join(err))
	}
	return s, nil
}

func (t *Table) open(ctx context.Context, to peer.ID, proto protocol.ID) (*paths.Stream, error) {
	p := t.registry.lock(to)
	o, err := p.state.open(lane(proto))
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer p.close(o)
	var errs []error
	for {
		x, try, err := p.nextPath(ctx, o)
		if err != nil {
			return nil, wording.Join(append(errs, err)...)
		}
		s, err := x.OpenStream(try, proto)
		moved := errors.Is(try.Err(), context.Canceled)
		o.cancel()
		if err == nil {
			p.opened(o)
			t.Log.Debug("stream is open", "peer", p.Name(), "path", x.Path().Kind, "protocol", proto)
			return s, nil
		}
		err = fmt.Errorf("%s path: %w", x.Path().Kind, err)
		none := mss.ErrNotSupported[protocol.ID]{}
		switch {
		case errors.Is(ctx.Err(), context.Canceled): // the caller gave up: that says nothing of the path
			return nil, ctx.Err()
		case errors.As(err, &none):
			// The peer answers, but is still starting: no other path and no round of dialing changes that. The caller tries
			// again sooner.
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
		case moved: // a better path is tried, and this one counts as before
			continue
		}
		errs = append(errs, err)
		p.Apply(ladder.OpenFailed{ID: o.id, Path: x.ID})
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s path: %w", x.Path().Kind, ctx.Err())
		}
	}
}

// nextPath waits until the machine names a path for the stream, and returns it with the context of the try.
func (p *Peer) nextPath(ctx context.Context, o *opening) (*paths.Conn, context.Context, error) {
	for {
		select {
		case <-o.ready:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-p.t.Ctx.Done():
			return nil, nil, dialer.ErrClosed
		}
		if x, try, err := p.take(ctx, o); x != nil || err != nil {
			return x, try, err
		} // the machine named two in a row, and the second was taken at the first wake-up
	}
}

// take returns the path that the machine has named since the last call, with the context of the try; nil if it has named none.
func (p *Peer) take(ctx context.Context, o *opening) (*paths.Conn, context.Context, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.err != nil || o.path == nil {
		return nil, nil, o.err
	}
	x := o.path
	o.path = nil
	try, cancel := context.WithTimeout(ctx, openTimeout)
	o.cancel = cancel
	return x, try, nil
}

// opened records that the stream is open.
func (p *Peer) opened(o *opening) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.state.openings, o.id)
	p.state.round.wanted, p.state.round.unmet = time.Time{}, time.Time{}
	p.state.apply(ladder.Opened{ID: o.id})
}

// close ends the call: the machine forgets the stream, unless it was opened.
func (p *Peer) close(o *opening) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.openings[o.id] != nil {
		delete(p.state.openings, o.id)
		p.state.apply(ladder.Abandon{ID: o.id})
	}
}

// open has the machine open a stream.
func (s *state) open(lane ladder.Lane) (*opening, error) {
	if !s.unmet() { // what waited for it is long given up
		s.round.unmet = time.Time{}
	}
	s.round.wanted = time.Now()
	if err := s.Members.Refusal(s.id); err != nil {
		s.round.err = err
		return nil, err
	}
	s.admit()
	s.lastOpening++
	o := &opening{id: s.lastOpening, ready: wake.NewOne()}
	s.openings[o.id] = o
	s.wait(s.round.wanted)
	s.apply(ladder.Open{ID: o.id, Lane: lane})
	return o, nil
}

// lane is that of a protocol's streams.
func lane(proto protocol.ID) ladder.Lane {
	if proto == identity.DatagramProtocol {
		return ladder.DatagramLane
	}
	return ladder.StreamLane
}
