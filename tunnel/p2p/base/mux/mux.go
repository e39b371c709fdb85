package mux

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-yamux/v5"
)

// KernelKeepAlive is how often a session is kept alive that the kernel keeps alive: never, as good as.
const KernelKeepAlive = 24 * time.Hour

// ID is yamux's protocol ID.
const ID = "/yamux/1.0.0"

// Muxer makes yamux sessions with short queues.
type Muxer struct {
	config *yamux.Config
	every  func(peer.ID, net.Addr) time.Duration // nil: as configured
}

var _ network.Multiplexer = Muxer{}

// New returns a muxer with a yamux configuration, which must not change
// afterwards.
func New(c *yamux.Config) Muxer { return Muxer{config: c} }

// Quiet returns a muxer whose sessions with a peer at an address have a keep-alive only every so often, 0 for as configured: what
// uses them probes them itself, or the kernel does.
func (m Muxer) Quiet(every func(peer.ID, net.Addr) time.Duration) Muxer {
	m.every = every
	return m
}

// NewConn implements network.Multiplexer.
func (m Muxer) NewConn(nc net.Conn, isServer bool, scope network.PeerScope) (network.MuxedConn, error) {
	h, err := newHeld(nc, scope)
	if err != nil {
		return nil, err
	}
	start := yamux.Client
	if isServer {
		start = yamux.Server
	}
	c, around := *m.config, 0
	if inCircuit(nc) {
		around = headerLen + recordOverhead
		c.MaxMessageSize -= uint32(around)
	}
	if m.every != nil {
		c.KeepAliveInterval = cmp.Or(m.every(scope.Peer(), nc.RemoteAddr()), c.KeepAliveInterval)
	}
	g := newGate(around)
	secure, _ := nc.(secured)
	s, err := start(&conn{nc, g, h, secure}, &c, func() (yamux.MemoryManager, error) { return windows{h}, nil })
	if err != nil {
		h.close()
		return nil, err
	}
	out := &Conn{session: session{s: s, gate: g, held: h, body: int(c.MaxMessageSize) - headerLen}}
	if secure != nil {
		out.tls = secure.TLS()
	}
	return out, nil
}

// conn is the connection below yamux, which writes one whole message at a time.
type conn struct {
	net.Conn
	gate   *gate
	held   *held
	secure secured // nil: something else is
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if end := c.held.parse(b[:n]); end != nil {
		go end() // waits for the session's writer, at most until the session ends; the reader must not
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if c.secure != nil {
		c.secure.Await() // it says nothing of how fast the line drains
	}
	began := time.Now()
	n, err := c.Conn.Write(b)
	if len(b) > headerLen && b[1] == typeData {
		c.gate.leave(binary.BigEndian.Uint32(b[4:]), len(b)-headerLen, began)
	}
	return n, err
}

// secured is a security layer that is TLS. libp2p hands it over as a net.Conn.
type secured interface {
	TLS() *tls.ConnectionState
	Await() // the end of a renewal of keys
}

// recordOverhead is what TLS 1.3 adds to a message: header, content type and tag
// (RFC 8446, section 5.2).
const recordOverhead = 5 + 1 + 16

// inCircuit says whether nc leads through a relay. What it carries is a stream of the
// session with the relay: a record has to fit into one message there, else each
// is followed by a tiny one of 34 bytes, at all three ends.
func inCircuit(nc net.Conn) bool {
	a := nc.RemoteAddr()
	return a != nil && a.Network() == "libp2p-circuit-relay"
}

// Conn is one session.
type Conn struct {
	session
	tls *tls.ConnectionState // below the session; nil: something else is
}

var _ network.MuxedConn = (*Conn)(nil)

// OpenStream implements network.MuxedConn.
func (c *Conn) OpenStream(ctx context.Context) (network.MuxedStream, error) {
	s, err := c.s.OpenStream(ctx)
	if err != nil {
		return nil, translate(err)
	}
	out := newStream(&c.session, s)
	c.held.own(out.id, out.evict, false)
	return out, nil
}

// AcceptStream implements network.MuxedConn.
func (c *Conn) AcceptStream() (network.MuxedStream, error) {
	s, err := c.s.AcceptStream()
	if err != nil {
		return nil, translate(err)
	}
	out := newStream(&c.session, s)
	c.held.own(out.id, out.evict, true)
	return out, nil
}

// Close implements network.MuxedConn.
func (c *Conn) Close() error { defer c.held.close(); return c.s.Close() }

// CloseWithError implements network.MuxedConn.
func (c *Conn) CloseWithError(code network.ConnErrorCode) error {
	defer c.held.close()
	return c.s.CloseWithError(uint32(code))
}

// IsClosed implements network.MuxedConn.
func (c *Conn) IsClosed() bool { return c.s.IsClosed() }

// As implements network.MuxedConn: target may be a **yamux.Session, or a **tls.ConnectionState where the session runs on TLS.
func (c *Conn) As(target any) bool {
	switch t := target.(type) {
	case **yamux.Session:
		*t = c.s
		return true
	case **tls.ConnectionState:
		*t = c.tls
		return c.tls != nil
	}
	return false
}
