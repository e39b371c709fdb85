package signed

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"edgemesh/internal/membership/mesh"
	"edgemesh/internal/wake"
)

// parts is how many parts of all statements are compared between members.
const parts = 256

// mostErrors is how many refusals one error has.
const mostErrors = 5

const (
	// maxHeld bounds what one delegate has signed, of what members pass on and of what no membership names, and departures: whose is
	// forgotten could show the statement again that it ended. What else pinned keys have signed has no bound: else whoever steals a
	// delegate's key would keep its own ban out.
	maxHeld = 50_000
	// maxSeen bounds the forged envelopes that are remembered, maxFormer the former peer IDs of one name.
	maxSeen, maxFormer = 1 << 14, 4
	// maxLeap is how far ahead an epoch may prove time, in seconds (two years): a signer's clock that is set wrong expires nothing.
	maxLeap = 2 * 365 * 24 * 3600
	// written is when this was written: no right clock is earlier.
	written = 1_795_651_200
)

var (
	// ErrSigner means that a statement is signed by nobody who may say such a thing.
	ErrSigner = errors.New("its signer is not in signers, nor a delegate of theirs")
	// ErrScope means that a delegate has signed what it may not.
	ErrScope = errors.New("outside the delegate's scope")
	errFull  = errors.New("too many statements")
	errOld   = errors.New("no newer than what is held")
)

// Book has the statements that this node has accepted, of each subject the one that counts.
type Book struct {
	signers []peer.ID
	kept    kept

	mu      sync.Mutex // a leaf, except for wake
	held    map[string]Signed
	raws    map[string]bool     // envelopes of those held: no signature is checked twice
	former  map[string][]Signed // by name: those with other peer IDs before the one held, for bans by name
	by      map[peer.ID]int     // how many are held that a delegate has signed
	gone    int                 // how many that are departures
	before  map[bool]uint64     // the newest epoch of a departure that was dropped, by whether a pinned key had signed it
	seen    map[string]error    // those that are forged, and why
	sealed  map[string]bool     // those whose signature this node had checked before it restarted; nil later on
	unsaved []Signed            // taken, but not on disk yet
	digests [parts]uint64
	proven  uint64 // proof of time: the newest epoch of a pinned key, of what was heard as a whole
	changed wake.All
}

// NewBook returns the book of those keys, which is empty.
func NewBook(signers []peer.ID) *Book {
	return &Book{signers: signers, held: map[string]Signed{}, raws: map[string]bool{}, former: map[string][]Signed{},
		by: map[peer.ID]int{}, before: map[bool]uint64{}, seen: map[string]error{}}
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
// not accepted, and ErrKept; a statement that is no newer than what is held is no error.
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
	fresh, failed := b.add(raws, math.MaxInt)
	until := uint64(0) // what an exchange has brought so far, and is not whole, proves nothing
	for i := range fresh {
		if b.pinned(fresh[i].Signer) {
			until = max(until, fresh[i].Epoch)
		}
	}
	b.prove(until)
	b.mu.Unlock()
	return len(fresh), errors.Join(err, failed, b.Save())
}

// prove takes proof of time from what is held, up to an epoch. The caller holds mu.
func (b *Book) prove(until uint64) {
	if until <= b.proven {
		return
	}
	var epochs []uint64
	for _, s := range b.held {
		if s.Epoch > b.proven && s.Epoch <= until && b.pinned(s.Signer) {
			epochs = append(epochs, s.Epoch)
		}
	}
	slices.Sort(epochs)
	before, now := b.proven, max(written, uint64(max(time.Now().Unix(), 0)))
	for _, epoch := range epochs {
		if epoch > max(b.proven, now)+maxLeap {
			break
		}
		b.proven = epoch
	}
	if b.proven > before {
		b.purge()
		b.changed.Broadcast()
	}
}

// add is Add of envelopes, without proof of time and disk. Of a delegate's it takes new subjects up to so many. The caller holds mu.
func (b *Book) add(raws []string, most int) (fresh []Signed, err error) {
	var errs []error
	for len(raws) > 0 {
		took, later, useless, notYet := b.addOnce(raws, most)
		fresh, errs, raws = append(fresh, took...), append(errs, useless...), later
		if len(took) == 0 { // else a delegation that was taken may let them count
			errs = append(errs, notYet...)
			break
		}
	}
	if len(errs) > mostErrors {
		errs = append(errs[:mostErrors], fmt.Errorf("and %d more", len(errs)-mostErrors))
	}
	b.bound(maxHeld)
	if len(fresh) > 0 {
		b.unsaved = append(b.unsaved, fresh...)
		b.changed.Broadcast()
	}
	return fresh, errors.Join(errs...)
}

// addOnce returns what it took, and what may still count once something was taken, and why that and the rest does not now. The
// caller holds mu.
func (b *Book) addOnce(raws []string, most int) (took []Signed, later []string, useless, notYet []error) {
	var all []Signed
	for _, raw := range raws {
		why, seen := b.seen[raw]
		if seen || b.raws[raw] {
			if why != nil {
				useless = append(useless, why)
			}
			continue
		}
		s, err := open(raw, b.wanted, b.sealed[raw])
		switch {
		case err == nil:
			all = append(all, s)
		case errors.Is(err, errOld):
		case errors.Is(err, ErrStatement):
			if len(b.seen) >= maxSeen {
				clear(b.seen)
			}
			b.seen[raw] = err
			useless = append(useless, err)
		default:
			later, notYet = append(later, raw), append(notYet, err)
		}
	}
	slices.SortStableFunc(all, func(x, y Signed) int { return cmp.Compare(order(x.Kind), order(y.Kind)) })
	for i := range all {
		if err := b.take(all[i], most); err == nil {
			took = append(took, all[i])
		} else if !errors.Is(err, errOld) {
			later, notYet = append(later, all[i].raw), append(notYet, err)
		}
	}
	return took, later, useless, notYet
}

// order puts delegations first: they may let the others count.
func order(k Kind) int { return slices.Index([]Kind{Delegation, Ban, Member}, k) }

// may is nil if a key may sign such a thing now.
func (b *Book) may(signer peer.ID, kind Kind) error {
	if !b.pinned(signer) && (kind != Member || b.delegate(signer) == nil) {
		return fmt.Errorf("signed by %s: %w", signer, ErrSigner)
	}
	return nil
}

// wanted is nil if a statement would be taken, as far as that is seen without its signature: checking that costs most.
func (b *Book) wanted(s *Signed) error {
	if err := b.may(s.Signer, s.Kind); err != nil {
		return err
	}
	if old, ok := b.held[s.subject()]; ok && !b.over(s, &old) && !b.lacks(s, old.ID) {
		return errOld
	} else if !ok && s.Gone() && s.Epoch < b.before[b.pinned(s.Signer)] {
		return errOld
	}
	return nil
}

// lacks reports whether s, older than the statement held of its name, has a former peer ID that bans by name need.
func (b *Book) lacks(s *Signed, held peer.ID) bool {
	if s.Kind != Member || s.ID == held {
		return false
	}
	all := b.former[s.Name]
	if i := slices.IndexFunc(all, func(x Signed) bool { return x.ID == s.ID }); i >= 0 {
		return b.over(s, &all[i])
	}
	return len(all) < maxFormer || b.over(s, &all[0])
}

// remember sets the former statements of a name: of each peer ID but that of the one held the newest, maxFormer in all, the newest last.
func (b *Book) remember(name string, all []Signed) {
	was, held := b.former[name], b.held["m"+name].ID
	slices.SortFunc(all, func(x, y Signed) int { return b.compare(&x, &y) })
	var keep []Signed
	for i := len(all) - 1; i >= 0 && len(keep) < maxFormer; i-- {
		if id := all[i].ID; id != held && !slices.ContainsFunc(keep, func(x Signed) bool { return x.ID == id }) {
			keep = append(keep, all[i])
		}
	}
	slices.Reverse(keep)
	digest := &b.digests[part("m"+name)]
	for i := range was {
		delete(b.raws, was[i].raw)
		*digest ^= was[i].digest()
	}
	for i := range keep {
		b.raws[keep[i].raw] = true
		*digest ^= keep[i].digest()
	}
	if b.former[name] = keep; len(keep) == 0 {
		delete(b.former, name)
	}
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

// take holds s if it is newer than what is held of its subject, else its error is errOld. The caller holds mu.
func (b *Book) take(s Signed, most int) error {
	if err := b.authority(&s); err != nil {
		return err
	}
	subject := s.subject()
	if err := b.wanted(&s); err != nil {
		return err
	}
	old, ok := b.held[subject]
	if !ok && !b.pinned(s.Signer) && b.by[s.Signer] >= most {
		return fmt.Errorf("%w signed by %s", errFull, s.Signer)
	}
	if ok && !b.over(&s, &old) {
		b.remember(s.Name, append(slices.Clone(b.former[s.Name]), s))
		return nil
	}
	b.put(subject, &s)
	switch {
	case s.Kind != Member:
		b.purge()
	case ok && old.ID != s.ID:
		b.remember(s.Name, append(slices.Clone(b.former[s.Name]), old))
	}
	return nil
}

// over reports whether s replaces old: a pinned key's replaces a delegate's, and a newer one an older one. Of two of one second
// the greater one counts, everywhere the same.
func (b *Book) over(s, old *Signed) bool { return b.compare(s, old) > 0 }

func (b *Book) compare(s, old *Signed) int {
	if mine, theirs := b.pinned(s.Signer), b.pinned(old.Signer); mine != theirs {
		if mine {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(s.Epoch, old.Epoch), cmp.Compare(s.raw, old.raw))
}

func (s *Signed) digest() uint64 {
	sum := sha256.Sum256([]byte(s.raw))
	return binary.BigEndian.Uint64(sum[:])
}

// put holds s in place of what was held of its subject; nil holds nothing.
func (b *Book) put(subject string, s *Signed) {
	part := &b.digests[part(subject)]
	if old, ok := b.held[subject]; ok {
		*part ^= old.digest()
		b.count(&old, -1)
		delete(b.raws, old.raw)
		delete(b.held, subject)
	}
	if s != nil {
		*part ^= s.digest()
		b.count(s, 1)
		b.held[subject] = *s
		b.raws[s.raw] = true
	}
}

func (b *Book) count(s *Signed, n int) {
	if !b.pinned(s.Signer) {
		b.by[s.Signer] += n
	}
	if s.Gone() {
		b.gone += n
	}
}

// bound drops the oldest departures beyond so many, delegates' first, the same ones everywhere.
func (b *Book) bound(most int) {
	if b.gone > most {
		b.drop(b.gone-most, (*Signed).Gone)
	}
}

// drop forgets the n oldest of those that may go.
func (b *Book) drop(n int, may func(*Signed) bool) {
	var all []Signed
	for _, s := range b.held {
		if may(&s) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(x, y Signed) int { return b.compare(&x, &y) })
	for i := range all[:min(n, len(all))] {
		if by := b.pinned(all[i].Signer); all[i].Gone() {
			b.before[by] = max(b.before[by], all[i].Epoch)
		}
		b.put(all[i].subject(), nil)
		b.remember(all[i].Name, nil)
	}
}

// forget drops the oldest of what delegates have signed, above maxHeld each, about nodes that are not among these: gone ones.
func (b *Book) forget(nodes []mesh.Node) {
	for signer, n := range b.by {
		if n <= maxHeld {
			continue
		}
		named := make(map[string]bool, len(nodes))
		for i := range nodes {
			named[nodes[i].Name] = true
		}
		b.drop(n-maxHeld, func(s *Signed) bool { return s.Signer == signer && !named[s.Name] })
	}
}

// purge forgets what delegates have signed that may no longer: else it would stand in the way of what others sign. What it had
// replaced counts again.
func (b *Book) purge() {
	for subject, s := range maps.Clone(b.held) {
		if s.Kind == Member && b.authority(&s) != nil {
			b.put(subject, nil)
		}
	}
	for name, all := range maps.Clone(b.former) {
		all = slices.DeleteFunc(slices.Clone(all), func(s Signed) bool { return b.authority(&s) != nil })
		if _, ok := b.held["m"+name]; ok || len(all) == 0 {
			b.remember(name, all)
			continue
		}
		last := all[len(all)-1]
		b.remember(name, all[:len(all)-1])
		b.put("m"+name, &last)
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
