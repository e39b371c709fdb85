package pathtest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	ma "github.com/multiformats/go-multiaddr"
)

// Link is what two ends of a connection run over.
type Link struct {
	world  *World
	silent atomic.Bool // packets vanish, in both directions
	relay  peer.ID     // "" for a direct one
	ends   [2]*Conn

	mu    sync.Mutex // a leaf: guards what follows
	pipes []net.Conn
}

// Conn is one end of a scripted connection.
type Conn struct {
	link          *Link
	node          *Node
	far           *Conn
	local, remote ma.Multiaddr
	opened        time.Time
	closed        atomic.Bool

	mu      sync.Mutex // a leaf: guards streams
	streams []*stream
}

var _ network.Conn = (*Conn)(nil)

// Close closes the connection. The far end learns of it, unless the link is silent.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	for _, s := range c.list() {
		s.end()
	}
	c.link.world.wg.Go(func() {
		c.node.Table.Remove(c)
		if !c.link.silent.Load() {
			time.Sleep(c.link.world.Latency)
			_ = c.far.Close()
		}
	})
	return nil
}

func (c *Conn) list() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.streams)
}

// NewStream implements network.Conn. The far end negotiates and serves it.
func (c *Conn) NewStream(context.Context) (network.Stream, error) {
	if c.closed.Load() {
		return nil, fmt.Errorf("%s: connection closed", c.remote)
	}
	here, there := net.Pipe()
	c.link.mu.Lock()
	c.link.pipes = append(c.link.pipes, here, there)
	c.link.mu.Unlock()
	s := c.add(here)
	c.link.world.wg.Go(func() { c.node.world.serve(c.far.node, c.far.add(there)) })
	return s, nil
}

func (c *Conn) add(pipe net.Conn) *stream {
	s := &stream{pipe: pipe, c: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams = append(c.streams, s)
	return s
}

// What follows implements network.Conn.

func (c *Conn) CloseWithError(network.ConnErrorCode) error { return c.Close() }
func (c *Conn) ID() string                                 { return fmt.Sprintf("%p", c) }
func (c *Conn) IsClosed() bool                             { return c.closed.Load() }
func (c *Conn) As(any) bool                                { return false }
func (c *Conn) GetStreams() []network.Stream               { return nil }
func (c *Conn) LocalPeer() peer.ID                         { return c.node.ID }
func (c *Conn) RemotePeer() peer.ID                        { return c.far.node.ID }
func (c *Conn) RemotePublicKey() crypto.PubKey             { return nil }
func (c *Conn) ConnState() network.ConnectionState         { return network.ConnectionState{} }
func (c *Conn) LocalMultiaddr() ma.Multiaddr               { return c.local }
func (c *Conn) RemoteMultiaddr() ma.Multiaddr              { return c.remote }
func (c *Conn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Opened: c.opened}}
}
func (c *Conn) Scope() network.ConnScope { return nil }

// stream is one end of a stream. What is written to a silent link, or by it, is lost.
type stream struct {
	pipe  net.Conn
	c     *Conn
	proto atomic.Value
}

var _ network.Stream = (*stream)(nil)

func (s *stream) Write(b []byte) (int, error) {
	time.Sleep(s.c.link.world.Latency)
	if s.c.link.silent.Load() {
		return len(b), nil
	}
	return s.pipe.Write(b)
}

// end closes the stream; the far end of a silent link does not learn of it.
func (s *stream) end() {
	if s.c.link.silent.Load() {
		_ = s.pipe.SetDeadline(time.Unix(1, 0))
		return
	}
	_ = s.pipe.Close()
}

func (s *stream) Close() error                                 { s.end(); return nil }
func (s *stream) Reset() error                                 { s.end(); return nil }
func (s *stream) ResetWithError(network.StreamErrorCode) error { s.end(); return nil }
func (s *stream) CloseWrite() error                            { return nil }
func (s *stream) CloseRead() error                             { return nil }

func (s *stream) ID() string                         { return fmt.Sprintf("%p", s) }
func (s *stream) Stat() network.Stats                { return network.Stats{} }
func (s *stream) Scope() network.StreamScope         { return nil }
func (s *stream) SetProtocol(id protocol.ID) error   { s.proto.Store(id); return nil }
func (s *stream) Protocol() protocol.ID              { id, _ := s.proto.Load().(protocol.ID); return id }
func (s *stream) Conn() network.Conn                 { return s.c }
func (s *stream) Read(b []byte) (int, error)         { return s.pipe.Read(b) }
func (s *stream) SetDeadline(t time.Time) error      { return s.pipe.SetDeadline(t) }
func (s *stream) SetReadDeadline(t time.Time) error  { return s.pipe.SetReadDeadline(t) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.pipe.SetWriteDeadline(t) }
