package lantest

import (
	"errors"
	"net"
	"time"
)

// Stream is one end of a stream whose writing half can be closed.
type Stream struct {
	in, out net.Conn
	// Breaks is after how many writes the stream is lost, 0 for never.
	Breaks int
	writes int
}

// NewStream returns the two ends of a stream.
func NewStream() (a, b *Stream) {
	r1, w1 := net.Pipe()
	r2, w2 := net.Pipe()
	return &Stream{in: r1, out: w2}, &Stream{in: r2, out: w1}
}

// Read implements lan.Stream, as do all the others.
func (s *Stream) Read(b []byte) (int, error) { return s.in.Read(b) }

// Write writes to the other end.
func (s *Stream) Write(b []byte) (int, error) {
	if s.writes++; s.writes == s.Breaks {
		s.Reset()
	}
	return s.out.Write(b)
}

// SetReadDeadline bounds reads.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.in.SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.out.SetWriteDeadline(t) }

// CloseWrite ends what the other end reads. As with the agents' streams, nothing more can be read here.
func (s *Stream) CloseWrite() error { return errors.Join(s.in.Close(), s.out.Close()) }

// Reset ends both directions.
func (s *Stream) Reset() { _, _ = s.in.Close(), s.out.Close() }
