package paths

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"

	"edgemesh/tunnel/p2p/base/conns"
	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/base/timeline"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/who/identity"
)

// Stream is a byte stream to or from a peer on one path. It stays on that path
// until it ends. Read and Write may be called at the same time.
type Stream struct {
	s      network.Stream
	c      *Conn
	wanted *packet.Flight // may carry what the stream does; nil: of the datagram lane alone
	read   atomic.Bool    // something was
}

// Read returns io.EOF after the peer's CloseWrite.
func (s *Stream) Read(b []byte) (int, error) {
	n, err := s.s.Read(b)
	if n > 0 {
		s.c.received(n)
		s.wanted.Want()
		if !s.read.Load() && !s.read.Swap(true) && s.ofLane() {
			s.c.cfg.Timeline.Note(s.c.owner.ID(), timeline.Read)
		}
	}
	return n, err
}

// Write blocks while the path is full. It returns an error once the stream is
// reset or the path is lost.
func (s *Stream) Write(b []byte) (int, error) {
	n, err := s.s.Write(b)
	if n > 0 {
		s.c.sent(n)
		s.wanted.Want()
	}
	return n, err
}

// Path describes the path the stream runs on.
func (s *Stream) Path() Path { return s.c.Path() }

// ofLane reports whether the stream belongs to one of the two lanes.
func (s *Stream) ofLane() bool {
	return identity.OfLane(s.s.Protocol())
}

// RTT is the smoothed round trip of the path, 0 as long as it is not known.
func (s *Stream) RTT() time.Duration { return s.c.Probes.RTT() }

// Clean reports whether the path is known neither to lose packets nor to reorder them. Of QUIC nothing is known, nor of what
// happens behind a relay or a proxy.
func (s *Stream) Clean() bool {
	c := s.c
	return !c.udp && !c.Relayed() && !c.cfg.TCP.Proxied(c) && c.cfg.TCP.Clean(c)
}

// Waited says how long a packet that is sent now has waited for the path.
func (s *Stream) Waited(d time.Duration) { s.c.waited(d) }

func (c *Conn) waited(d time.Duration) {
	if f := c.cfg.Queued; f != nil {
		_, direct := c.Probes.result()
		f(c.kind(direct), d)
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

// lately is how long after a sign of life a path is taken to be alive: longer than a round trip, and not longer than a packet may
// be lost for.
const lately = time.Second

// OpenStream opens a stream for proto on exactly this connection, and ends with the path. An idle path may have died unseen, so it is
// probed immediately, and the peer's answer is waited for. A lane's stream on a path that was heard lately, as of a peer never met before
// or of one that has just sent something, does not wait, unless the peer seems to refuse this node: the negotiation
// goes with the first frames.
func (c *Conn) OpenStream(ctx context.Context, proto protocol.ID) (*Stream, error) {
	c.owner.Apply(ladder.Ask{Path: c.ID})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	open := conns.Open
	if identity.OfLane(proto) && !c.Doubted && time.Since(c.HeardAt()) < lately {
		open = conns.Begin
	}
	s, err := open(ctx, c.Conn, proto)
	if err != nil {
		return nil, err
	}
	if identity.OfLane(proto) {
		c.cfg.Timeline.Note(c.owner.ID(), timeline.Opened)
	}
	return c.Wrap(s), nil
}

// Wrap makes s a stream of this path.
func (c *Conn) Wrap(s network.Stream) *Stream {
	st := &Stream{s: s, c: c}
	if s.Protocol() == identity.DatagramProtocol {
		st.wanted = c.flight
	}
	c.streams.add(st)
	return st
}

// Ping measures a round trip on a stream that was opened for it, which is reset then.
func Ping(ctx context.Context, s *Stream) (time.Duration, error) {
	defer s.Reset()
	if d, ok := ctx.Deadline(); ok {
		_ = s.s.SetDeadline(d)
	}
	defer context.AfterFunc(ctx, s.Reset)()
	start := time.Now()
	f := probeFrame{typ: probeRequest, seq: 1, token: s.c.Probes.token}
	if _, err := s.Write(f.append(nil)); err != nil {
		return 0, err
	}
	if _, err := readProbe(s); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}
