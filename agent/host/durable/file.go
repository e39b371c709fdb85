// Package durable replaces files so that a power cut leaves the old or the new
// content, never a torn one.
package durable

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// WriteFile replaces path by data. The directory must exist. Readers that have
// the old file open, or run it, keep it.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	return Replace(path, bytes.NewReader(data), mode)
}

// Replace is WriteFile for content from a reader: temporary file beside path,
// fsync, rename, fsync of the directory.
func Replace(path string, from io.Reader, mode os.FileMode) (err error) {
	dir := filepath.Dir(path)
	// A dot first: runtimes that scan the directory pass over it.
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
	if _, err = io.Copy(tmp, from); err != nil {
		return fmt.Errorf("write %s: %w", tmp.Name(), err)
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
	if err = os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
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
