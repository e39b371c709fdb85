package join

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"edgemesh/tunnel/p2p/admission/transcript"
)

const proofLen = sha256.Size

// The relay's verdict.
const (
	accepted    byte = 0
	wrongSecret byte = 1
)

// proof shows knowledge of one secret.
type proof [proofLen]byte

// prove makes the proof of s for one transcript.
func prove(t transcript.Transcript, s Secret) proof {
	m := hmac.New(sha256.New, []byte(s.text))
	m.Write(t.Bytes())
	return proof(m.Sum(nil))
}

// check returns the secret that one of the proofs shows.
func check(t transcript.Transcript, proofs []proof, secrets []Secret) (Secret, bool) {
	for _, s := range secrets {
		want := prove(t, s)
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
