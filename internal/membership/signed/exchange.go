package signed

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
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

// Exchange passes on to the member at the other end of s what it lacks, and takes what this one lacks; both ends call it. It
// reports how many statements were new here, and how many were sent. The error says what of the other's is not accepted; after
// one that is forged nothing more is read.
//
//	digest of all (8) | if they differ: digests of 256 parts (8 each) | statements of parts that differ, each: length (2), envelope | 0 (2)
func (b *Book) Exchange(s io.ReadWriter) (added, sent int, err error) {
	b.mu.Lock()
	mine := b.digests
	b.mu.Unlock()
	hello := binary.BigEndian.AppendUint64(nil, total(mine))
	if _, err := s.Write(hello); err != nil {
		return 0, 0, err
	}
	r := bufio.NewReader(s)
	theirs := make([]byte, len(hello))
	if _, err := io.ReadFull(r, theirs); err != nil || string(theirs) == string(hello) {
		return 0, 0, err
	}
	if err := binary.Write(s, binary.BigEndian, mine); err != nil {
		return 0, 0, err
	}
	var other [parts]uint64
	if err := binary.Read(r, binary.BigEndian, &other); err != nil {
		return 0, 0, err
	}
	b.mu.Lock()
	all := b.sorted(func(subject string) bool { part := sha256.Sum256([]byte(subject))[0]; return mine[part] != other[part] })
	b.mu.Unlock()
	written := make(chan error, 1)
	go func() { // ends with the stream, at the latest
		w := bufio.NewWriter(s)
		for _, x := range all {
			_, _ = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(x.raw))), x.raw...))
		}
		_, _ = w.Write([]byte{0, 0})
		written <- w.Flush()
	}()
	added, err = b.receive(r)
	if failed := <-written; err == nil {
		err = failed
	}
	return added, len(all), err
}

// receive takes statements up to their end.
func (b *Book) receive(r io.Reader) (added int, err error) {
	var raws []string
	for range maxHeld {
		var length [2]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return added, err
		}
		n := binary.BigEndian.Uint16(length[:])
		if n > maxStatement {
			return added, fmt.Errorf("%w: larger than %d bytes", ErrStatement, maxStatement)
		}
		raw := make([]byte, n)
		if _, err := io.ReadFull(r, raw); err != nil {
			return added, err
		}
		if n > 0 {
			raws = append(raws, string(raw))
		}
		if n == 0 || len(raws) == 64 { // in parts: what is forged costs little
			b.mu.Lock()
			news, err := b.add(raws)
			b.mu.Unlock()
			added, raws = added+news, raws[:0]
			if err != nil || n == 0 {
				return added, err
			}
		}
	}
	return added, errFull
}
