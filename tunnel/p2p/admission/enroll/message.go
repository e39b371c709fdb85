package enroll

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// MaxRequest and MaxAnswer bound their JSON, in bytes. A node's status takes some 2 KiB, the object that comes back
	// twice that.
	MaxRequest = 32 << 10
	MaxAnswer  = 32 << 10
	// maxChain holds four certificates with RSA keys of 4096 bits; maxSignature one signature of such a key.
	maxChain     = 12 << 10
	maxSignature = 1 << 10
)

// errMessage means that a message is malformed.
var errMessage = errors.New("enroll: malformed message")

// Request is a write as the API would take it.
type Request struct {
	Method string          `json:"method"` // POST, PATCH or DELETE
	Path   string          `json:"path"`
	Body   json.RawMessage `json:"body"`
}

// Answer is the API's: its code, and the object or the Status that came with it.
type Answer struct {
	Code int             `json:"code"`
	Body json.RawMessage `json:"body,omitempty"`
}

// message is a request with the proof of its sender.
type message struct {
	request   []byte // JSON
	chain     []byte // DER, one certificate after the other
	signature []byte
}

// marshal writes the fields, each after its length.
func (m message) marshal() ([]byte, error) {
	if len(m.request) > MaxRequest || len(m.chain) > maxChain || len(m.signature) > maxSignature {
		return nil, fmt.Errorf("%w: request of %d bytes, certificates of %d, signature of %d: too large", errMessage, len(m.request), len(m.chain), len(m.signature))
	}
	var out []byte
	for _, field := range [][]byte{m.request, m.chain, m.signature} {
		out = appendField(out, field)
	}
	return out, nil
}

// readMessage reads what marshal writes, and no byte more.
func readMessage(r io.Reader) (m message, err error) {
	if m.request, err = readField(r, MaxRequest); err != nil {
		return m, err
	}
	if m.chain, err = readField(r, maxChain); err != nil {
		return m, err
	}
	m.signature, err = readField(r, maxSignature)
	return m, err
}

// appendField appends field, whose length fits into two bytes.
func appendField(out, field []byte) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(field))), field...) //nolint:gosec // bounded by its caller
}

func readField(r io.Reader, most int) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > most {
		return nil, fmt.Errorf("%w: a field of %d bytes, %d are allowed", errMessage, n, most)
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(n))) // as it comes: an announced length takes no memory
	if err == nil && len(out) < n {
		err = io.ErrUnexpectedEOF
	}
	return out, err
}
