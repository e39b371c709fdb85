package identity

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Renewal is when a TLS connection gets new keys by another handshake, with a key exchange of its own. AES-GCM is safe for
// 2^24.5 records under one key (RFC 8446, section 5.5). QUIC updates its keys by itself.
type Renewal struct {
	Most  uint64           // after so many records in one direction; 0: 2^23
	Few   uint64           // after Every, if there were more records than that in one direction; 0: 1000
	Every time.Duration    // 0: an hour
	Now   func() time.Time // nil: time.Now
	Done  func()           // called at each end after a renewal; may be nil
}

func (r Renewal) orDefault() Renewal {
	if r.Most == 0 {
		r.Most = 1 << 23
	}
	if r.Few == 0 {
		r.Few = 1000
	}
	if r.Every == 0 {
		r.Every = time.Hour
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	return r
}

const (
	// renews is in the certificates of those that can renew keys: releases before do not know that a session follows another.
	renews = "renews-keys/1"
	// renewTimeout bounds a renewal, whose first message waits for what was written before it. Probes notice a hung one earlier.
	renewTimeout = 30 * time.Second
)

// tlsConn is a connection whose far end is known. It is one TLS session after the other on one socket:
//
//	client                                server
//	  close_notify  ──────────────────▶      its Read returns io.EOF
//	  its Read returns io.EOF    ◀──────  close_notify
//	  handshake  ◀────────────────────▶  handshake, the same peer
//
// The client alone begins that, so both ends cannot in the same moment; it has seen the records of both directions. Neither end sends
// after its close_notify until the other's has come, so no session reads bytes of the next one. What is written meanwhile
// waits. Another connection in place of the session would be another path: it needs ports that a NAT lets through, and a
// relay has no other one to its members.
type tlsConn struct {
	t             *TLS
	*records      // the socket
	local, remote peer.ID
	key           crypto.PubKey
	state         network.ConnectionState
	first         tls.ConnectionState
	client        bool
	renews        bool // the far end can

	session atomic.Pointer[tls.Conn]

	mu       sync.Mutex // held while a record is written
	changed  sync.Cond  // on mu: renewing or err changed
	begun    time.Time  // the session
	renewing bool
	err      error // after which nothing is written
}

func (c *tlsConn) LocalPeer() peer.ID                 { return c.t.local }
func (c *tlsConn) RemotePeer() peer.ID                { return c.remote }
func (c *tlsConn) RemotePublicKey() crypto.PubKey     { return c.key }
func (c *tlsConn) ConnState() network.ConnectionState { return c.state }

// TLS is the first session, to whose keying material a proof can be bound; without certificates.
func (c *tlsConn) TLS() *tls.ConnectionState { return &c.first }

// Read implements net.Conn. It renews keys, at both ends.
func (c *tlsConn) Read(b []byte) (int, error) {
	for {
		n, err := c.session.Load().Read(b)
		if !errors.Is(err, io.EOF) {
			return n, err //nolint:wrapcheck // crypto/tls's, as net.Conn wants it
		}
		if n > 0 {
			return n, nil // the end comes again
		}
		if err := c.follow(); err != nil {
			return 0, err
		}
	}
}

// Write implements net.Conn.
func (c *tlsConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client && c.renews && !c.renewing && c.due(1) && c.err == nil {
		c.err = c.end()
	}
	for c.renewing && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.session.Load().Write(b) //nolint:wrapcheck // crypto/tls's, as net.Conn wants it
}

// due reports whether the session's keys have been used for long enough, or for a part of that.
func (c *tlsConn) due(part uint64) bool {
	r, n := c.t.renewal, c.most()
	return n >= r.Most/part || n > r.Few/part && r.Now().Sub(c.begun) >= r.Every/time.Duration(part)
}

// end ends this end's direction of the session. mu is held.
func (c *tlsConn) end() error {
	c.renewing = true
	c.hold(true)
	return c.session.Load().CloseWrite() //nolint:wrapcheck // crypto/tls's, as net.Conn wants it
}

// follow begins the session that follows one which the far end has ended. It returns io.EOF if none does.
func (c *tlsConn) follow() error {
	c.mu.Lock()
	begin := c.renewing
	if !c.client && c.renews && c.err == nil && c.due(2) { // a client that wants it sooner costs handshakes only
		begin = c.end() == nil
	}
	c.mu.Unlock()
	if !begin {
		return io.EOF
	}
	ctx, cancel := context.WithTimeout(context.Background(), renewTimeout)
	defer cancel()
	c.sent.Store(0)
	c.received.Store(0)
	next, _, err := c.handshake(ctx, c.remote)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.changed.Broadcast()
	c.hold(false)
	if err != nil {
		if c.err == nil {
			c.err = err
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF // the far end has closed the connection
		}
		return err
	}
	c.session.Store(next)
	c.begun, c.renewing = c.t.renewal.Now(), false
	if c.t.renewal.Done != nil {
		c.t.renewal.Done()
	}
	return nil
}

// Close implements net.Conn.
func (c *tlsConn) Close() error {
	closing := c.session.Load().Close
	if c.held.Load() {
		closing = c.records.Close
	}
	err := closing()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.changed.Broadcast()
	return err //nolint:wrapcheck // crypto/tls's, as net.Conn wants it
}

// records counts those of a TLS session above a socket. crypto/tls writes each by a Write of its own after the handshake.
type records struct {
	net.Conn
	sent, received atomic.Uint64
	held           atomic.Bool

	// Of the reader: what is left of the record that is read, or its header, as far as it has come.
	left, got int
	header    [5]byte
}

// most is how many were sent or received.
func (r *records) most() uint64 { return max(r.sent.Load(), r.received.Load()) }

func (r *records) Write(b []byte) (int, error) {
	r.sent.Add(1)
	return r.Conn.Write(b) //nolint:wrapcheck // of that socket
}

func (r *records) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	for b = b[:n]; len(b) > 0; {
		if r.left > 0 {
			k := min(r.left, len(b))
			r.left, b = r.left-k, b[k:]
			continue
		}
		k := copy(r.header[r.got:], b)
		r.got, b = r.got+k, b[k:]
		if r.got == len(r.header) {
			r.got, r.left = 0, int(binary.BigEndian.Uint16(r.header[3:]))
			r.received.Add(1)
		}
	}
	return n, err //nolint:wrapcheck // of that socket
}

// hold has writes wait for renewTimeout, whatever deadline they are given: that of the next message is not that of a renewal,
// and crypto/tls permits nothing after a close_notify.
func (r *records) hold(on bool) {
	r.held.Store(on)
	_ = r.SetWriteDeadline(time.Time{})
}

// SetWriteDeadline implements net.Conn.
func (r *records) SetWriteDeadline(t time.Time) error {
	if r.held.Load() {
		t = time.Now().Add(renewTimeout)
	}
	return r.Conn.SetWriteDeadline(t) //nolint:wrapcheck // of that socket
}

// SetDeadline implements net.Conn.
func (r *records) SetDeadline(t time.Time) error {
	return errors.Join(r.SetReadDeadline(t), r.SetWriteDeadline(t))
}
