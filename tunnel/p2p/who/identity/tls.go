// Package identity is what an agent and a relay must agree on: how a key is proved (TLS), the names of their protocols and
// the limits of a libp2p host that carries an overlay instead of file sharing.
//
//	tls.go        TLS 1.3 with certificates that do not depend on clocks
//	renew.go      a connection's next keys
//	protocols.go  the names of the protocols
//	seen.go       a relay's answers in words
//	limits.go     resource limits, and yamux's configuration
//	log.go        libp2p's own log
package identity

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
)

// noMuxer is the ALPN value of peers that choose the muxer later (libp2p specs,
// tls/tls.md).
const noMuxer = "libp2p"

// Timeless makes the certificates of a libp2p TLS identity valid forever. libp2p's own begin one hour before they are made:
// a node whose clock is further behind, as on a board without a battery after a reboot, would refuse all peers. Who a peer
// is does not depend on dates: its key is in the membership or is not.
func Timeless() (libp2ptls.IdentityOption, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	return libp2ptls.WithCertTemplate(&x509.Certificate{
		SerialNumber: serial,
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // no end: RFC 5280, section 4.1.2.5
		// Required by RFC 3280, section 4.1.2.4. The common name says what this end can do: only the other end reads it.
		Subject: pkix.Name{SerialNumber: serial.String(), CommonName: renews},
	}), nil
}

// TLS is libp2p's TLS 1.3 handshake (libp2p specs, tls/tls.md) with timeless certificates, which go-libp2p's own transport
// has no option for.
type TLS struct {
	id       protocol.ID
	local    peer.ID
	muxers   []string
	identity *libp2ptls.Identity
	renewal  Renewal
}

var _ sec.SecureTransport = (*TLS)(nil)

// NewTLS is a constructor for libp2p.Security.
func NewTLS(id protocol.ID, key crypto.PrivKey, muxers []upgrader.StreamMuxer) (*TLS, error) {
	local, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("derive peer ID: %w", err)
	}
	timeless, err := Timeless()
	if err != nil {
		return nil, err
	}
	identity, err := libp2ptls.NewIdentity(key, timeless)
	if err != nil {
		return nil, fmt.Errorf("make TLS identity: %w", err)
	}
	t := &TLS{id: id, local: local, identity: identity, renewal: Renewal{}.orDefault()}
	for _, m := range muxers {
		t.muxers = append(t.muxers, string(m.ID))
	}
	return t, nil
}

// ID is the protocol both sides agree on.
func (t *TLS) ID() protocol.ID { return t.id }

// Renewing returns t with other bounds for the keys of a connection.
func (t *TLS) Renewing(r Renewal) *TLS {
	out := *t
	out.renewal = r.orDefault()
	return &out
}

// SecureInbound is the server's side. An empty p accepts any peer.
func (t *TLS) SecureInbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	return t.secure(ctx, c, p, false)
}

// SecureOutbound is the client's side. That the server refuses its certificate shows only with the first Read, as always in
// TLS 1.3.
func (t *TLS) SecureOutbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	return t.secure(ctx, c, p, true)
}

func (t *TLS) secure(ctx context.Context, c net.Conn, p peer.ID, client bool) (sec.SecureConn, error) {
	s := &tlsConn{t: t, records: &records{Conn: c}, client: client}
	s.changed.L = &s.mu
	session, key, err := s.handshake(ctx, p, "")
	if err != nil {
		c.Close()
		return nil, err
	}
	s.key = key
	if s.remote, err = peer.IDFromPublicKey(key); err != nil {
		c.Close()
		return nil, fmt.Errorf("derive the peer's ID: %w", err)
	}
	s.session.Store(session)
	s.begin()
	s.first = session.ConnectionState()
	s.renews = s.first.PeerCertificates[0].Subject.CommonName == renews
	if m := s.first.NegotiatedProtocol; m != noMuxer && m != "" {
		s.state = network.ConnectionState{StreamMultiplexer: protocol.ID(m), UsedEarlyMuxerNegotiation: true}
	}
	s.first.PeerCertificates, s.first.VerifiedChains = nil, nil
	return s, nil
}

// handshake begins a session with p; an empty p is any peer. follows is what both ends have to say of the session before.
func (c *tlsConn) handshake(ctx context.Context, p peer.ID, follows string) (*tls.Conn, crypto.PubKey, error) {
	cfg, verified := c.t.identity.ConfigForPeer(p)
	cfg.NextProtos = append(slices.Clone(c.t.muxers), cfg.NextProtos...)
	if follows != "" {
		cfg.NextProtos = []string{follows}
	}
	session := tls.Client(c.records, cfg)
	if !c.client {
		// The client's order of muxers counts; crypto/tls would take the server's.
		ours := cfg.Clone()
		cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen := ours.Clone()
			i := slices.IndexFunc(hello.SupportedProtos, func(x string) bool { return slices.Contains(c.t.muxers, x) })
			if i >= 0 && follows == "" {
				chosen.NextProtos = hello.SupportedProtos[i : i+1]
			}
			return chosen, nil
		}
		session = tls.Server(c.records, cfg)
	}
	if err := session.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	if follows != "" && session.ConnectionState().NegotiatedProtocol != follows { // crypto/tls accepts none at all
		return nil, nil, errors.New("TLS session that does not follow the one before")
	}
	select {
	case key := <-verified: // sent when the certificate was verified
		return session, key, nil
	default:
		return nil, nil, errors.New("TLS handshake without a key")
	}
}
