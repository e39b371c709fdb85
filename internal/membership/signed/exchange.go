package signed

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Digest is the same at two members that have the same statements.
func (b *Book) Digest() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return total(b.digests)
}

func total(d [parts]uint64) uint64 {
	sum := sha256.New()
	_ = binary.Write(sum, binary.BigEndian, d)
	return binary.BigEndian.Uint64(sum.Sum(nil))
}

// Count is what one exchange came to, in statements.
type Count struct {
	Added, Sent int
	Useless     int  // received, but not new or not accepted
	Whole       bool // it did not break off: what follows is known
	// Lacked is how much the other one was sent of which it had sent nothing as new, some whom that is about: members by
	// name, else the kind before.
	Lacked int
	Some   []string
}

// mostSome bounds Count.Some.
const mostSome = 5

// mostUseless bounds what a member may send for nothing in one exchange, beyond twice what is held here.
const mostUseless = 1 << 16

// Exchange passes on to the member at the other end of s what it lacks, and takes what this one lacks; both ends call it. The
// error says what of the other's is not accepted; after one that is no statement, or forged, nothing more is read. What comes counts immediately,
// also of an exchange that breaks off, except as proof of time: bans come first, and before what renews a member has
// come, too, they would end it. The parts that are through are not sent again.
//
//	digest of all (8) | if they differ: digests of 256 parts (8 each) | statements of parts that differ, each: length (2), envelope | 0 (2)
//
// Delegations and bans are sent first, then members part by part.
func (b *Book) Exchange(s io.ReadWriter) (n Count, err error) {
	b.mu.Lock()
	mine := b.digests
	b.mu.Unlock()
	hello := binary.BigEndian.AppendUint64(nil, total(mine))
	if _, err := s.Write(hello); err != nil {
		return n, err
	}
	r := bufio.NewReader(s)
	theirs := make([]byte, len(hello))
	if _, err := io.ReadFull(r, theirs); err != nil {
		return n, err
	}
	if string(theirs) == string(hello) {
		n.Whole = true
		return n, b.whole()
	}
	if err := binary.Write(s, binary.BigEndian, mine); err != nil {
		return n, err
	}
	var other [parts]uint64
	if err := binary.Read(r, binary.BigEndian, &other); err != nil {
		return n, err
	}
	b.mu.Lock()
	differs := func(subject string) bool { part := part(subject); return mine[part] != other[part] }
	var all []Signed
	for name, former := range b.former { // before what replaced them: who lacks both has to know them for a ban by name
		if differs("m" + name) {
			all = append(all, former...)
		}
	}
	all = append(all, b.sorted(differs)...)
	b.mu.Unlock()
	slices.SortStableFunc(all, func(x, y Signed) int {
		return cmp.Or(cmp.Compare(order(x.Kind), order(y.Kind)), cmp.Compare(part(x.subject()), part(y.subject())))
	})
	lacked := make(map[string]*Signed, len(all)) // by subject; of a name the one held is the last
	for i := range all {
		lacked[all[i].subject()] = &all[i]
	}
	written := make(chan error, 1)
	sent := 0
	go func() { // ends with the stream, at the latest
		w := bufio.NewWriter(s)
		for _, x := range all {
			if _, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(x.raw))), x.raw...)); err != nil {
				break
			}
			sent++
		}
		_, _ = w.Write([]byte{0, 0})
		written <- w.Flush()
	}()
	n, err = b.receive(r, lacked)
	failed := <-written
	if err == nil {
		err = failed
	}
	n.Sent, n.Whole = sent, n.Whole && failed == nil
	return n, err
}

// still counts those of all that count still, as no newer ones have come, and names the first ones. The caller holds mu.
func (b *Book) still(all map[string]*Signed) (n int, some []string) {
	for subject, x := range all {
		if b.held[subject].raw != x.raw {
			continue
		}
		some = append(some, strings.TrimPrefix(x.Kind.String()+" "+x.Who(), "member "))
		slices.Sort(some)
		n, some = n+1, some[:min(len(some), mostSome)]
	}
	return n, some
}

// part is that of a subject.
func part(subject string) byte { return sha256.Sum256([]byte(subject))[0] }

// whole takes proof of time from all that is held: another member's statements are here as a whole.
func (b *Book) whole() error {
	b.mu.Lock()
	b.prove(math.MaxUint64)
	b.mu.Unlock()
	return b.Save()
}

// receive takes statements up to their end, and those of lacked out that come, or newer ones by whatever key. Those of keys that
// do not count here are skipped: members pin other keys while an operator's key changes.
func (b *Book) receive(r io.Reader, lacked map[string]*Signed) (n Count, err error) {
	var raws []string
	var foreign, disk error // the first ones
	most := mostUseless + 2*b.Len()
	for n.Useless <= most {
		var length [2]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return n, errors.Join(err, foreign, disk)
		}
		size := binary.BigEndian.Uint16(length[:])
		if size > maxStatement {
			return n, fmt.Errorf("%w: larger than %d bytes", ErrStatement, maxStatement)
		}
		raw := make([]byte, size)
		if _, err := io.ReadFull(r, raw); err != nil {
			return n, errors.Join(err, foreign, disk)
		}
		if size > 0 {
			raws = append(raws, string(raw))
		}
		if size > 0 && len(lacked) > 0 {
			if s, err := open(string(raw), whatever, true); err == nil && lacked[s.subject()] != nil && s.Epoch >= lacked[s.subject()].Epoch {
				delete(lacked, s.subject())
			}
		}
		if size > 0 && len(raws) < 64 { // in batches: what is forged costs little
			continue
		}
		b.mu.Lock()
		fresh, err := b.add(raws, maxHeld)
		if size == 0 && !errors.Is(err, ErrStatement) {
			n.Whole = true
			n.Lacked, n.Some = b.still(lacked)
		}
		b.mu.Unlock()
		n.Added, n.Useless, raws = n.Added+len(fresh), n.Useless+len(raws)-len(fresh), raws[:0]
		if disk == nil { // else at the end
			disk = b.Save()
		}
		if errors.Is(err, ErrStatement) {
			return n, errors.Join(err, disk)
		}
		if foreign == nil {
			foreign = err
		}
		if size == 0 {
			return n, errors.Join(foreign, b.whole())
		}
	}
	return n, errFull
}
