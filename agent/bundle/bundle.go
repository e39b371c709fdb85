// Package bundle collects what support needs to know of a node in one file, without secrets.
//
//	bundle.go  files, their list, the archive
//	host.go    what the kernel and other programs of this host say
//	known.go   configurations: values of known keys
//	clean.go   text and JSON: no secrets
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// maxFile bounds each file of a bundle, in bytes.
const maxFile = 8 << 20

// Bundle is files in memory, secrets already removed. The zero value is empty.
type Bundle struct{ files []file }

type file struct {
	name    string
	from    string // where it is on this host, "" if it was made
	body    []byte
	removed int
}

// Text adds a text.
func (b *Bundle) Text(name, text string) {
	body, n := Clean([]byte(text))
	b.files = append(b.files, file{name, "", body, n})
}

// JSON adds a value that the agent made.
func (b *Bundle) JSON(name string, v any) {
	body, n := made(v)
	b.files = append(b.files, file{name, "", body, n})
}

// File adds a text of this host; one that cannot be read is left out.
func (b *Bundle) File(name, path string) { b.read(name, path, Clean) }

// Config adds a configuration of this host in YAML, or in JSON if its name ends so: what stands below keys that the agent
// knows. One that cannot be read is left out.
func (b *Bundle) Config(name, path string) {
	b.read(name, path, func(text []byte) ([]byte, int) { return knownOnly(text, strings.HasSuffix(name, ".json")) })
}

func (b *Bundle) read(name, path string, clean func([]byte) ([]byte, int)) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	if body, err := io.ReadAll(io.LimitReader(f, maxFile)); err == nil {
		body, n := clean(body)
		b.files = append(b.files, file{name, path, body, n})
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
		if f.removed > 0 {
			line += fmt.Sprintf("  (%d removed, secret or unknown)", f.removed)
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
	return b.Archive(out)
}

// Archive writes the same to out.
func (b *Bundle) Archive(out io.Writer) error {
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
