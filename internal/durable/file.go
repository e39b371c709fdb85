// Package durable writes files so that a power cut leaves the old or the new content,
// never a mixture.
package durable

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// WriteFile replaces path by data and reads it back first. The directory must exist.
// Processes that have the old file open, or run it, keep it; on an error it is still
// there.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	return Write(path, mode, whole(data))
}

// Write is WriteFile for what write writes, which may be large: it is in memory in no place at one time.
func Write(path string, mode os.FileMode, write func(io.Writer) error) error {
	return put(path, mode, write, os.Rename)
}

// Create is WriteFile for a new file. If the file exists it fails with an error that
// wraps fs.ErrExist: of several callers that create the same file, one succeeds.
func Create(path string, data []byte, mode os.FileMode) error {
	return put(path, mode, whole(data), func(tmp, path string) error {
		defer os.Remove(tmp)
		return os.Link(tmp, path) // unlike rename, it fails if the file exists
	})
}

func whole(data []byte) func(io.Writer) error {
	return func(w io.Writer) error { _, err := w.Write(data); return err }
}

// put writes a temporary file next to path, syncs it, reads it back, has place give it its
// name and syncs the directory.
func put(path string, mode os.FileMode, write func(io.Writer) error, place func(tmp, path string) error) (err error) {
	dir := filepath.Dir(path)
	// The leading dot makes runtimes that scan the directory ignore it.
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
		}
	}()
	sum := sha256.New()
	if err = write(io.MultiWriter(tmp, sum)); err != nil {
		return err
	}
	if err = tmp.Chmod(mode); err != nil {
		return err
	}
	if err = tmp.Sync(); err != nil {
		return err
	}
	if err = tmp.Close(); err != nil {
		return err
	}
	if err = same(tmp.Name(), sum.Sum(nil)); err != nil {
		return err
	}
	if err = place(tmp.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// same checks that a file holds what has this SHA-256.
func same(path string, want []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err = io.Copy(sum, f); err == nil && !bytes.Equal(sum.Sum(nil), want) {
		err = fmt.Errorf("%s: read back differs from what was written", path)
	}
	return err
}

// SyncDir makes renames and removals in dir durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
