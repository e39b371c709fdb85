package signed

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/durable"
)

const (
	// maxFile bounds a file of statements beside a membership, maxLine one line; what is longer is no statement. Both in bytes.
	maxFile, maxLine = 64 << 20, 4096
	// slack is what the file that is kept may grow by, beyond twice its least size, until all of it is written again, in bytes.
	slack = 256 << 10
	// aside ends the name of the copy of a file whose statements did not count; provenLine begins a line with the proof of time.
	aside, provenLine = ".before", "#proven "
)

// ErrKept means that statements are in force, but not on disk.
var ErrKept = errors.New("statements in force cannot be kept on disk: a restart forgets the bans among them; free space, or repair the disk")

// kept is the file that has what a book has accepted.
type kept struct {
	mu          sync.Mutex // held while it is written; before that of the book
	path        string     // "": nothing is kept on disk
	seal        []byte     // a secret of this node
	size, least int        // in bytes: the file, and when it was last written as a whole
	proven      uint64     // as the file has it
	torn        bool       // it lacks something, and has to be written as a whole
	foreign     bool       // it has what did not count when it was read: a copy stays
}

// ReadFile reads the statements in the file at path, one a line; empty lines and those that begin with # do not count.
func ReadFile(path string) (out []string, err error) {
	_, err = readLines(path, maxFile, func(line string) {
		if line[0] != '#' {
			out = append(out, line)
		}
	})
	return out, err
}

// readLines has each line that is not empty, without what is longer than maxLine, and returns the file's size.
func readLines(path string, most int64, each func(line string)) (size int, err error) {
	f, err := strict.Open(path, most)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, maxLine)
	for rest := false; ; {
		line, err := r.ReadSlice('\n')
		if size += len(line); !rest {
			if text := strings.TrimSpace(string(line)); text != "" {
				each(text)
			}
		}
		if rest = errors.Is(err, bufio.ErrBufferFull); err != nil && !rest {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return size, err
		}
	}
}

// Load reads what is kept at path, and keeps there from now on what is accepted. What is wrong in the file does not count; the
// error says so. Each line that this node has written has a tag by its secret, and needs no other check of its signature. What
// was put aside, because no key in signers had signed it, counts again once one has.
func (b *Book) Load(path string, secret []byte) error {
	err := b.load(path, secret)
	return errors.Join(err, b.Save())
}

func (b *Book) load(path string, secret []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := &b.kept
	k.path, k.seal, b.sealed = path, secret, map[string]bool{}
	proven, torn := uint64(math.MaxUint64), false // a file of an earlier release has no line for it
	read := func(path string) (raws []string, size int, err error) {
		size, err = readLines(path, math.MaxInt64, func(line string) {
			if n, ok := strings.CutPrefix(line, provenLine); ok {
				if epoch, err := strconv.ParseUint(n, 10, 64); err == nil && (proven == math.MaxUint64 || epoch > proven) {
					proven = epoch
				}
				return
			}
			text, tag, _ := strings.Cut(line, " ")
			raw, failed := decode(text)
			if torn = torn || failed != nil; failed == nil {
				raws = append(raws, raw)
				b.sealed[raw] = hmac.Equal([]byte(tag), []byte(k.tag(raw)))
			}
		})
		return raws, size, err
	}
	again, _, _ := read(path + aside)
	before, _ := b.add(again, math.MaxInt)
	raws, size, err := read(path)
	_, failed := b.add(raws, math.MaxInt)
	b.prove(proven)
	k.size, k.proven = size, b.proven
	k.foreign = failed != nil
	k.torn = torn || k.foreign || slices.ContainsFunc(before, func(s Signed) bool { return !slices.Contains(raws, s.raw) })
	for _, s := range b.held {
		k.least += len(s.raw)*4/3 + 64
	}
	b.sealed, b.unsaved = nil, nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, failed)
}

// tag shows that this node has checked a signature.
func (k *kept) tag(raw string) string {
	m := hmac.New(sha256.New, k.seal)
	m.Write([]byte(raw))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// Save writes what is not on disk yet: at the end of the file, or all of it again where most of it was replaced. No lock is held
// that others need meanwhile. Its error wraps ErrKept; the next call tries again.
func (b *Book) Save() error {
	k := &b.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	b.mu.Lock()
	news, proven, all := b.unsaved, b.proven, k.torn || k.size > 2*k.least+slack
	if k.path == "" || len(news) == 0 && proven == k.proven && !k.torn {
		b.unsaved = nil
		b.mu.Unlock()
		return nil
	}
	if b.unsaved = nil; all {
		news = nil
		for _, former := range b.former { // before what replaced them
			news = append(news, former...)
		}
		news = append(news, b.sorted(func(string) bool { return true })...)
	}
	b.mu.Unlock()
	text := k.lines(news, proven)
	write := k.append
	if all {
		write = k.replace
	}
	err := write(text)
	if k.torn = err != nil; err != nil {
		return fmt.Errorf("%s: %w: %w", k.path, ErrKept, err)
	}
	if k.proven = proven; all {
		k.size, k.least = 0, len(text)
	}
	k.size += len(text)
	return nil
}

// replace writes the whole file again.
func (k *kept) replace(text []byte) error {
	if k.foreign {
		old, err := os.ReadFile(k.path)
		if err == nil {
			err = durable.WriteFile(k.path+aside, old, 0o600)
		}
		if err != nil {
			return err
		}
		k.foreign = false
	}
	return durable.WriteFile(k.path, text, 0o600)
}

// append writes at the end of the file. A line that a power cut tore is none: each is signed.
func (k *kept) append(text []byte) error {
	f, err := os.OpenFile(k.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func (k *kept) lines(all []Signed, proven uint64) []byte {
	out := bytes.NewBufferString("\n") // after a torn line
	for i := range all {
		out.WriteString(all[i].String() + " " + k.tag(all[i].raw) + "\n")
	}
	fmt.Fprintf(out, "%s%d\n", provenLine, proven)
	return out.Bytes()
}

// Lines is the content of a file that has all of them.
func Lines(all []Signed) []byte {
	var out strings.Builder
	for _, s := range all {
		out.WriteString(s.String() + "\n")
	}
	return []byte(out.String())
}
