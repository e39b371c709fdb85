// Package signed holds the membership that an operator's key has signed: statements about members, bans and delegations, and
// what of a membership they let count. DESIGN.md has the rules.
//
//	statement.go  one statement: its encoding, its signature
//	key.go        the file of a key
//	book.go       the statements that this node has accepted
//	apply.go      what they let count of a membership
//	file.go       statements on disk
//	exchange.go   members pass on what the other one lacks
//	show.go       what a member shows of itself at a relay
package signed

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/record"

	"edgemesh/internal/membership/mesh"
)

// Kind is what a statement is about.
type Kind byte

// The kinds.
const (
	Delegation Kind = 'd'
	Ban        Kind = 'b'
	Member     Kind = 'm'
)

func (k Kind) String() string {
	return map[Kind]string{Delegation: "delegation", Ban: "ban", Member: "member"}[k]
}

const (
	// domain and codec keep signatures apart from all others that a key may make (libp2p's signed envelopes).
	domain, codec = "edgemesh-membership", "/edgemesh/membership/1"
	// maxStatement bounds one statement, in bytes; maxBlocks its blocks or ranges.
	maxStatement, maxBlocks = 1024, 16
)

// ErrStatement means that bytes are no statement.
var ErrStatement = errors.New("not a signed statement of the membership")

// Statement is what a key has signed. The payload of its envelope is
//
//	kind (1) | epoch | expires | length, name | length, ID | number, blocks each: length of the address, address, bits (1)
//
// where numbers are unsigned varints, and an address has 4 or 16 bytes.
type Statement struct {
	Kind Kind
	// Epoch is the second, since 1970, at which it was signed.
	Epoch uint64
	// Expires, likewise, of a member or delegation; 0 is never. Proof of time counts, not a clock.
	Expires uint64
	// Name of a member, or of whom a ban names by name.
	Name string
	// ID is the member's peer ID, whom a ban names by it, or a delegate's key.
	ID peer.ID
	// Blocks are the member's, or the ranges of a delegation.
	Blocks []netip.Prefix
}

var _ record.Record = (*Statement)(nil)

// Domain implements record.Record.
func (*Statement) Domain() string { return domain }

// Codec implements record.Record.
func (*Statement) Codec() []byte { return []byte(codec) }

// MarshalRecord implements record.Record.
func (s *Statement) MarshalRecord() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	out := binary.AppendUvarint(binary.AppendUvarint([]byte{byte(s.Kind)}, s.Epoch), s.Expires)
	for _, text := range []string{s.Name, string(s.ID)} {
		out = append(binary.AppendUvarint(out, uint64(len(text))), text...)
	}
	out = binary.AppendUvarint(out, uint64(len(s.Blocks)))
	for _, b := range s.Blocks {
		a := b.Addr().AsSlice()
		out = append(append(binary.AppendUvarint(out, uint64(len(a))), a...), byte(b.Bits()))
	}
	return out, nil
}

// UnmarshalRecord implements record.Record. It takes the one encoding of a statement that makes sense.
func (s *Statement) UnmarshalRecord(data []byte) error {
	if len(data) == 0 {
		return ErrStatement
	}
	r := reader{data: data[1:]}
	*s = Statement{Kind: Kind(data[0]), Epoch: r.number(), Expires: r.number(), Name: string(r.bytes()), ID: peer.ID(r.bytes())}
	for n := r.number(); n > 0 && !r.bad; n-- {
		a, _ := netip.AddrFromSlice(r.bytes())
		s.Blocks = append(s.Blocks, netip.PrefixFrom(a, int(r.byte())))
	}
	again, err := s.MarshalRecord()
	if r.bad || err != nil || !bytes.Equal(again, data) {
		return errors.Join(ErrStatement, err)
	}
	return nil
}

// reader reads the parts of a payload; bad: one is missing.
type reader struct {
	data []byte
	bad  bool
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.data)
	if size <= 0 {
		r.bad, size = true, 0
	}
	r.data = r.data[size:]
	return n
}

func (r *reader) bytes() []byte {
	n := r.number()
	if n > uint64(len(r.data)) {
		r.bad, n = true, 0
	}
	out := r.data[:n]
	r.data = r.data[n:]
	return out
}

func (r *reader) byte() byte {
	if len(r.data) == 0 {
		r.bad = true
		return 0
	}
	out := r.data[0]
	r.data = r.data[1:]
	return out
}

// check says what about s makes no sense.
func (s *Statement) check() error {
	named, identified := s.Name != "", s.ID != ""
	switch {
	case s.Kind == Member && !(named && identified && len(s.Blocks) > 0),
		s.Kind == Delegation && (named || !identified || len(s.Blocks) == 0 || s.Expires == 0),
		s.Kind == Ban && (named == identified || len(s.Blocks) > 0 || s.Expires != 0),
		s.Kind.String() == "":
		return fmt.Errorf("%w: a member needs a name, a peer ID and blocks, a ban one of name and peer ID, a delegation a key, ranges and an end", ErrStatement)
	case s.Epoch == 0 || len(s.Blocks) > maxBlocks:
		return fmt.Errorf("%w: no epoch, or more than %d blocks", ErrStatement, maxBlocks)
	case named && mesh.CheckNodeName(s.Name) != nil:
		return fmt.Errorf("%w: %w", ErrStatement, mesh.CheckNodeName(s.Name))
	}
	if identified {
		if _, err := s.ID.ExtractPublicKey(); err != nil {
			return fmt.Errorf("%w: the peer ID is not that of an Ed25519 key", ErrStatement)
		}
	}
	for i, b := range s.Blocks {
		if !b.IsValid() || b != b.Masked() || b.Addr().Is4In6() || slices.ContainsFunc(s.Blocks[:i], b.Overlaps) {
			return fmt.Errorf("%w: %s is not a block, or twice in it", ErrStatement, b)
		}
	}
	return nil
}

// Gone reports whether s says that a node is a member no longer: it ends as it begins.
func (s *Statement) Gone() bool { return s.Kind == Member && s.Expires != 0 && s.Expires <= s.Epoch }

// Signed is a statement with its signature.
type Signed struct {
	Statement
	Signer peer.ID
	raw    string      // the envelope
	text   mesh.PeerID // ID, of a member
}

// String is the form in files and in the API.
func (s Signed) String() string { return base64.RawURLEncoding.EncodeToString([]byte(s.raw)) }

// subject is what a statement is about: of several about one the newest counts.
func (s *Statement) subject() string {
	if s.Kind == Member {
		return "m" + s.Name
	}
	return string(s.Kind) + s.Name + "/" + string(s.ID)
}

// Who names a statement's subject for people.
func (s *Statement) Who() string {
	if s.Name != "" {
		return s.Name
	}
	return s.ID.String()
}

// Sign signs s with key. Its error wraps ErrStatement where s makes no sense.
func Sign(s Statement, key crypto.PrivKey) (Signed, error) {
	e, err := record.Seal(&s, key)
	if checked := s.check(); checked != nil {
		err = checked // record.Seal wraps nothing
	}
	if err != nil {
		return Signed{}, err
	}
	raw, err := e.Marshal()
	if err != nil {
		return Signed{}, err
	}
	return open(string(raw), whatever, false)
}

func whatever(*Signed) error { return nil }

// Read reads the text form, whoever has signed it.
func Read(text string) (Signed, error) {
	raw, err := decode(text)
	if err != nil {
		return Signed{}, err
	}
	return open(raw, whatever, false)
}

func decode(text string) (raw string, err error) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrStatement, err)
	}
	return string(data), nil
}

// open reads an envelope, which has one encoding, and checks its signature, unless that was done before. First wanted says whether
// a statement like this could count: that costs less.
func open(raw string, wanted func(*Signed) error, checked bool) (s Signed, err error) {
	if len(raw) > maxStatement {
		return s, fmt.Errorf("%w: larger than %d bytes", ErrStatement, maxStatement)
	}
	e, err := record.UnmarshalEnvelope([]byte(raw))
	if err != nil || string(e.PayloadType) != codec || len(e.RawPayload) == 0 {
		return s, ErrStatement
	}
	if s.Signer, err = peer.IDFromPublicKey(e.PublicKey); err != nil {
		return s, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	if again, err := e.Marshal(); err != nil || string(again) != raw { // with a field that nobody reads, one statement were many
		return s, fmt.Errorf("%w: another encoding", ErrStatement)
	}
	if err = s.UnmarshalRecord(e.RawPayload); err == nil {
		if s.raw = raw; s.Kind == Member {
			s.text = mesh.PeerID(s.ID.String())
		}
		if err := wanted(&s); err != nil {
			return s, err
		}
		if !checked {
			_, err = record.ConsumeTypedEnvelope([]byte(raw), &Statement{})
		}
	}
	if err != nil {
		return Signed{}, fmt.Errorf("%w: signed in the name of %s: %w", ErrStatement, s.Signer, err)
	}
	return s, nil
}

// Now is an epoch, later than the one before.
func Now(before uint64) uint64 { return max(uint64(max(time.Now().Unix(), 1)), before+1) }

// Replaces reports whether s is about the same as old: a file needs the newer one only.
func (s Signed) Replaces(old Signed) bool { return s.subject() == old.subject() }

// Describe is a statement in a line, for people.
func (s Signed) Describe() string {
	out := s.Kind.String() + " " + s.Who()
	if s.Gone() {
		return "gone " + s.Who() + " " + s.ID.String()
	}
	if s.Kind == Member {
		out += " " + s.ID.String()
	}
	for _, b := range s.Blocks {
		out += " " + b.String()
	}
	if s.Expires > 0 {
		out += " until " + time.Unix(int64(min(s.Expires, 1<<37)), 0).UTC().Format(time.DateOnly)
	}
	return out
}
