package signed

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// parts is how many parts of all statements are compared between members.
const parts = 256

// mostErrors is how many refusals one error has.
const mostErrors = 5

// maxHeld bounds the statements held, maxSeen the envelopes that are remembered as useless.
const maxHeld, maxSeen = 200_000, 1 << 14

var (
	// ErrSigner means that a statement is signed by nobody who may say such a thing.
	ErrSigner = errors.New("its signer is not in signers, nor a delegate of theirs")
	// ErrScope means that a delegate has signed what it may not.
	ErrScope = errors.New("outside the delegate's scope")
	errFull  = errors.New("too many statements")
)

// Book has the statements that this node has accepted, of each subject the one that counts.
type Book struct {
	signers []peer.ID
	path    string // "": nothing is kept on disk
	seal    []byte // a secret of this node, for what is kept

	mu      sync.Mutex // a leaf, except for wake
	held    map[string]Signed
	raws    map[string]bool  // envelopes of those held: no signature is checked twice
	seen    map[string]error // those of no use, and why; nil: they are older than what is held
	sealed  map[string]bool  // those whose signature this node had checked before it restarted; nil later on
	digests [parts]uint64
	proven  uint64 // proof of time: the newest epoch of a pinned key
	changed wake.All
}

// NewBook returns the book of those keys, which is empty.
func NewBook(signers []peer.ID) *Book {
	return &Book{signers: signers, held: map[string]Signed{}, raws: map[string]bool{}, seen: map[string]error{}}
}

// Changed wakes waiters after each statement that was taken.
func (b *Book) Changed() *wake.All { return &b.changed }

// Len is how many statements there are.
func (b *Book) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.held)
}

// Add takes what counts of texts, in any order, and reports how many were new. The error joins one for each that is
// not accepted; a statement that is no newer than what is held is no error.
func (b *Book) Add(texts ...string) (added int, err error) {
	raws := make([]string, 0, len(texts))
	for _, text := range texts {
		raw, failed := decode(text)
		if failed != nil {
			err = cmp.Or(err, failed) // the first one says enough
			continue
		}
		raws = append(raws, raw)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	added, failed := b.add(raws)
	return added, errors.Join(err, failed)
}

// add is Add of envelopes. The caller holds mu.
func (b *Book) add(raws []string) (added int, err error) {
	var fresh []Signed
	var errs []error
	for len(raws) > 0 {
		took, later, useless, notYet := b.addOnce(raws)
		fresh, errs, raws = append(fresh, took...), append(errs, useless...), later
		if len(took) == 0 { // else a delegation that was taken may let them count
			errs = append(errs, notYet...)
			break
		}
	}
	if len(errs) > mostErrors {
		errs = append(errs[:mostErrors], fmt.Errorf("and %d more", len(errs)-mostErrors))
	}
	if len(fresh) > 0 {
		errs = append(errs, b.store(fresh))
		b.changed.Broadcast()
	}
	return len(fresh), errors.Join(errs...)
}

// addOnce returns what it took, and what may still count once something was taken, and why that and the rest does not now. The
// caller holds mu.
func (b *Book) addOnce(raws []string) (took []Signed, later []string, useless, notYet []error) {
	var all []Signed
	for _, raw := range raws {
		why, seen := b.seen[raw]
		if seen || b.raws[raw] {
			if why != nil {
				useless = append(useless, why)
			}
			continue
		}
		s, err := open(raw, b.may, b.sealed[raw])
		switch {
		case err == nil:
			all = append(all, s)
		case errors.Is(err, ErrStatement):
			b.remember(raw, err)
			useless = append(useless, err)
		default:
			later, notYet = append(later, raw), append(notYet, err)
		}
	}
	slices.SortStableFunc(all, func(x, y Signed) int { return cmp.Compare(order(x.Kind), order(y.Kind)) })
	for i := range all {
		news, err := b.take(all[i])
		if news {
			took = append(took, all[i])
		} else if err == nil {
			b.remember(all[i].raw, nil)
		} else {
			later, notYet = append(later, all[i].raw), append(notYet, err)
		}
	}
	return took, later, useless, notYet
}

// order puts delegations first: they may let the others count.
func order(k Kind) int { return slices.Index([]Kind{Delegation, Ban, Member}, k) }

// remember notes that an envelope is of no use: its signature need not be checked again.
func (b *Book) remember(raw string, why error) {
	if len(b.seen) >= maxSeen {
		clear(b.seen)
	}
	b.seen[raw] = why
}

// may is nil if a key may sign such a thing now.
func (b *Book) may(signer peer.ID, kind Kind) error {
	if !b.pinned(signer) && (kind != Member || b.delegate(signer) == nil) {
		return fmt.Errorf("signed by %s: %w", signer, ErrSigner)
	}
	return nil
}

func (b *Book) pinned(id peer.ID) bool { return slices.Contains(b.signers, id) }

// delegate is the delegation of a key that counts now, nil if there is none.
func (b *Book) delegate(id peer.ID) *Signed {
	d, ok := b.held[(&Statement{Kind: Delegation, ID: id}).subject()]
	if !ok || d.Expires <= b.proven {
		return nil
	}
	if ban, banned := b.held[(&Statement{Kind: Ban, ID: id}).subject()]; banned && ban.Epoch >= d.Epoch {
		return nil
	}
	return &d
}

// authority is nil if s counts as far as its signer goes.
func (b *Book) authority(s *Signed) error {
	if err := b.may(s.Signer, s.Kind); err != nil || b.pinned(s.Signer) {
		return err
	}
	d := b.delegate(s.Signer)
	switch outside := slices.IndexFunc(s.Blocks, func(p netip.Prefix) bool { return !mesh.Inside(d.Blocks, p) }); {
	case outside >= 0:
		return fmt.Errorf("%s of %s, signed by %s: %w: %s is not inside %v", s.Kind, s.Who(), s.Signer, ErrScope, s.Blocks[outside], d.Blocks)
	case s.Epoch >= d.Expires:
		return fmt.Errorf("%s of %s, signed by %s: %w: it ended before", s.Kind, s.Who(), s.Signer, ErrScope)
	}
	return nil
}

// take holds s if it is newer than what is held of its subject. The caller holds mu.
func (b *Book) take(s Signed) (news bool, err error) {
	if err := b.authority(&s); err != nil {
		return false, err
	}
	subject := s.subject()
	if old, ok := b.held[subject]; ok {
		if !b.over(&s, &old) {
			return false, nil
		}
	} else if len(b.held) >= maxHeld {
		return false, errFull
	}
	b.put(subject, &s)
	if b.pinned(s.Signer) {
		b.proven = max(b.proven, s.Epoch)
	}
	if s.Kind != Member {
		b.purge()
	}
	return true, nil
}

// over reports whether s replaces old: a pinned key's replaces a delegate's, and a newer one an older one. Of two of one second
// the greater one counts, everywhere the same.
func (b *Book) over(s, old *Signed) bool {
	if mine, theirs := b.pinned(s.Signer), b.pinned(old.Signer); mine != theirs {
		return mine
	}
	return cmp.Or(cmp.Compare(s.Epoch, old.Epoch), cmp.Compare(s.raw, old.raw)) > 0
}

// put holds s in place of what was held of its subject; nil holds nothing.
func (b *Book) put(subject string, s *Signed) {
	part := &b.digests[sha256.Sum256([]byte(subject))[0]]
	digest := func(x *Signed) uint64 { sum := sha256.Sum256([]byte(x.raw)); return binary.BigEndian.Uint64(sum[:]) }
	if old, ok := b.held[subject]; ok {
		*part ^= digest(&old)
		delete(b.raws, old.raw)
		delete(b.held, subject)
	}
	if s != nil {
		*part ^= digest(s)
		b.held[subject] = *s
		b.raws[s.raw] = true
	}
}

// purge forgets what delegates have signed that may no longer: else it would stand in the way of what others sign.
func (b *Book) purge() {
	for subject, s := range maps.Clone(b.held) {
		if s.Kind == Member && b.authority(&s) != nil {
			b.put(subject, nil)
		}
	}
	clear(b.seen)
}

// Statements are those held, delegations first, then by subject.
func (b *Book) Statements() []Signed {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sorted(func(string) bool { return true })
}

func (b *Book) sorted(want func(subject string) bool) []Signed {
	var out []Signed
	for subject, s := range b.held {
		if want(subject) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(x, y Signed) int {
		return cmp.Or(cmp.Compare(order(x.Kind), order(y.Kind)), cmp.Compare(x.Who(), y.Who()))
	})
	return out
}
