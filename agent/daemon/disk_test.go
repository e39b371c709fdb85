package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"edgemesh/internal/disktest"
	"edgemesh/internal/keyfile"
)

// fullDisk is a directory without room for anything but empty files.
func fullDisk(t *testing.T) string {
	dir := t.TempDir()
	disktest.Fill(t, dir)
	return dir
}

// A full disk must not keep an agent from starting: its pods need it.
func TestLockOnFullDisk(t *testing.T) {
	dir := fullDisk(t)
	lock, err := LockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockStateDir(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("it is not locked: %v", err)
	}
	lock.Release()
}

// A key that is open to others is the operator's to fix, a full disk is not a
// mistake in the configuration.
func TestKeyErrors(t *testing.T) {
	config := new(*ConfigError)
	if _, err := keyfile.LoadOrCreate(fullDisk(t)); !errors.Is(err, unix.ENOSPC) || errors.As(keyError(err), config) {
		t.Errorf("a full disk: %v", keyError(err))
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, keyfile.Name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := keyfile.LoadOrCreate(dir); err == nil || !errors.As(keyError(err), config) {
		t.Errorf("a key open to others: %v", keyError(err))
	}
}
