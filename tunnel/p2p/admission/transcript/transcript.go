// Package transcript binds a proof of admission to one connection and one attempt. Package join proves the join secret over
// a transcript, package enroll a node's certificate.
//
//	protocol 00 | length, verifier's ID | length, prover's ID | session: 32 | challenge: 32
//
// Lengths are two bytes, big-endian. The session is the connection's tls-exporter channel binding (RFC 9266), the challenge
// is random and comes from the verifier. A proof is therefore valid for these two peers, on this connection, once: it is
// useless to whoever sees it elsewhere, and a member cannot pass it on.
package transcript

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/quic-go/quic-go"
)

// SessionLen and ChallengeLen are in bytes.
const SessionLen, ChallengeLen = 32, 32

// channelBinding is the label of RFC 9266, whose tls-exporter binding is 32 bytes without a context.
const channelBinding = "EXPORTER-Channel-Binding"

// ErrNoSession means that a proof cannot be bound to the connection.
var ErrNoSession = errors.New("this connection has no TLS session")

// Transcript is everything that a proof is valid for.
type Transcript struct {
	Protocol         protocol.ID
	Verifier, Prover peer.ID
	Session          [SessionLen]byte
	Challenge        [ChallengeLen]byte
}

// ForVerifier returns the transcript of the end of c that verifies, without a challenge. The error wraps ErrNoSession, or is
// that of crypto/tls.
func ForVerifier(c network.Conn, id protocol.ID) (t Transcript, err error) {
	t = Transcript{Protocol: id, Verifier: c.LocalPeer(), Prover: c.RemotePeer()}
	t.Session, err = session(c)
	return t, err
}

// ForProver is ForVerifier at the other end.
func ForProver(c network.Conn, id protocol.ID) (Transcript, error) {
	t, err := ForVerifier(c, id)
	t.Verifier, t.Prover = t.Prover, t.Verifier
	return t, err
}

// session returns the tls-exporter channel binding. Over TCP, WebSocket and circuits it is that of the TLS inside, which
// neither a web server in front of the far end nor a relay terminates. go-libp2p's Noise exports no binding.
func session(c network.Conn) (out [SessionLen]byte, err error) {
	var state tls.ConnectionState
	var overTCP *tls.ConnectionState
	var overUDP *quic.Conn
	switch {
	case c.As(&overTCP):
		state = *overTCP
	case c.As(&overUDP):
		state = overUDP.ConnectionState().TLS
	default:
		return out, ErrNoSession
	}
	key, err := state.ExportKeyingMaterial(channelBinding, nil, SessionLen)
	if err != nil {
		return out, fmt.Errorf("export keying material: %w", err)
	}
	return [SessionLen]byte(key), nil
}

// SendChallenge makes the challenge and sends it to the prover.
func (t *Transcript) SendChallenge(w io.Writer) error {
	if _, err := rand.Read(t.Challenge[:]); err != nil {
		return err
	}
	if _, err := w.Write(t.Challenge[:]); err != nil {
		return fmt.Errorf("write challenge: %w", err)
	}
	return nil
}

// ReadChallenge reads what SendChallenge sends.
func (t *Transcript) ReadChallenge(r io.Reader) error {
	if _, err := io.ReadFull(r, t.Challenge[:]); err != nil {
		return fmt.Errorf("read challenge: %w", err)
	}
	return nil
}

// Bytes is the transcript as it is authenticated.
func (t Transcript) Bytes() []byte {
	out := append([]byte(t.Protocol), 0)
	for _, id := range []peer.ID{t.Verifier, t.Prover} {
		out = binary.BigEndian.AppendUint16(out, uint16(len(id))) //nolint:gosec // 38 bytes
		out = append(out, id...)
	}
	out = append(out, t.Session[:]...)
	return append(out, t.Challenge[:]...)
}
