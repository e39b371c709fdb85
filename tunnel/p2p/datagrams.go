package p2p

import (
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/identity"
	"edgemesh/tunnel/p2p/ladder"
	"edgemesh/tunnel/p2p/packet"
)

// DatagramSink takes the datagrams of one path from one peer.
type DatagramSink = packet.Sink

// ErrNoDatagrams means that a path takes no datagrams now, or none that large.
var ErrNoDatagrams = packet.ErrNoDatagrams

// SetDatagramHandler has f make the sink for each path of a member that begins to send datagrams. Without it no
// datagrams are agreed on.
func (n *Node) SetDatagramHandler(f func(peer.ID) DatagramSink) {
	n.datagrams.Handle(f)
	n.h.SetStreamHandler(identity.PacketProtocol, func(s network.Stream) {
		if p := n.peers.pathOf(s.Conn()); p != nil && p.datagrams != nil {
			p.datagrams.Answer(s)
			return
		}
		n.spawn(func() { _ = s.Reset() })
	})
}

// datagramPath is a path as its datagrams see it.
type datagramPath struct{ *path }

var _ packet.Path = datagramPath{}

func (p datagramPath) Peer() string       { return p.r.name() }
func (p datagramPath) Sent(bytes int)     { p.sent(bytes) }
func (p datagramPath) Received(bytes int) { p.received(bytes) }
func (p datagramPath) Heard()             { p.hear() }
func (p datagramPath) Carried() uint64    { return p.tx.Load() }

// Narrowed has the other paths of the peer looked at.
func (p datagramPath) Narrowed() {
	p.r.set.mu.Lock()
	defer p.r.set.mu.Unlock()
	p.r.holed = time.Now()
	p.confirmSiblings()
	p.r.stir()
}

// Broken has the path given up.
func (p datagramPath) Broken(why string) {
	p.r.set.mu.Lock()
	defer p.r.set.mu.Unlock()
	p.r.tell(ladder.Broken{Path: p.id, Why: why})
	p.r.changed.Broadcast()
}

// DatagramSize is the longest datagram that the stream's path takes beside it now, 0: none.
func (s *Stream) DatagramSize() int { return s.path.datagrams.Size() }

// PutDatagram sends b beside the stream, unreliably and out of order, at the latest with the next FlushDatagrams. Its
// first byte is below 128. The error is ErrNoDatagrams, after which the stream can still be used, or the socket's.
func (s *Stream) PutDatagram(b []byte) error { return s.path.datagrams.Put(b) }

// FlushDatagrams sends what was put. An error says that some of it is lost.
func (s *Stream) FlushDatagrams() error { return s.path.datagrams.Flush() }
