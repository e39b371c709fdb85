package join

import "edgemesh/tunnel/p2p/admission/transcript"

// What tests outside of the package forge.
const (
	Accepted, WrongSecretVerdict = accepted, wrongSecret
)

// SecretN is a secret of a test.
func SecretN(n int) Secret { return secretN(n) }

// Text is what the file of secrets says.
func (s Secret) Text() string { return s.text }

// Forge is a message with a proof of s for t.
func Forge(t transcript.Transcript, s Secret) []byte { return marshal([]proof{prove(t, s)}) }
