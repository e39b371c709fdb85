package paths

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
)

// Stream is a byte stream to or from a peer on one path. It stays on that path
// until it ends. Read and Write may be called at the same time.
type Stream struct {
	s network.Stream
	c *Conn
}

// Read returns io.EOF after the peer's CloseWrite.
func (s *Stream) Read(b []byte) (int, error) {
	n, err := s.s.Read(b)
	if n > 0 {
		s.c.received(n)
	}
	return n, err
}

// Write blocks while the path is full. It returns an error once the stream is
// reset or the path is lost.
func (s *Stream) Write(b []byte) (int, error) {
	n, err := s.s.Write(b)
	if n > 0 {
		s.c.sent(n)
	}
	return n, err
}

// Path describes the path the stream runs on.
func (s *Stream) Path() Path { return s.c.Path() }

// RTT is the smoothed round trip of the path, 0 as long as it is not known.
func (s *Stream) RTT() time.Duration {
	rtt, _ := s.c.Probes.result()
	return rtt
}

// Clean reports whether the path is known neither to lose packets nor to reorder them. Of QUIC nothing is known, nor of what
// happens behind a relay or a proxy.
func (s *Stream) Clean() bool {
	c := s.c
	return !c.udp && !c.Relayed() && !c.cfg.TCP.Proxied(c) && c.cfg.TCP.Clean(c)
}

// Waited says how long a packet that is sent now has waited for the path.
func (s *Stream) Waited(d time.Duration) {
	if f := s.c.cfg.Queued; f != nil {
		_, direct := s.c.Probes.result()
		f(s.c.kind(direct), d)
	}
}

// Lost reports whether the path is dead, so that a stream on another path to the
// same peer is not abandoned with it.
func (s *Stream) Lost() bool { return s.c.dead.Load() || s.c.ctx.Err() != nil }

// CloseWrite ends the stream in order: the peer reads what was written and then
// io.EOF. Nothing more can be read here. It does not wait for the network.
func (s *Stream) CloseWrite() error {
	s.c.streams.remove(s)
	s.c.cfg.Spawn(func() { _ = s.s.Close() })
	return nil
}

// Reset abandons the stream immediately, in both directions, and unblocks Read and
// Write. It does not wait for the network.
func (s *Stream) Reset() {
	s.c.streams.remove(s)
	_ = s.s.SetDeadline(time.Unix(1, 0)) // Reset itself may wait behind a full path
	s.c.cfg.Spawn(func() { _ = s.s.Reset() })
}

// SetReadDeadline bounds Read.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.s.SetReadDeadline(t) }

// SetWriteDeadline bounds Write.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.s.SetWriteDeadline(t) }

// streams are those that are open on a connection.
type streams struct {
	mu   sync.Mutex // a leaf
	open map[*Stream]struct{}
}

func newStreams() streams { return streams{open: make(map[*Stream]struct{})} }

func (ss *streams) add(s *Stream) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.open[s] = struct{}{}
}

func (ss *streams) remove(s *Stream) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.open, s)
}

// Streams is how many are open.
func (ss *streams) Streams() int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.open)
}

// ResetStreams resets all that are open.
func (ss *streams) ResetStreams() {
	ss.mu.Lock()
	all := slices.Collect(maps.Keys(ss.open))
	ss.mu.Unlock()
	for _, s := range all {
		s.Reset()
	}
}
