package signed

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"edgemesh/internal/config/strict"
	"edgemesh/internal/durable"
)

// maxFile bounds a file of statements, in bytes.
const maxFile = 64 << 20

// ReadFile reads the statements in the file at path, one a line; empty lines and those that begin with # do not count.
func ReadFile(path string) ([]string, error) {
	f, err := strict.Open(path, maxFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if text := strings.TrimSpace(lines.Text()); text != "" && text[0] != '#' {
			out = append(out, text)
		}
	}
	return out, lines.Err()
}

// Load reads what is kept at path, and keeps there from now on what is accepted. What is wrong in the file does not count; the
// error says so. Each line that this node has written has a tag by its secret, and needs no other check of its signature.
func (b *Book) Load(path string, secret []byte) error {
	lines, err := ReadFile(path)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seal, b.sealed = secret, map[string]bool{}
	raws := make([]string, 0, len(lines))
	for _, line := range lines {
		text, tag, _ := strings.Cut(line, " ")
		raw, failed := decode(text)
		if failed != nil {
			continue // torn
		}
		raws = append(raws, raw)
		b.sealed[raw] = hmac.Equal([]byte(tag), []byte(b.tag(raw)))
	}
	_, failed := b.add(raws)
	b.sealed, b.path = nil, path
	if len(raws) > 2*len(b.held) { // most of it was replaced
		err = errors.Join(err, durable.Write(path, 0o600, func(w io.Writer) error { return b.write(w, b.sorted(func(string) bool { return true })) }))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, failed)
}

// tag shows that this node has checked a signature.
func (b *Book) tag(raw string) string {
	m := hmac.New(sha256.New, b.seal)
	m.Write([]byte(raw))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// store appends what was taken. A line that a power cut tore is none: each is signed. The caller holds mu.
func (b *Book) store(took []Signed) error {
	if b.path == "" {
		return nil
	}
	f, err := os.OpenFile(b.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = b.write(f, took)
	return errors.Join(err, f.Sync(), f.Close())
}

func (b *Book) write(w io.Writer, all []Signed) error {
	out := []byte("\n") // after a torn line
	for i := range all {
		out = append(out, all[i].String()+" "+b.tag(all[i].raw)+"\n"...)
	}
	_, err := w.Write(out)
	return err
}

// Lines is the content of a file that has all of them.
func Lines(all []Signed) []byte {
	var out strings.Builder
	for _, s := range all {
		out.WriteString(s.String() + "\n")
	}
	return []byte(out.String())
}
