package join

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/admission/transcript"
	"edgemesh/tunnel/p2p/who/identity"
	"edgemesh/tunnel/p2p/who/refusals"
)

// Serve is the relay's side of the protocol, on one stream.
func (d *Door) Serve(s network.Stream) {
	secret, err := d.ask(s)
	if err != nil {
		_ = s.Reset()
		d.refuse(s.Conn(), refusals.BrokenProof, err)
		return
	}
	verdict := accepted
	if secret == (Secret{}) {
		verdict = wrongSecret
		d.refuse(s.Conn(), refusals.WrongSecret, ErrWrongSecret)
	} else {
		d.admit(s.Conn(), secret)
	}
	_, err = s.Write([]byte{verdict})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		_ = s.Reset()
	}
}

// ask has the peer prove a secret, and returns the one it proved, or the zero one.
func (d *Door) ask(s network.Stream) (Secret, error) {
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		return Secret{}, err
	}
	t, err := transcript.ForVerifier(s.Conn(), identity.JoinProtocol)
	if err != nil {
		return Secret{}, err
	}
	if err := t.SendChallenge(s); err != nil {
		return Secret{}, err
	}
	proofs, err := read(s)
	if err != nil {
		return Secret{}, err
	}
	d.mu.Lock()
	secrets := slices.Clone(d.secrets)
	d.mu.Unlock()
	secret, _ := check(t, proofs, secrets)
	return secret, nil
}

// read reads one message of proofs.
func read(r io.Reader) ([]proof, error) {
	message := make([]byte, 1)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, fmt.Errorf("read proof: %w", err)
	}
	n, err := bodyLen(message[0])
	if err != nil {
		return nil, err
	}
	message = append(message, make([]byte, n)...)
	if _, err := io.ReadFull(r, message[1:]); err != nil {
		return nil, fmt.Errorf("read proof: %w", err)
	}
	return unmarshal(message)
}
