package paths

import (
	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/base/ladder"
	"edgemesh/tunnel/p2p/carrier/packet"
)

// datagrams is a connection as its datagrams see it.
type datagrams struct{ c *Conn }

var _ packet.Path = datagrams{}

func (d datagrams) Peer() string       { return d.c.owner.Name() }
func (d datagrams) Addr() string       { return d.c.RemoteMultiaddr().String() }
func (d datagrams) Sent(bytes int)     { d.c.sent(bytes) }
func (d datagrams) Received(bytes int) { d.c.received(bytes) }
func (d datagrams) Heard()             { d.c.hear() }
func (d datagrams) Carried() uint64    { return d.c.tx.Load() }
func (d datagrams) Narrowed()          { d.c.owner.Narrowed(d.c) }
func (d datagrams) Broken(why string)  { d.c.owner.Apply(ladder.Broken{Path: d.c.ID, Why: why}) }

// AnswerDatagrams serves the datagrams that a stream of the peer offers. It returns false, and
// leaves the stream to the caller, if c takes none.
func (c *Conn) AnswerDatagrams(s network.Stream) bool {
	if c.datagrams == nil {
		return false
	}
	c.datagrams.Answer(s)
	return true
}

// ConfirmSize confirms the size of datagrams, which may have become smaller.
func (c *Conn) ConfirmSize() { c.datagrams.Confirm() }

// DatagramSize is the longest datagram that the stream's path takes beside it now, 0: none.
func (s *Stream) DatagramSize() int { return s.c.datagrams.Size() }

// PutDatagram sends b beside the stream, unreliably and out of order, at the latest with the next FlushDatagrams. Its
// first byte is below 128. The error is ErrNoDatagrams, after which the stream can still be used, or the socket's.
func (s *Stream) PutDatagram(b []byte) error { return s.c.datagrams.Put(b) }

// FlushDatagrams sends what was put. An error says that some of it is lost.
func (s *Stream) FlushDatagrams() error { return s.c.datagrams.Flush() }
