// Package forward has a relay forward sealed packets between members, unread, as TURN's channels do (RFC 8656, section 12),
// beside the circuits that carry the rest.
//
//	forward.go  packets, and the channels that say where they go
//	queue.go    what waits for a member's share, or for room in the socket
//	serve.go    members open channels, each by a stream on its QUIC connection
//	open.go     how a member does that
//	drop.go     what was dropped, and what for
//
// DESIGN.md has the decisions.
package forward

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/base/stun"
	"edgemesh/tunnel/p2p/carrier/packet"
	"edgemesh/tunnel/p2p/carrier/sealed"
)

// Config is what a Service needs; all of it is required.
type Config struct {
	// Far returns the far end of a member's connection, if that is one on a socket that forwards.
	Far func(network.Conn) (Far, error)
	// IsMember reports who is served.
	IsMember func(peer.ID) bool
	// StandsBy reports whether a connection is of a machine that stands by for another one with its key.
	StandsBy func(network.Conn) bool
	// PerMember bounds the channels of one member, All those of all.
	PerMember, All int
	// Join returns a member's share of the relay's bandwidth, for what its channels carry.
	Join func(peer.ID) Share
	// Refused is called for a channel that is refused.
	Refused func(reason string, p peer.ID, from string)
	// Dropped counts packets by reason.
	Dropped func(Reason, int)
}

// Far is where a member is.
type Far interface {
	// Is reports whether it is at an address.
	Is(*net.UDPAddr) bool
	// Send sends packets of each bytes, the last one perhaps shorter, and returns how many bytes of them it sent. It does not
	// wait: unix.EAGAIN means that no more can be sent now.
	Send(b []byte, each int) (sent int, err error)
}

var _ Far = packet.Far{}

// Share is what one member may send.
type Share interface {
	// Take takes up to n bytes of the present share, whole packets of each bytes, and returns how many; 0: it is used up.
	Take(n, each int) int
	// Sent counts bytes that were forwarded.
	Sent(bytes int)
	// Leave gives it back.
	Leave()
}

// Service forwards packets. Close it.
type Service struct {
	cfg    Config
	cancel context.CancelFunc
	done   sync.WaitGroup
	queue  queue

	mu       sync.RWMutex // a leaf: guards what follows
	channels map[uint32]*channel
	leaves   map[pair][]*channel // the newest last
	members  map[peer.ID]*member
}

// member is one with channels.
type member struct {
	id       peer.ID
	share    Share
	channels int // guarded by Service.mu
	flow
}

// pair is who opened a channel, and to whom it leads.
type pair struct{ from, to peer.ID }

// channel is one way from a member to another.
type channel struct {
	number uint32
	from   *member
	pair
	far Far // where its packets come from, and those for it go
	// back is the newest channel of the other one to this one, its leave to send there; nil: it has not given it.
	back atomic.Pointer[channel]
}

// New returns a Service; it is to be the forwarder of the sockets that cfg.Far knows.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, channels: map[uint32]*channel{}, leaves: map[pair][]*channel{}, members: map[peer.ID]*member{}}
	s.queue = newQueue(cfg.Dropped)
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.done.Go(func() { s.queue.run(ctx) })
	return s
}

// Close ends what waits. Channels end with their streams.
func (s *Service) Close() {
	s.cancel()
	s.done.Wait()
}

// Forward implements packet.Forwarder: it never sends more than came, nor to an address that QUIC has not validated.
func (s *Service) Forward(b []byte, each int, from *net.UDPAddr) {
	if to, member, why := s.admit(b, each, from); why != accepted {
		s.cfg.Dropped(why, packets(b, each))
	} else {
		s.queue.send(member, to, strip(b, each), each-packet.ChannelLen)
	}
}

// admit returns where packets go, and who sent them.
func (s *Service) admit(b []byte, each int, from *net.UDPAddr) (to *channel, by *member, why Reason) {
	number, ok := packet.ChannelOf(b)
	if !ok {
		return nil, nil, Short
	}
	s.mu.RLock()
	c := s.channels[number]
	s.mu.RUnlock()
	switch {
	case c == nil:
		return nil, nil, UnknownNumber
	case !c.far.Is(from):
		return nil, nil, ForeignSource
	}
	if to = c.back.Load(); to == nil {
		return nil, nil, NoLeave
	}
	for ; len(b) > 0; b = b[min(each, len(b)):] {
		// A member must not have the relay's address say anything else to another one.
		inner := b[packet.ChannelLen:min(each, len(b))]
		if len(inner) < sealed.Overhead {
			return nil, nil, Short
		}
		if !sealed.Is(inner) || stun.Is(inner) {
			return nil, nil, NotSealed
		}
	}
	return to, c.from, accepted
}

// strip takes the header off each packet, in place.
func strip(b []byte, each int) []byte {
	out := b[packet.ChannelLen:packet.ChannelLen]
	for ; len(b) > 0; b = b[min(each, len(b)):] {
		out = append(out, b[packet.ChannelLen:min(each, len(b))]...)
	}
	return out
}
