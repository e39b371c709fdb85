package mux

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-yamux/v5"

	"edgemesh/internal/wake"
)

// session is what its streams need of it.
type session struct {
	s    *yamux.Session
	gate *gate
	held *held
	body int // bytes of data in the longest message
}

// Stream is one stream of a session.
type Stream struct {
	place
	y *yamux.Stream
	c *session

	writing sync.Mutex // one Write at a time

	ended  chan struct{} // closed by the first Reset, Close or CloseWrite
	end    sync.Once
	expiry expiry
}

var _ network.MuxedStream = (*Stream)(nil)

func newStream(c *session, y *yamux.Stream) *Stream {
	return &Stream{y: y, c: c, place: place{id: y.StreamID(), room: wake.NewOne()}, ended: make(chan struct{}), expiry: newExpiry()}
}

// Write returns once everything is in the queue, which it keeps short.
func (s *Stream) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	done := 0
	for done < len(b) {
		n := s.c.gate.enter(&s.place, min(len(b)-done, s.c.body))
		if n == 0 {
			// The session's end and the peer's reset are seen by the next Write: what
			// blocks here is what yamux is about to send.
			select {
			case <-s.room:
				continue
			case <-s.ended:
				return done, network.ErrReset
			case <-s.c.s.CloseChan():
				return done, network.ErrReset
			case <-s.expiry.wait():
				return done, yamux.ErrTimeout
			}
		}
		k, err := s.y.Write(b[done : done+n])
		s.c.gate.leave(s.id, n-k, time.Time{})
		done += k
		if err != nil {
			return done, translate(err)
		}
	}
	return done, nil
}

// Read implements network.MuxedStream.
func (s *Stream) Read(b []byte) (int, error) {
	n, err := s.y.Read(b)
	if n > 0 {
		s.c.held.read(s.id, n)
	}
	return n, translate(err)
}

func (s *Stream) over() { s.end.Do(func() { close(s.ended); s.expiry.set(time.Time{}) }) }

// Close implements network.MuxedStream.
func (s *Stream) Close() error { s.over(); defer s.c.held.left(s.id); return s.y.Close() }

// CloseWrite implements network.MuxedStream.
func (s *Stream) CloseWrite() error { s.over(); return s.y.CloseWrite() }

// CloseRead implements network.MuxedStream.
func (s *Stream) CloseRead() error { return s.y.CloseRead() }

// Reset implements network.MuxedStream.
func (s *Stream) Reset() error { s.over(); defer s.c.held.left(s.id); return s.y.Reset() }

// ResetWithError implements network.MuxedStream.
func (s *Stream) ResetWithError(code network.StreamErrorCode) error {
	s.over()
	defer s.c.held.left(s.id)
	return s.y.ResetWithError(uint32(code))
}

// evict resets the stream for what it holds, which is still its owner's.
func (s *Stream) evict() {
	s.over()
	_ = s.y.ResetWithError(uint32(network.StreamResourceLimitExceeded))
}

// SetDeadline implements network.MuxedStream.
func (s *Stream) SetDeadline(t time.Time) error {
	s.expiry.set(t)
	return s.y.SetDeadline(t)
}

// SetReadDeadline implements network.MuxedStream.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.y.SetReadDeadline(t) }

// SetWriteDeadline implements network.MuxedStream.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.expiry.set(t)
	return s.y.SetWriteDeadline(t)
}

// expiry is a deadline that can be waited for.
type expiry struct {
	mu    sync.Mutex // a leaf: guards what follows
	timer *time.Timer
	sets  int           // how often it was set
	past  chan struct{} // closed once it has passed
}

func newExpiry() expiry { return expiry{past: make(chan struct{})} }

func (e *expiry) wait() chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.past
}

// set replaces the deadline; the zero time removes it.
func (e *expiry) set(t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sets++
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	select {
	case <-e.past:
		e.past = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		close(e.past)
		return
	}
	set := e.sets
	e.timer = time.AfterFunc(wait, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.sets == set { // not replaced meanwhile
			close(e.past)
		}
	})
}

// translate turns yamux's errors into libp2p's.
func translate(err error) error {
	var stream *yamux.StreamError
	var away *yamux.GoAwayError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &stream):
		return &network.StreamError{Remote: stream.Remote, ErrorCode: network.StreamErrorCode(stream.ErrorCode), TransportError: err}
	case errors.As(err, &away):
		return &network.ConnError{Remote: away.Remote, ErrorCode: network.ConnErrorCode(away.ErrorCode), TransportError: err}
	case errors.Is(err, yamux.ErrStreamReset):
		return fmt.Errorf("%w: %w", network.ErrReset, err)
	}
	return err
}
