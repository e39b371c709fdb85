// Package bundle collects what support needs to know of a node in one file, without secrets.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

// maxFile bounds each file of a bundle, in bytes.
const maxFile = 8 << 20

// Removed stands where a secret was.
const Removed = "REMOVED"

// Bundle is files in memory, secrets already removed. The zero value is empty.
type Bundle struct{ files []file }

type file struct {
	name    string
	from    string // where it is on this host, "" if it was made
	body    []byte
	secrets int
}

// secret is what no bundle may have, and what stands there instead.
type secret struct {
	find *regexp.Regexp
	with string
}

var secrets = []secret{ //nolint:gochecknoglobals // a constant
	{regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`), "${1}" + Removed},
	{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^/@\s"']+@`), "${1}" + Removed + "@"}, // user and password of a URL
	{regexp.MustCompile(`(?im)(^|[\s{,"'-])([a-z_-]*(?:password|passwd|secret|token|private-?key|client-key-data)["']?\s*[:=]\s*)` +
		`(?:"[^"]*"|'[^']*'|[^\s,}]+)`), "${1}${2}" + Removed},
	{regexp.MustCompile(`(?i)(bearer |basic )[a-z0-9+/=._~-]{8,}`), "${1}" + Removed},
}

// Clean removes secrets from text, and says how many there were.
func Clean(text []byte) (clean []byte, n int) {
	for _, s := range secrets {
		n += len(s.find.FindAllIndex(text, -1))
		text = s.find.ReplaceAll(text, []byte(s.with))
	}
	return text, n
}

func (b *Bundle) add(name, from string, body []byte) {
	body, n := Clean(bytes.Clone(body))
	b.files = append(b.files, file{name, from, body, n})
}

// Text adds a text.
func (b *Bundle) Text(name, text string) { b.add(name, "", []byte(text)) }

// JSON adds a value.
func (b *Bundle) JSON(name string, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		body = []byte(err.Error())
	}
	b.add(name, "", body)
}

// File adds a file of this host; one that cannot be read is left out.
func (b *Bundle) File(name, path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	if body, err := io.ReadAll(io.LimitReader(f, maxFile)); err == nil {
		b.add(name, path, body)
	}
}

// List says what the bundle has, a line for each file.
func (b *Bundle) List() []string {
	var out []string
	for _, f := range b.files {
		line := fmt.Sprintf("bundle: %-20s %7d bytes", f.name, len(f.body))
		if f.from != "" {
			line += "  of " + f.from
		}
		if f.secrets > 0 {
			line += fmt.Sprintf("  (%d secrets removed)", f.secrets)
		}
		out = append(out, line)
	}
	return out
}

// Write writes a gzipped tar archive to path, which only this user may read. It replaces no file.
func (b *Bundle) Write(path string) (err error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}()
	zip := gzip.NewWriter(out)
	archive := tar.NewWriter(zip)
	for _, f := range b.files {
		h := &tar.Header{Name: "edgemesh/" + f.name, Mode: 0o600, Size: int64(len(f.body)), ModTime: time.Now()}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		if _, err := archive.Write(f.body); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zip.Close()
}
