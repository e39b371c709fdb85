package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
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
	if err := put(path, 0o644, whole([]byte("new")), func(string, string) error { return errDisk }); !errors.Is(err, errDisk) {
		t.Errorf("error is %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "old" || err != nil {
		t.Errorf("file has %q (%v)", b, err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("directory has %v (%v), want the file alone", all, err)
	}
}

func TestCreateIsOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = Create(path, []byte{byte('0' + i)}, 0o600) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won < 0:
			won = i
		case err == nil:
			t.Errorf("%d and %d both made it", won, i)
		case !errors.Is(err, fs.ErrExist):
			t.Error(err)
		}
	}
	if b, err := os.ReadFile(path); err != nil || won < 0 || string(b) != string(rune('0'+won)) {
		t.Errorf("file has %q (%v), want what %d wrote", b, err, won)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("directory has %v (%v), want the file alone", all, err)
	}
}
