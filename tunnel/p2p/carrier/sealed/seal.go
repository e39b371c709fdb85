package sealed

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	headerLen = 12
	tagLen    = 16
	// Overhead is what sealing adds to a payload, bytes.
	Overhead = headerLen + tagLen
	// MaxIndex is the highest index a packet can carry.
	MaxIndex = 1<<30 - 1
	// maxCounter ends a session: at a million packets per second after 500 000 years.
	maxCounter = 1<<64 - 1<<eraBits
)

// Is reports whether b can be a sealed packet; otherwise it may be one of QUIC.
func Is(b []byte) bool { return len(b) >= Overhead && b[0]&0xc0 == 0 }

// Index returns the receiver's index of a packet that Is.
func Index(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

// Counter returns the counter of a packet that Is.
func Counter(b []byte) uint64 { return binary.BigEndian.Uint64(b[4:]) }

// Sealer seals one direction's packets. It is for one goroutine at a time.
type Sealer struct {
	suite   uint16
	index   uint32
	counter uint64
	key     *key
	nonce   [nonceLen]byte // here, because an argument of an interface's method escapes
}

// NewSealer makes the sending end for a traffic secret of SecretLen bytes; index is
// the receiver's choice, at most MaxIndex. The error wraps ErrCipher.
func NewSealer(suite uint16, secret []byte, index uint32) (*Sealer, error) {
	if index > MaxIndex {
		return nil, fmt.Errorf("index %d is above %d", index, MaxIndex)
	}
	k, err := newKey(suite, 0, secret)
	if err != nil {
		return nil, err
	}
	return &Sealer{suite: suite, index: index, key: k}, nil
}

// Counter is what the next packet will have.
func (s *Sealer) Counter() uint64 { return s.counter }

// Seal appends the packet for payload to dst, which must not overlap it.
func (s *Sealer) Seal(dst, payload []byte) ([]byte, error) {
	if era := s.counter >> eraBits; era != s.key.era {
		if s.counter >= maxCounter {
			return dst, errors.New("counter is used up")
		}
		k, err := s.key.next(s.suite)
		if err != nil {
			return dst, err
		}
		s.key = k
	}
	start := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, s.index)
	dst = binary.BigEndian.AppendUint64(dst, s.counter)
	s.nonce = s.key.nonce(s.counter)
	s.counter++
	return s.key.aead.Seal(dst, s.nonce[:], payload, dst[start:start+headerLen]), nil
}

// Opener opens packets at the other end. It is for one goroutine at a time.
type Opener struct {
	suite       uint16
	before, now *key // before is nil in the first era
	next        *key // nil until the next era's first packet
	nonce       [nonceLen]byte
}

// NewOpener makes the receiving end. The error wraps ErrCipher.
func NewOpener(suite uint16, secret []byte) (*Opener, error) {
	k, err := newKey(suite, 0, secret)
	if err != nil {
		return nil, err
	}
	return &Opener{suite: suite, now: k}, nil
}

// Open returns the payload of b, in place of the ciphertext. The caller tells replays by Counter. Error: ErrForged.
func (o *Opener) Open(b []byte) ([]byte, error) {
	if !Is(b) {
		return nil, ErrForged
	}
	counter := Counter(b)
	k := o.keyOf(counter >> eraBits)
	if k == nil {
		return nil, ErrForged
	}
	o.nonce = k.nonce(counter)
	sealed := b[headerLen:]
	payload, err := k.aead.Open(sealed[:0], o.nonce[:], sealed, b[:headerLen])
	if err != nil {
		return nil, ErrForged
	}
	if k == o.next { // proved to be the sender's
		o.before, o.now, o.next = o.now, o.next, nil
	}
	return payload, nil
}

// keyOf returns the key of an era: this one, the one before, or the next.
func (o *Opener) keyOf(era uint64) *key {
	switch era {
	case o.now.era:
		return o.now
	case o.now.era - 1:
		return o.before
	case o.now.era + 1:
		if o.next == nil {
			k, err := o.now.next(o.suite)
			if err != nil {
				return nil
			}
			o.next = k
		}
		return o.next
	}
	return nil
}
