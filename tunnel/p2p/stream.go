package p2p

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
)

// Stream is a byte stream to or from a peer on one path. It stays on that path
// until it ends. Read and Write may be called at the same time.
type Stream struct {
	s    network.Stream
	path *path
}

// Read returns io.EOF after the peer's CloseWrite.
func (s *Stream) Read(b []byte) (int, error) {
	n, err := s.s.Read(b)
	if n > 0 {
		s.path.received(n)
	}
	return n, err
}

// Write blocks while the path is full. It returns an error once the stream is
// reset or the path is lost.
func (s *Stream) Write(b []byte) (int, error) {
	n, err := s.s.Write(b)
	if n > 0 {
		s.path.sent(n)
	}
	return n, err
}

// Path describes the path the stream runs on.
func (s *Stream) Path() Path { return s.path.describe() }

// RTT is the smoothed round trip of the path, 0 as long as it is not known.
func (s *Stream) RTT() time.Duration {
	set := s.path.r.set
	set.mu.Lock()
	defer set.mu.Unlock()
	return s.path.rtt
}

// Lost reports whether the path is dead, so that a stream on another path to the
// same peer is not abandoned with it.
func (s *Stream) Lost() bool {
	set := s.path.r.set
	set.mu.Lock()
	defer set.mu.Unlock()
	return s.path.dead || s.path.ctx.Err() != nil
}

// CloseWrite ends the stream in order: the peer reads what was written and then
// io.EOF. Nothing more can be read here. It does not wait for the network.
func (s *Stream) CloseWrite() error {
	s.path.release(s)
	s.path.n.spawn(func() { _ = s.s.Close() })
	return nil
}

// Reset abandons the stream at once, in both directions, and unblocks Read and
// Write. It does not wait for the network.
func (s *Stream) Reset() {
	s.path.release(s)
	_ = s.s.SetDeadline(time.Unix(1, 0)) // Reset itself may wait behind a full path
	s.path.n.spawn(func() { _ = s.s.Reset() })
}

// SetReadDeadline bounds Read.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.s.SetReadDeadline(t) }

// SetWriteDeadline bounds Write.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.s.SetWriteDeadline(t) }
