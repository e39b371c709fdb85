package transcript

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"testing"
)

// The layout is the wire's: agents and relays of all releases authenticate these bytes.
func TestBytes(t *testing.T) {
	x := Transcript{Protocol: "/p/1", Verifier: "relay", Prover: "no", Session: [32]byte{0: 1, 31: 2}, Challenge: [32]byte{0: 3, 31: 4}}
	want := "2f702f31" + "00" + "0005" + "72656c6179" + "0002" + "6e6f" +
		"01" + "000000000000000000000000000000000000000000000000000000000000" + "02" +
		"03" + "000000000000000000000000000000000000000000000000000000000000" + "04"
	if got := hex.EncodeToString(x.Bytes()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Each part of a transcript changes its bytes; so does moving a byte from one ID to the other.
func TestEachPartCounts(t *testing.T) {
	right := Transcript{Protocol: "/p/1", Verifier: "relay", Prover: "member", Session: [32]byte{1}, Challenge: [32]byte{2}}
	for name, change := range map[string]func(*Transcript){
		"protocol":        func(x *Transcript) { x.Protocol = "/p/2" },
		"verifier":        func(x *Transcript) { x.Verifier = "relay2" },
		"prover":          func(x *Transcript) { x.Prover = "member2" },
		"session":         func(x *Transcript) { x.Session[31]++ },
		"challenge":       func(x *Transcript) { x.Challenge[31]++ },
		"roles":           func(x *Transcript) { x.Verifier, x.Prover = x.Prover, x.Verifier },
		"shifted lengths": func(x *Transcript) { x.Verifier, x.Prover = "relaymem", "ber" },
	} {
		other := right
		change(&other)
		if bytes.Equal(other.Bytes(), right.Bytes()) {
			t.Errorf("%s: the bytes are the same", name)
		}
	}
}

func TestChallenge(t *testing.T) {
	var wire bytes.Buffer
	var verifier, prover Transcript
	if err := errors.Join(verifier.SendChallenge(&wire), prover.ReadChallenge(&wire)); err != nil {
		t.Fatal(err)
	}
	if prover.Challenge != verifier.Challenge || prover.Challenge == [ChallengeLen]byte{} || wire.Len() != 0 {
		t.Errorf("%x was sent, %x read, %d bytes are left", verifier.Challenge, prover.Challenge, wire.Len())
	}
	if err := prover.ReadChallenge(bytes.NewReader(make([]byte, ChallengeLen-1))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a challenge: %v", err)
	}
}
