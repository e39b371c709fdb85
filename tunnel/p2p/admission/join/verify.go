package join

import (
	"fmt"
	"io"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/who/identity"
)

// Verify is the relay's side of the protocol, up to the verdict: it returns which of secrets the peer proves, or the zero one.
func Verify(s network.Stream, secrets []Secret) (Secret, error) {
	if err := s.SetDeadline(time.Now().Add(Patience)); err != nil {
		return Secret{}, err
	}
	t, err := transcript.ForVerifier(s.Conn(), identity.JoinProtocol)
	if err != nil {
		return Secret{}, err
	}
	if err := t.SendChallenge(s); err != nil {
		return Secret{}, err
	}
	proofs, err := readProofs(s)
	if err != nil {
		return Secret{}, err
	}
	secret, _ := check(t, proofs, secrets)
	return secret, nil
}

// Answer sends the verdict about what Verify returned, and ends the stream.
func Answer(s network.Stream, proved Secret) error {
	verdict := accepted
	if proved == (Secret{}) {
		verdict = wrongSecret
	}
	if _, err := s.Write([]byte{verdict}); err != nil {
		return fmt.Errorf("write verdict: %w", err)
	}
	return s.Close()
}

// readProofs reads the member's message: the number of proofs, then each.
func readProofs(r io.Reader) ([]proof, error) {
	var n [1]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, fmt.Errorf("read proof: %w", err)
	}
	if n[0] == 0 || n[0] > maxSecrets {
		return nil, fmt.Errorf("join: %d proofs, 1 to %d are allowed", n[0], maxSecrets)
	}
	out := make([]proof, n[0])
	for i := range out {
		if _, err := io.ReadFull(r, out[i][:]); err != nil {
			return nil, fmt.Errorf("read proof: %w", err)
		}
	}
	return out, nil
}
