package durable

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); string(b) != "new" || err != nil {
		t.Errorf("file has %q (%v)", b, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode is %v (%v), want 0600", info.Mode(), err)
	}
	if b, err := io.ReadAll(reader); string(b) != "old" || err != nil {
		t.Errorf("who had it open reads %q (%v), want the old content", b, err)
	}
}

func TestFailureLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	errDisk := errors.New("disk is full")
	if err := Replace(path, iotest.ErrReader(errDisk), 0o644); !errors.Is(err, errDisk) {
		t.Errorf("error is %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "old" || err != nil {
		t.Errorf("file has %q (%v)", b, err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("directory has %v (%v), want the file alone", all, err)
	}
}
