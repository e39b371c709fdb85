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
		// Required by RFC 3280, section 4.1.2.4.
		Subject: pkix.Name{SerialNumber: serial.String()},
	}), nil
}

// TLS is libp2p's TLS 1.3 handshake (libp2p specs, tls/tls.md) with timeless certificates, which go-libp2p's own transport
// has no option for.
type TLS struct {
	id       protocol.ID
	local    peer.ID
	muxers   []string
	identity *libp2ptls.Identity
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
	t := &TLS{id: id, local: local, identity: identity}
	for _, m := range muxers {
		t.muxers = append(t.muxers, string(m.ID))
	}
	return t, nil
}

// ID is the protocol both sides agree on.
func (t *TLS) ID() protocol.ID { return t.id }

// SecureInbound is the server's side. An empty p accepts any peer.
func (t *TLS) SecureInbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	cfg, key := t.identity.ConfigForPeer(p)
	cfg.NextProtos = append(slices.Clone(t.muxers), cfg.NextProtos...)
	// The client's order of muxers counts; crypto/tls would take the server's.
	ours := cfg.Clone()
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen := ours.Clone()
		if i := slices.IndexFunc(hello.SupportedProtos, func(x string) bool { return slices.Contains(t.muxers, x) }); i >= 0 {
			chosen.NextProtos = hello.SupportedProtos[i : i+1]
		}
		return chosen, nil
	}
	return t.handshake(ctx, tls.Server(c, cfg), key)
}

// SecureOutbound is the client's side. That the server refuses its certificate shows only with the first Read, as always in
// TLS 1.3.
func (t *TLS) SecureOutbound(ctx context.Context, c net.Conn, p peer.ID) (sec.SecureConn, error) {
	cfg, key := t.identity.ConfigForPeer(p)
	cfg.NextProtos = append(slices.Clone(t.muxers), cfg.NextProtos...)
	return t.handshake(ctx, tls.Client(c, cfg), key)
}

func (t *TLS) handshake(ctx context.Context, c *tls.Conn, key <-chan crypto.PubKey) (sec.SecureConn, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	s := &tlsConn{Conn: c, local: t.local}
	select {
	case s.key = <-key: // sent when the certificate was verified
	default:
		c.Close()
		return nil, errors.New("TLS handshake without a key")
	}
	var err error
	if s.remote, err = peer.IDFromPublicKey(s.key); err != nil {
		c.Close()
		return nil, fmt.Errorf("derive the peer's ID: %w", err)
	}
	if m := c.ConnectionState().NegotiatedProtocol; m != noMuxer && m != "" {
		s.state = network.ConnectionState{StreamMultiplexer: protocol.ID(m), UsedEarlyMuxerNegotiation: true}
	}
	return s, nil
}

// tlsConn is a connection whose far end is known.
type tlsConn struct {
	*tls.Conn
	local, remote peer.ID
	key           crypto.PubKey
	state         network.ConnectionState
}

func (c *tlsConn) LocalPeer() peer.ID                 { return c.local }
func (c *tlsConn) RemotePeer() peer.ID                { return c.remote }
func (c *tlsConn) RemotePublicKey() crypto.PubKey     { return c.key }
func (c *tlsConn) ConnState() network.ConnectionState { return c.state }

// TLS is the session, whose keying material a proof can be bound to.
func (c *tlsConn) TLS() *tls.Conn { return c.Conn }
