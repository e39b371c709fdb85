// Package clones notices that two machines use one key, and says which of them keeps the node's traffic. DESIGN.md says how.
//
//	clones.go     the messages, and the decision
//	place.go      a place: a node that answers
//	witness.go    a relay or a node that sees one peer ID at two places
//	hardware.go   the fingerprint of the hardware that a key was made on
package clones

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
)

const (
	// exchangeTime bounds an exchange, maxExchange the bytes that one side may send in it.
	exchangeTime = 4 * time.Second
	maxExchange  = 8 << 10
	// domain keeps these signatures apart from all others by the same key.
	domain = "edgemesh clone\x00"
	// closeBy is by how much two times may differ that count as the same.
	closeBy = time.Second
	mark    = " instance/"
)

// NewInstance returns the number of a node's start.
func NewInstance() string { return random(8) }

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Agent is an agent version that carries an instance's number, and instanceOf its number, "" for none.
func Agent(program, instance string) string { return program + mark + instance }

func instanceOf(agent string) string {
	_, instance, _ := strings.Cut(agent, mark)
	return instance
}

// hello is the first message of a place.
type hello struct {
	Instance string `json:"instance"`
	Nonce    string `json:"nonce"`
}

// offer is what the witness passes on of the other place.
type offer struct {
	hello
	Seen string `json:"seen"` // where the witness sees it
}

// Statement is what a place says of itself in one exchange.
type Statement struct {
	hello
	Other   hello         `json:"other"`
	Matches bool          `json:"matches"` // its hardware is that on which the key was made
	Second  bool          `json:"second"`  // it stood by for another one before, whose hardware said no more
	Known   time.Duration `json:"known"`   // how long relays and peers have known it; 0 while it stands by
	Host    string        `json:"host"`    // its host name
}

// signed is a Statement with its signature.
type signed struct {
	Body      []byte `json:"body"`
	Signature []byte `json:"signature"`
}

// Keeps reports whether the place that states s keeps the node's traffic beside that of o. Of two exactly one does.
func (s Statement) Keeps(o Statement) bool {
	switch {
	case s.Matches != o.Matches:
		return s.Matches
	case s.Second != o.Second: // whom relays knew first does not change with a restart
		return !s.Second
	case (s.Known == 0) != (o.Known == 0):
		return s.Known > 0
	case (s.Known - o.Known).Abs() > closeBy: // less is chance, and another one in each exchange
		return s.Known > o.Known
	}
	return s.Instance < o.Instance
}

// Why says why the one that keeps the traffic does.
func (s Statement) Why(o Statement) string {
	if s.Matches != o.Matches {
		return "its hardware is that on which the key was made"
	}
	if s.Second != o.Second {
		return "its hardware does not tell, and the other one stood by before"
	}
	return "its hardware does not tell, and relays and peers knew it first"
}

func (s Statement) sign(key crypto.PrivKey) (signed, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return signed{}, err
	}
	sig, err := key.Sign(append([]byte(domain), body...))
	return signed{body, sig}, err
}

var errStatement = errors.New("not signed by this key, in this exchange")

// open returns the statement if it is one of the place that said by, for the place that said to.
func (x signed) open(key crypto.PubKey, by, to hello) (s Statement, err error) {
	if ok, err := key.Verify(append([]byte(domain), x.Body...), x.Signature); !ok || err != nil {
		return s, errors.Join(errStatement, err)
	}
	if err := json.Unmarshal(x.Body, &s); err != nil {
		return s, err
	}
	if s.hello != by || s.Other != to || by.Instance == to.Instance || by.Instance == "" || to.Nonce == "" {
		return s, errStatement
	}
	return s, nil
}
