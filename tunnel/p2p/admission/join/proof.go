package join

import (
	"crypto/hmac"
	"crypto/sha256"

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
