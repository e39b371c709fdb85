// Package secretfile reads files with secrets, and refuses those that other users may read.
package secretfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

var (
	// ErrPermissions means that users other than the owner may read the file.
	ErrPermissions = errors.New("permissions are too open")
	// ErrContent means that the file is not what it should be.
	ErrContent = errors.New("not usable")
)

// Read reads the file at path, of at most so many bytes. The error names path and what to do. It wraps ErrPermissions,
// ErrContent, or the file system's error. What others may read comes with ErrPermissions.
func Read(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: not a regular file", path, ErrContent)
	}
	tooOpen := private(path, info)
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > most {
		return nil, fmt.Errorf("%s: %w: longer than %d bytes", path, ErrContent, most)
	}
	return data, tooOpen
}

// Private returns an error that wraps ErrPermissions, and says what to do, if others may read the file at path.
func Private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return private(path, info)
}

func private(path string, info os.FileInfo) error {
	if perm := info.Mode().Perm(); perm&open(path, os.Getenv("CREDENTIALS_DIRECTORY")) != 0 {
		return fmt.Errorf("%s: %w: mode is %#o, so other users may read the secret; run: chmod 600 %s", path, ErrPermissions, perm, path)
	}
	return nil
}

// open returns the permission bits that give others access to the file at path. In systemd's credentials directory the
// bits of the group are those of the one user that systemd lets in by an ACL.
func open(path, credentials string) os.FileMode {
	if credentials != "" && filepath.Dir(path) == filepath.Clean(credentials) {
		return 0o007
	}
	return 0o077
}
