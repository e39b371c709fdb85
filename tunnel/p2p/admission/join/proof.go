package join

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/tunnel/p2p/admission/session"
	"edgemesh/tunnel/p2p/who/identity"
)

const (
	challengeLen = 32
	sessionLen   = session.Len
	proofLen     = sha256.Size
)

// The relay's verdict.
const (
	accepted    byte = 0
	wrongSecret byte = 1
)

// bound is everything a proof holds for.
type bound struct {
	relay, member peer.ID
	session       [sessionLen]byte
	challenge     [challengeLen]byte
}

// proof is knowledge of one secret, shown for one bound.
type proof [proofLen]byte

// prove makes the proof of s for b.
func (b bound) prove(s Secret) proof {
	m := hmac.New(sha256.New, []byte(s.text))
	m.Write(append([]byte(identity.JoinProtocol), 0))
	for _, id := range []peer.ID{b.relay, b.member} {
		m.Write(binary.BigEndian.AppendUint16(nil, uint16(len(id))))
		m.Write([]byte(id))
	}
	m.Write(b.session[:])
	m.Write(b.challenge[:])
	return proof(m.Sum(nil))
}

// check returns the secret that one of the proofs shows.
func (b bound) check(proofs []proof, secrets []Secret) (Secret, bool) {
	for _, s := range secrets {
		want := b.prove(s)
		for _, p := range proofs {
			if hmac.Equal(want[:], p[:]) {
				return s, true
			}
		}
	}
	return Secret{}, false
}

// marshal is the message that carries proofs: their number, then each.
func marshal(proofs []proof) []byte {
	out := []byte{byte(len(proofs))}
	for _, p := range proofs {
		out = append(out, p[:]...)
	}
	return out
}

// bodyLen returns how many bytes follow the message's first one.
func bodyLen(n byte) (int, error) {
	if n == 0 || n > maxSecrets {
		return 0, fmt.Errorf("join: %d proofs, 1 to %d are allowed", n, maxSecrets)
	}
	return int(n) * proofLen, nil
}

// unmarshal parses what marshal makes, to the last byte.
func unmarshal(data []byte) ([]proof, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("join: empty message")
	}
	n, err := bodyLen(data[0])
	if err != nil {
		return nil, err
	}
	if len(data) != 1+n {
		return nil, fmt.Errorf("join: %d bytes for %d proofs", len(data), data[0])
	}
	out := make([]proof, 0, data[0])
	for body := data[1:]; len(body) > 0; body = body[proofLen:] {
		out = append(out, proof(body[:proofLen]))
	}
	return out, nil
}
