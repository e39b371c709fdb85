package identity

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
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
	Most   uint64           // after so many records in one direction; 0: 2^23
	Few    uint64           // after Every, if there were more records than that in one direction since the last one; 0: 1000
	Every  time.Duration    // and up to a quarter more, drawn for each session: spreads those of a relay; 0: an hour
	Within time.Duration    // else the connection ends, from the first close_notify on; 0: renewTimeout
	Now    func() time.Time // nil: time.Now
	Done   func()           // called at each end after a renewal; may be nil
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
	if r.Within == 0 {
		r.Within = renewTimeout
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	return r
}

const (
	// renews is in the certificates of those that can renew keys: releases before do not know that a session follows another.
	renews = "renews-keys/1"
	// renewalLabel is what a session exports for the next one (RFC 8446, section 7.5).
	renewalLabel = "EXPORTER-edgemesh-renewal"
	// renewTimeout bounds a renewal, whose first message waits for what was written before it. Probes notice a hung one earlier.
	renewTimeout = 30 * time.Second
	// afterRenewal is the least that a write has which waited for one.
	afterRenewal = 15 * time.Second
)

// tlsConn is a connection whose far end is known. It is one TLS session after the other on one socket:
//
//	client                                server
//	  close_notify  ──────────────────▶      its Read returns io.EOF
//	  its Read returns io.EOF    ◀──────  close_notify
//	  handshake  ◀────────────────────▶  handshake, the same peer, in ALPN the exporter of the session before
//
// That value binds a session to the one before: who is between two connections of the same peers, and has no key, can neither
// exchange their next sessions nor have a new connection follow an old one.
// The client alone begins that, so both ends cannot in the same moment; it has seen the records of both directions. Neither end sends
// after its close_notify until the other's has come, so no session reads bytes of the next one. What is written meanwhile
// waits. Another connection in place of the session would be another path: it needs ports that a NAT lets through, and a
// relay has no other one to its members.
type tlsConn struct {
	t        *TLS
	*records // the socket
	remote   peer.ID
	key      crypto.PubKey
	state    network.ConnectionState
	first    tls.ConnectionState
	client   bool
	renews   bool // the far end can

	session atomic.Pointer[tls.Conn]

	mu       sync.Mutex    // held while a record is written
	changed  sync.Cond     // on mu: renewing or err changed
	begun    time.Time     // the session
	every    time.Duration // as drawn for it
	renewing bool
	expiry   *time.Timer // of the renewal
	err      error       // after which nothing is written
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
	c.await()
	if c.err != nil {
		return 0, c.err
	}
	return c.session.Load().Write(b) //nolint:wrapcheck // crypto/tls's, as net.Conn wants it
}

// Await begins a renewal if one is due, and returns when none is under way: who measures how long a Write takes calls it before.
func (c *tlsConn) Await() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.await()
}

// await is Await with mu held.
func (c *tlsConn) await() {
	if c.client && c.renews && !c.renewing && c.due(1) && c.err == nil {
		c.err = c.end()
	}
	for c.renewing && c.err == nil {
		c.changed.Wait()
	}
}

// due reports whether the session's keys have been used for long enough, or for a part of that.
func (c *tlsConn) due(part uint64) bool {
	r, n := c.t.renewal, c.most()
	return n >= r.Most/part || n > r.Few/part && r.Now().Sub(c.begun) >= c.every/time.Duration(part)
}

// begin notes that a session has begun. mu is held, or nobody else has c.
func (c *tlsConn) begin() {
	r := c.t.renewal
	c.begun, c.every = r.Now(), r.Every
	if c.client {
		c.every += rand.N(r.Every/4 + 1)
	}
}

// end ends this end's direction of the session. mu is held.
func (c *tlsConn) end() error {
	c.renewing = true
	c.hold(c.t.renewal.Within)
	c.expiry = time.AfterFunc(c.t.renewal.Within, func() { _ = c.Close() })
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
	before := c.session.Load().ConnectionState()
	binding, err := before.ExportKeyingMaterial(renewalLabel, nil, 32)
	if err != nil {
		return err //nolint:wrapcheck // never in TLS 1.3
	}
	c.sent.Store(0)
	c.received.Store(0)
	next, _, err := c.handshake(context.Background(), c.remote, "renewal/"+hex.EncodeToString(binding)) // expiry bounds it
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.changed.Broadcast()
	c.expiry.Stop()
	c.release()
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
	c.begin()
	c.renewing = false
	if c.t.renewal.Done != nil {
		c.t.renewal.Done()
	}
	return nil
}

// Close implements net.Conn.
func (c *tlsConn) Close() error {
	closing := c.records.Close // where something is being written, or the keys change: no close_notify can follow
	if c.mu.TryLock() {
		if !c.renewing {
			closing = c.session.Load().Close
		}
		c.close()
		c.mu.Unlock()
	}
	err := closing()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close()
	return err //nolint:wrapcheck // crypto/tls's, as net.Conn wants it
}

// close has nothing more written. mu is held.
func (c *tlsConn) close() {
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.changed.Broadcast()
}

// SetWriteDeadline implements net.Conn.
func (c *tlsConn) SetWriteDeadline(t time.Time) error { return c.give(t) }

// SetDeadline implements net.Conn.
func (c *tlsConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.give(t))
}

// records counts those of a TLS session above a socket. crypto/tls writes each by a Write of its own after the handshake.
type records struct {
	net.Conn
	sent, received atomic.Uint64

	deadlines   sync.Mutex
	given, held time.Time // for writes: as set last, and in its place during a renewal; zero: none

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

// hold gives writes so long, whatever deadline is set meanwhile: that of the next message is not that of a renewal, and crypto/tls
// permits nothing after a close_notify.
func (r *records) hold(within time.Duration) {
	r.deadlines.Lock()
	defer r.deadlines.Unlock()
	r.held = time.Now().Add(within)
	_ = r.Conn.SetWriteDeadline(r.held)
}

// release ends that: what was given last holds, or afterRenewal.
func (r *records) release() {
	r.deadlines.Lock()
	defer r.deadlines.Unlock()
	r.held = time.Time{}
	t := r.given
	if least := time.Now().Add(afterRenewal); !t.IsZero() && t.Before(least) {
		t = least
	}
	_ = r.Conn.SetWriteDeadline(t)
}

// give sets the deadline of who writes into the connection.
func (r *records) give(t time.Time) error {
	r.deadlines.Lock()
	r.given = t
	r.deadlines.Unlock()
	return r.SetWriteDeadline(t)
}

// SetWriteDeadline is crypto/tls's.
func (r *records) SetWriteDeadline(t time.Time) error {
	r.deadlines.Lock()
	defer r.deadlines.Unlock()
	if !r.held.IsZero() {
		t = r.held
	}
	return r.Conn.SetWriteDeadline(t) //nolint:wrapcheck // of that socket
}
